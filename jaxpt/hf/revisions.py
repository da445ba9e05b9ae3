"""`jaxpt export --every`: each checkpoint of a run as a directory in Hugging Face's form, for revisions of a model.

OUT/step0  OUT/step1000  OUT/step2000 …     config.json, weights, the tokenizer's files, training_state.json
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.errors import UserError
from jaxpt.hf import convert
from jaxpt.runtime import disk
from jaxpt.train import checkpoint, metrics, run_dir

FILE = "training_state.json"


def export_every(run: str | Path, out: str | Path, *, report: Callable[[str], None] = print, **options: Any) -> None:
    """Converts each checkpoint of a run; those that are in `out` already are left as they are.

    Args:
      run: a run directory.
      out: the directory of the directories.
      report: called with lines for the user.
      **options: of `jaxpt.hf.convert.export`.

    Raises:
      UserError: `run` is no run directory, or as `export`.

    Example: `export_every("runs/mine", "out/mine")` writes out/mine/step500, out/mine/step1000, …
    """
    if checkpoint.named_step(run):
        raise UserError(f"{run}: is one checkpoint; --every wants the run directory, or leave --every out")
    directory, _ = checkpoint.find(run)
    config, out = configs.load(directory), Path(out)
    with checkpoint.Checkpoints(directory, config.checkpoint, read_only=True) as checkpoints:
        for step in checkpoints.steps():
            place = out / f"step{step}"
            if place.exists():
                report(f"{place}: is there already")
                continue
            out.mkdir(parents=True, exist_ok=True)
            state = training_state(config, directory, step, checkpoints.meta(step))
            with disk.whole_directory(place) as temporary:
                model = temporary / "model"
                convert.export(directory / "checkpoints" / str(step), model, report=lambda line: None, **options)
                for file in model.iterdir():
                    file.rename(temporary / file.name)
                model.rmdir()
                disk.write_text(temporary / FILE, json.dumps(state, indent=2) + "\n")
            loss = "" if state["train_loss"] is None else f", training loss {state['train_loss']:.4f}"
            seen = "an unknown number of" if state["tokens"] is None else f"{state['tokens']:,.0f}"
            report(f"{place}: {seen} tokens of text seen{loss}")


def training_state(config: Config, directory: Path, step: int, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a training state.

    Args:
      config: the run's configuration.
      directory: the run.
      step: of the checkpoint.
      meta: what was saved beside it.

    Returns:
      Step, tokens of text seen, learning rate of the last update, the training loss logged last, metrics of evaluators
      at this step, fingerprint of the data and versions; None of what is not known.
    """
    records = run_dir.records(directory)[0]
    names = tuple(f"{evaluator.called}/" for evaluator in config.evals)
    at_step = (record for record in records if record["step"] == step)
    measured = {key: value for record in at_step for key, value in record.items() if key.startswith(names)}
    losses = [record["train/loss"] for record in records if "train/loss" in record and record["step"] <= step]
    schedule = config.optimizer.schedule.within(config.train.steps)
    rate = schedule.build(config.optimizer.learning_rate, config.train.steps)
    return {
        "step": step,
        "tokens": tokens_seen(records, step),
        "learning_rate": float(rate(step - 1)) if step else None,
        "train_loss": losses[-1] if losses else None,
        "metrics": measured,
        "data": meta.get("data") or None,
        "environment": run_dir.receipt(directory).get("environment") or metrics.environment(),
    }


def tokens_seen(records: Sequence[Mapping[str, Any]], step: int) -> float | None:
    """Tokens of text of the steps up to one; None where the lines do not begin with the first step.

    A run that goes on from another one's state has lines of its own steps alone.

    Args:
      records: the lines of metrics.jsonl.
      step: of the checkpoint.

    Example: 100 steps of 10 tokens, then longer ones:
      >>> tokens_seen([{"step": 0, "phase/text_tokens_per_step": 10.0},
      ...              {"step": 100, "phase/text_tokens_per_step": 40.0}], 150)
      3000.0
    """
    starts = {x["step"]: x["phase/text_tokens_per_step"] for x in records if "phase/text_tokens_per_step" in x}
    if step and 0 not in starts:
        return None
    ends = itertools.pairwise((*sorted(start for start in starts if start < step), step))
    return float(sum(starts[start] * (end - start) for start, end in ends))
