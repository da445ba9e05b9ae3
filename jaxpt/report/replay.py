"""`jaxpt replay RUN_DIR --step N`: one step of a run again, with the norms of every layer and the text of its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import preparing
from jaxpt.data.base import Data
from jaxpt.data.fingerprint import order_of
from jaxpt.errors import UserError
from jaxpt.report.batches import Shown, segments
from jaxpt.report.facts import facts
from jaxpt.report.inspect import show
from jaxpt.runtime.progress import counted
from jaxpt.train import checkpoint, initial, spikes, state, step, teachers
from jaxpt.train import run_dir as run_dirs

KINDS = ("gradient", "update", "parameter")
_MOST_LAYERS = 30


@dataclasses.dataclass
class Replayed:
    """What a step gave."""

    step: int
    batch_number: int
    start: int
    """The checkpoint's step that the replay began with."""
    figures: dict[str, float]
    """Loss, its parts, gradient norm."""
    norms: dict[str, dict[str, float]]
    """{parameter, with its layer: {"gradient", "update", "parameter": Euclidean norm}}."""
    batch: dict[str, np.ndarray]
    data: Data


def replay(path: str, at: int, batch_number: int | None = None, count: int = 4) -> None:
    """Prints what a step of a run did.

    Args:
      path: the run's directory.
      at: the step, from 1.
      batch_number: take this batch of the phase's stream instead of the step's own.
      count: how many rows are shown.

    Raises:
      UserError: no checkpoint is from before the step.
    """
    run_dir = Path(path)
    replayed = run(configs.load(run_dir), run_dir, at, batch_number)
    console = Console(highlight=False, emoji=False)
    between = at - 1 - replayed.start
    again = f", after {between} steps from there" if between else ""
    console.print(f"step {at}: batch {replayed.batch_number} of the stream, from the checkpoint of step "
                  f"{replayed.start}{again}", soft_wrap=True)  # fmt: skip
    console.print("  ".join(f"{name} {value:.4g}" for name, value in replayed.figures.items()), soft_wrap=True)
    console.print(_table(replayed.norms))
    show(f"rows of batch {replayed.batch_number}", "", _rows(replayed, count))


def run(config: Config, run_dir: Path, at: int, batch_number: int | None = None) -> Replayed:
    """Runs the steps from the newest checkpoint before a step up to it; nothing is written.

    Args:
      config: the run's configuration.
      run_dir: where its checkpoints are.
      at: the step, from 1.
      batch_number: as of `replay`.
    """
    if not 1 <= at <= config.train.steps:
        raise UserError(f"--step {at}: the run has steps 1 to {config.train.steps}")
    setup = teachers.attach(state.setup(config), print)
    with checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True) as saved:
        starts = [n for n in saved.steps() if n < at and saved.damage(n) is None]
        if not starts:
            steps = ", ".join(map(str, saved.steps())) or "none"
            raise UserError(f"{run_dir}: no whole checkpoint is from before step {at}; those there are: {steps}")
        start = starts[-1]
        meta, current = saved.meta(start), saved.restore(initial.setup_at(setup, start), start)
        known = _rewinds(config, run_dir, saved, start)
    stages = configs.train_stages(config)
    first, last = (configs.phase_of(config, n) for n in (start + 1, at))
    for index in range(first, last + 1):
        end = min(at, stages[index + 1].start) if index < last else at
        phase_setup = setup.for_phase(configs.at_phase(config, index), index)
        data = preparing.prepare(phase_setup.config, stages[index].phase, save=False, order=order_of(meta["data"]))
        data_start = stages[index].phase_start
        if int(current.step) == stages[index].start:
            current = phase_setup.begin_phase(current, new_data=int(current.step) == data_start)
        with phase_setup.use():
            current = _steps(phase_setup, data, known, current, end - (index == last), data_start)
            if index == last:
                number = known.batch_number(at, data_start) if batch_number is None else batch_number
                return _last(phase_setup, data, current, at, number, start)
    raise AssertionError("the last phase has the step")


def _rewinds(config: Config, run_dir: Path, saved: checkpoint.Checkpoints, start: int) -> spikes.Rewinds:
    """What the run left out in the steps after a checkpoint; one that it went back to was saved before that."""
    later = next((n for n in saved.steps() if n > start and saved.damage(n) is None), None)
    ended = run_dirs.receipt(run_dir) if later is None else {}
    if ended.get("step", 0) > start:
        return spikes.Rewinds(config, {"spikes": ended})
    return spikes.Rewinds(config, saved.meta(start if later is None else later))


def _steps(
    setup: state.Setup, data: Data, known: spikes.Rewinds, current: state.State, end: int, data_start: int
) -> state.State:
    """The steps up to `end`, with the run's own program."""
    done = int(current.step)
    if done >= end:
        return current
    train_step = step.make_train_step(setup, setup.config.objective)
    batches = known.batches(data.train, done, data_start)
    for _, batch in counted(zip(range(done, end), batches), "running again", end - done, "steps"):
        current, _ = train_step(current, step.put(batch, setup), *setup.teacher_params())
    return current


def _last(setup: state.Setup, data: Data, current: state.State, at: int, number: int, start: int) -> Replayed:
    """One step, with norms."""
    config = setup.config.model_copy(update={"train": setup.config.train.model_copy(update={"layer_norms": True})})
    batch = next(data.train.batches(number))
    train_step = step.make_train_step(dataclasses.replace(setup, config=config), config.objective)
    _, device_figures = train_step(current, step.put(batch, setup), *setup.teacher_params())
    values = jax.device_get(device_figures)
    figures = {name: float(x) for name, x in values.items() if np.ndim(x) == 0 and "_norm/" not in name}
    norms: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        for name in (name for name in values if name.startswith(f"{kind}_norm/")):
            per_layer = np.atleast_1d(values[name])
            for layer, norm in enumerate(per_layer):
                suffix = f"[{layer}]" if np.ndim(values[name]) else ""
                norms.setdefault(name.partition("/")[2] + suffix, {})[kind] = float(norm)
    return Replayed(at, number, start, figures, norms, batch, data)


def _table(norms: Mapping[str, Mapping[str, float]]) -> Table:
    """The parameters with the largest gradients."""
    table = Table("parameter", *(f"{kind} norm" for kind in KINDS), box=None)
    ordered = sorted(norms.items(), key=lambda entry: -entry[1]["gradient"])
    for name, kinds in ordered[:_MOST_LAYERS]:
        table.add_row(name.replace("[", "\\["), *(f"{kinds[kind]:.3g}" for kind in KINDS))
    if len(ordered) > _MOST_LAYERS:
        table.add_row(f"and {len(ordered) - _MOST_LAYERS} more", *[""] * len(KINDS))
    return table


def _rows(replayed: Replayed, count: int) -> list[Shown]:
    """The first rows of the batch, with the place that they are from where the stream knows it."""
    stream, shown = replayed.data.train, []
    size = len(next(iter(replayed.batch.values())))
    for row in range(min(count, size)):
        index = replayed.batch_number * size + row
        example: dict[str, Any] = {name: x[row] for name, x in replayed.batch.items()}
        if hasattr(stream, "example"):
            example |= stream.example(index)
        shown.append(Shown(index, facts(example), segments(example, replayed.data.tokenizer)))
    return shown
