"""`jaxpt baseline`: the simple models of a recipe's task, as a table, as JSON, or as a run that a study compares."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import errors
from jaxpt.config import Config
from jaxpt.config.files import read
from jaxpt.errors import UserError
from jaxpt.evals.simple_models import measure as measuring
from jaxpt.evals.simple_models.base import Candidate, Splits
from jaxpt.evals.simple_models.beside import SIGNIFICANT
from jaxpt.evals.simple_models.measure import Measured
from jaxpt.runtime import disk
from jaxpt.runtime.progress import track
from jaxpt.runtime.terminal import print_table
from jaxpt.study.recipes import load_data
from jaxpt.train import run_dir as run_dirs
from jaxpt.train.preflight import check_repeated_files


def baseline(
    path: str, overrides: Sequence[str] = (), models: str = "", out: str | None = None, save: bool = False
) -> None:
    """Trains the simple models of a recipe's task, and prints their scores.

    Args:
      path: a recipe with a `task`; it need not say from which model it starts.
      overrides: `key=value`.
      models: names of models, with commas; all by default.
      out: a JSON file of the scores.
      save: write run.json and the predictions of the best model into `run_dir`, as a fine-tuning does.

    Raises:
      UserError: the recipe has no task, there is no such model, or the rows are not as they should be.
    """
    from jaxpt.data.labelled.checks import check
    from jaxpt.data.parts import each_task, named

    if Path(path).is_file() and "form" in read(Path(path))[0]:
        raise UserError(f"{path}: is a task of the harness: jaxpt eval --tasks has baselines; name a recipe")
    config, _ = load_data(path, overrides, errors.note)
    if config.task is None:
        raise UserError(f"{path}: key task is missing: simple models are for labelled tasks")
    names = [name.strip() for name in models.split(",") if name.strip()]
    tasks = each_task(config)
    if save and len(tasks) > 1:
        raise UserError("--save: is for one task, and task.kind is mixture; name a recipe of one of its tasks")
    for name, task_config in tasks.items():
        with named(name):
            measuring.offered(task_config, names)
    check(config)
    check_repeated_files(config)
    found: dict[str, Any] = {}
    for name, task_config in tasks.items():
        begun = time.time()
        with named(name):
            splits, left_out = measuring.read_splits(task_config, seed=config.seed)
            measured, chosen = _measure(task_config, names, splits, left_out)
        _print(name or task_config.task.name or task_config.task.kind, measured)
        found[name] = as_json(measured)
        if save:
            _save(config, splits, measured, chosen, time.time() - begun)
    if out is not None:
        disk.write_text(Path(out), json.dumps(found if len(found) > 1 else found.popitem()[1], indent=2) + "\n")


def _measure(
    config: Config, names: Sequence[str], splits: Splits, left_out: int
) -> tuple[Measured, dict[str, Candidate]]:
    models = measuring.offered(config, names)
    with track("fitting", len(models), "models") as work:
        return measuring.measure(config, models, splits, left_out, lambda model: work.add())


def as_json(measured: Measured) -> dict[str, Any]:
    """The scores, ready for JSON; the best model's name among them."""
    fields = dataclasses.asdict(measured)
    for score in fields["scores"]:
        del score["without"]
    return {"best": measured.best.model, "split": measured.split, **fields}


def _print(name: str, measured: Measured) -> None:
    """A table of the models, the constant baseline first, and what it says."""
    split, rows = measured.split, measured.rows
    left_out = f" ({measured.left_out:,} more were left out)" if measured.left_out else ""
    chosen = "" if split == "validation" else f" chosen on {rows['validation']:,} validation rows,"
    print(f"{name}: {rows['train']:,} training rows{left_out},{chosen} scored on {rows[split]:,} {split} rows")
    values = list(measured.scores[0].metrics[split])
    heads = ["model", measured.metric, "± s.e.", *(value for value in values if value != measured.metric)]
    heads += ["chosen", "features", "seconds"]
    print_table(heads, list(_rows(measured, heads[3:-3])), range(1, len(heads)))
    best = measured.best
    score = f"{measured.metric} {best.metrics[split][measured.metric]:.4f}"
    error = "" if best.error is None else f" ± {best.error:.4f}"
    print(
        f"best on the validation set: {best.model}, {score}{error}. A fine-tuned model should beat it by more than "
        f"{SIGNIFICANT:g} standard errors of the difference"
    )


def _rows(measured: Measured, others: Sequence[str]) -> Iterator[list[str]]:
    """The rows of the table."""
    split = measured.split
    constant = {name: x for name, x in measured.constant[split].items() if name not in measured.baseline_names}
    if constant:
        numbers = [_number(constant, value) for value in others]
        yield ["constant baseline", _number(constant, measured.metric), "", *numbers, "", "", ""]
    for score in measured.scores:
        error = "" if score.error is None else f"{score.error:.4f}"
        metrics = score.metrics[split]
        yield [
            score.model, _number(metrics, measured.metric), error, *(_number(metrics, value) for value in others),
            score.setting, f"{score.features:,}" if score.features else "", f"{score.seconds:.1f}",
        ]  # fmt: skip


def _number(metrics: Mapping[str, float], value: str) -> str:
    return f"{metrics[value]:.4f}" if value in metrics else ""


def _save(config: Config, splits: Splits, measured: Measured, chosen: Mapping[str, Candidate], seconds: float) -> None:
    """Writes what a study reads of a fine-tuning: config.yaml, predictions, and run.json when all is there."""
    run_dir, split, best = Path(config.run_dir), measured.split, measured.best
    if (run_dir / "checkpoints").exists():
        raise UserError(f"--save: {run_dir} has a trained model; choose another run_dir")
    run_dir.mkdir(parents=True, exist_ok=True)
    run_dirs.save_config(config)
    rows = zip(splits.rows[split], splits.targets[split], chosen[best.model].predictions[split], strict=True)
    predictions = (
        {
            "id": config.task.row_id(row),
            "target": config.task.named(target, row.row, row.where),
            "prediction": config.task.named(prediction, row.row, row.where),
        }
        for row, target, prediction in rows
    )
    run_dirs.write_lines(run_dir / "evaluations" / f"predictions_{split}.jsonl", predictions)
    key, constant_key = ("test", "test_constant") if split == "test" else ("best", "task_constant")
    run_dirs.write_receipt(
        run_dir,
        {
            "finished": True, "step": 0, "wall_seconds": round(seconds, 1), "simple_model": as_json(measured),
            "best_value": best.metrics["validation"][measured.metric],
            "best_mode": "min" if measured.lower_is_better else "max",
            key: best.metrics[split], constant_key: measured.constant[split],
        },
    )  # fmt: skip
