"""What a run_dir tells of its run: the receipt, and validation along steps, text and FLOPs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxpt.config.studies import Probe
from jaxpt.train.run_dir import receipt, records


@dataclasses.dataclass(frozen=True)
class Point:
    """One validation."""

    step: int
    text_tokens: float
    """Tokens of text seen up to here, repetitions included."""
    flops: float
    """Spent on training steps up to here."""
    means: dict[str, float | None]
    """{"loss": …, "target_loss": …, …}; None where a figure was not finite."""


def probe(run_dir: Path, settings: Probe) -> dict[str, Any] | None:
    """What a linear probe under these settings found at the end of the run; None where there was none."""
    path, run = run_dir / "evaluations" / "probe.json", receipt(run_dir)
    if not run or not path.exists():
        return None
    report = json.loads(path.read_text(encoding="utf-8"))
    is_it = report["settings"] == settings.model_dump(mode="json") and report["step"] == run["step"]
    return report if is_it else None


def cumulated(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], float, float]]:
    """What a run has seen and spent up to each line of its metrics.

    Text and FLOPs add up over the phases: a line of metrics at the start of each stretch says what a step takes.

    Args:
      records: the lines of metrics.jsonl.

    Yields:
      (line, tokens of text, FLOPs)

    Example:
      >>> lines = [{"step": 0, "phase/text_tokens_per_step": 10.0}, {"step": 3}]
      >>> [(text, flops) for _, text, flops in cumulated(lines)]
      [(0.0, 0.0), (30.0, 0.0)]
    """
    step, text, flops = 0, 0.0, 0.0
    text_per_step = flops_per_step = 0.0
    for record in records:
        steps, step = record["step"] - step, record["step"]
        text, flops = text + steps * text_per_step, flops + steps * flops_per_step
        text_per_step = record.get("phase/text_tokens_per_step", text_per_step)
        flops_per_step = record.get("phase/flops_per_step", flops_per_step)
        yield record, text, flops


def train_seconds(records: Iterable[Mapping[str, Any]]) -> float:
    """Seconds of a run's steps, without evaluations and checkpoints, from the speed that it logged.

    Steps after the last line with a speed count as those before it.

    Args:
      records: the lines of metrics.jsonl.

    Example:
      >>> lines = [{"step": 0, "phase/flops_per_step": 1.0}, {"step": 10, "speed/steps_per_second": 2.0}, {"step": 12}]
      >>> train_seconds(lines)
      6.0
    """
    seconds, counted, last, rate = 0.0, 0, 0, None
    for record in records:
        if "phase/flops_per_step" in record:  # a start, or a resume
            seconds += (last - counted) / rate if rate else 0.0
            counted = last = record["step"]
        if "speed/steps_per_second" in record:
            rate = record["speed/steps_per_second"]
            seconds, counted = seconds + max(record["step"] - counted, 0) / rate, record["step"]
        last = max(record["step"], counted)
    return seconds + ((last - counted) / rate if rate else 0.0)


def points(run_dir: Path) -> list[Point]:
    """The validations of a run, from its metrics.jsonl.

    Args:
      run_dir: of a run that has ended, is under way, or was killed; its last line may be cut short.

    Returns:
      One for each validation, by step.
    """
    validations: list[Point] = []
    for record, text, flops in cumulated(records(run_dir)[0]):
        means = {name.removeprefix("validation/"): x for name, x in record.items() if name.startswith("validation/")}
        if means:
            validations.append(Point(record["step"], text, flops, means))
    return validations
