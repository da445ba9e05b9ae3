"""`jaxpt runs` and `jaxpt compare`: what run directories say of their runs, without the checkpoints."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt import errors
from jaxpt.config.plain import leaves
from jaxpt.errors import UserError
from jaxpt.runtime import plugins
from jaxpt.runtime.terminal import NARROW, console, print_records, print_table
from jaxpt.train import lock
from jaxpt.train.display import duration
from jaxpt.train.run_dir import receipt, records

SKIPPED = ("checkpoints", "tensorboard", "tokenizer", "hf", "evaluations", "wandb")
"""Directories of a run in which no run is looked for."""
ABSENT = "—"
"""The value of a key that a run does not have."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run as its directory tells it; None where nothing is known yet."""

    path: str
    what: str
    """Model, and objective or task."""
    status: str
    """ "finished", "running" or "stopped"; or "damaged: why"."""
    step: int
    steps: int | None
    loss: float | None
    """The last one, on validation where there was one."""
    metric: str | None
    """Name of what chooses the best checkpoint, or of the first test metric."""
    value: float | None
    seconds_ago: float | None
    """Since the last line of its metrics."""
    damaged_lines: int = 0
    """Of its metrics, which are left out."""

    @property
    def progress(self) -> str:
        """The step, and how many there are to be."""
        return f"{self.step:,}" + (f" of {self.steps:,}" if self.steps not in (None, self.step) else "")

    @property
    def best(self) -> str:
        """The metric with its value."""
        return "" if self.value is None else f"{self.metric} {self.value:.4f}"


@plugins.unread()
def runs(directory: Path) -> list[Run]:
    """All runs in a directory, at any depth, the newest first.

    Args:
      directory: such as `runs`.

    Raises:
      UserError: the directory does not exist, or has no runs.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; a recipe's run is in runs/NAME where it was started")
    entries = [run(path) for path in run_dirs(directory)]
    if not entries:
        raise UserError(f"{directory}: no runs in it: a run's directory has a config.yaml")
    return sorted(entries, key=lambda entry: (entry.seconds_ago is None, entry.seconds_ago, entry.path))


def print_runs(directory: str = "runs", as_json: bool = False) -> None:
    """`jaxpt runs`: the runs in a directory, as a table or as JSON."""
    all_runs = runs(Path(directory))
    if as_json:
        print(json.dumps([dataclasses.asdict(run) for run in all_runs], indent=2))
        return
    rows = []
    for run in all_runs:
        status = run.status + (f", damaged lines of metrics: {run.damaged_lines:,}" if run.damaged_lines else "")
        age = "" if run.seconds_ago is None else duration(run.seconds_ago)
        loss = "" if run.loss is None else f"{run.loss:.4f}"
        rows.append((run.path, run.what, status, run.progress, loss, run.best, age))
    if console().width < NARROW:
        print_records((path, _in_words(values)) for path, *values in rows)
        return
    print_table(("run", "model · objective", "state", "step", "loss", "best", "age"), rows)


def _in_words(values: Sequence[str]) -> list[str]:
    """What is known of a run, for a line."""
    what, status, step, loss, best, age = values
    return [what, status, f"step {step}", f"loss {loss}" if loss else "", best, f"{age} ago" if age else ""]


def run_dirs(directory: Path) -> Iterator[Path]:
    """The directories of runs in a directory, itself among them."""
    if (directory / "config.yaml").is_file():
        yield directory
    try:
        paths = sorted(directory.iterdir())
    except OSError as error:
        errors.note(f"{directory}: {error.strerror}; runs in it are not listed")
        return
    for path in paths:
        if path.is_dir() and not path.is_symlink() and path.name not in SKIPPED:
            yield from run_dirs(path)


def run(path: Path) -> Run:
    """What a run's directory says.

    Args:
      path: has a config.yaml.
    """
    ended, status = {}, "stopped"
    is_running = lock.is_held(path)  # before run.json, which a run writes at its end
    try:
        lines, damaged = records(path)
        ended = receipt(path)
        config = configs.load(path)
    except (UserError, OSError) as error:
        return Run(str(path), "", f"damaged: {error}", 0, None, None, None, None, None)
    if is_running:
        status = "running"
    elif ended.get("finished"):
        status = "finished"
    known = {key: value for line in lines for key, value in line.items() if value is not None}
    test = ended.get("test") or {}
    metric = next((f"test {name}" for name in test), config.checkpoint.best_metric)
    values = [line[metric] for line in lines if line.get(metric) is not None]
    best = (min if config.checkpoint.best_mode == "min" else max)(values, default=None)
    simple = (ended.get("simple_model") or {}).get("best")
    return Run(
        str(path),
        f"{simple or config.model.kind} · {config.objective.kind}",
        status,
        max((line["step"] for line in lines), default=0),
        config.train.steps,
        known.get("validation/loss", known.get("train/loss")),
        metric if test or values else None,
        next(iter(test.values()), best),
        max(time.time() - known["time"], 0.0) if "time" in known else None,
        damaged,
    )


# ---- comparison -----------------------------------------------------------------------------------------------------


def print_comparison(paths: Sequence[str], as_json: bool = False) -> None:
    """`jaxpt compare`: how runs differ, as tables or as JSON."""
    if len(paths) < 2:
        raise UserError("compare wants two runs or more")
    settings, metrics = compare(paths)
    if as_json:
        print(json.dumps({"configuration": settings, "metrics": metrics}, indent=2))
        return
    names = [Path(path).name for path in paths]
    names = names if len(set(names)) == len(names) else list(paths)
    if settings:
        print_table(("key", *names), [(key, *values) for key, values in settings.items()])
    else:
        print("the configurations are equal, but for run_dir")
    has_difference = len(paths) == 2
    rows = []
    for name, values in metrics.items():
        cells = [name, *("" if value is None else f"{value:.6g}" for value in values)]
        if has_difference:
            cells.append("" if None in values else f"{values[1] - values[0]:+.4g}")
        rows.append(cells)
    print_table(("metric", *names, *["difference"] * has_difference), rows)


@plugins.unread()
def compare(paths: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, list[float | None]]]:
    """What differs between runs.

    Args:
      paths: run directories.

    Returns:
      ({key: its value in each run, as YAML has it}, {metric: its value in each run}): the keys whose values differ, and
      all metrics at the end.

    Raises:
      UserError: one is no run.
    """
    for path in paths:
        if not (Path(path) / "config.yaml").is_file():
            raise UserError(f"{path}: is no run: it has no config.yaml")
    trees = [dict(leaves(configs.dump(configs.load(Path(path))))) for path in paths]
    keys = list(dict.fromkeys(key for tree in trees for key in tree))
    absent = object()
    values = {key: [tree.get(key, absent) for tree in trees] for key in keys if key != "run_dir"}
    differing = {
        key: [ABSENT if value is absent else json.dumps(value, ensure_ascii=False) for value in run_values]
        for key, run_values in values.items()
        if any(value != run_values[0] for value in run_values)
    }
    ends = [_end(Path(path)) for path in paths]
    names = list(dict.fromkeys(name for end in ends for name in end))
    return differing, {name: [end.get(name) for end in ends] for name in names}


def _end(path: Path) -> Mapping[str, float | None]:
    """The last figures of a run."""
    ended, (lines, damaged) = receipt(path), records(path)
    if damaged:
        errors.note(f"{path / 'metrics.jsonl'}: {damaged:,} damaged lines are left out")
    last: dict[str, Any] = {}
    for line in lines:
        last |= {key: value for key, value in line.items() if key.startswith(("train/loss", "validation/", "task/"))}
    figures = {"step": ended.get("step", max((line["step"] for line in lines), default=0))} | last
    figures |= {f"test/{name}": value for name, value in (ended.get("test") or {}).items()}
    names = {"baseline": "baseline", "parameters": "parameters", "wall_seconds": "seconds"}
    return figures | {name: ended[key] for key, name in names.items() if isinstance(ended.get(key), int | float)}
