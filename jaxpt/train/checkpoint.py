"""Checkpoints of a run: Orbax, asynchronous, atomic; when they are saved; what is kept, restored, branched from.

`RUN_DIR/checkpoints/STEP/` holds `state` (parameters, optimizer state, average, step, what goes from batch to batch)
and `meta` (the data's fingerprint). Each has its files' checksums, which also name the step and the run: the run's id
is random, and kept in `checkpoints/run_id` from its first save on. Nothing is read before all of that is compared, so a
file that was altered, a checkpoint that was renamed and one of another run are found. A run_dir may be moved or copied.
A directory without Orbax's commit mark is a save that was cut off: it is never read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import traverse_util
from orbax.checkpoint import checkpoint_managers as policies

from jaxpt.config import CheckpointConfig, run_dir_of
from jaxpt.errors import RetryableError, UserError, listed
from jaxpt.models import parts
from jaxpt.parallel import distributed, processes
from jaxpt.runtime import disk, signals
from jaxpt.train import checksums, corruption, handlers, lora, spikes, stored, trainable
from jaxpt.train.run_dir import RUN_ID, receipt
from jaxpt.train.state import Setup, State

SAVE, STOP = 1, 2
"""What a process may wish after a step (`distributed.AnyProcess`)."""


class AlteredError(RetryableError):
    """A restored state has not the bits that were saved, though its files are as they were written."""


class _Oldest(policies.PreservationPolicy):
    """Keeps the oldest checkpoint: that of the state with which the run began, at step 0 or where it branched."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """True of the first of the checkpoints, which come in the order of their steps."""
        return [number == 0 for number in range(len(checkpoints))]


class Checkpoints:
    """The checkpoints of one run_dir."""

    def __init__(self, run_dir: Path, config: CheckpointConfig, read_only: bool = False) -> None:
        disk.check_path(run_dir)
        self.directory = run_dir.absolute() / "checkpoints"
        self._contents = config.verify == "contents"
        self._whole: set[int] = set()
        lower_is_better = config.best_mode == "min"
        worst = math.inf if lower_is_better else -math.inf

        def rank(metrics: Mapping[str, float]) -> float:
            return metrics.get(config.best_metric, worst)  # that of another run of this run_dir may have been another

        keep: list[Any] = [policies.LatestN(config.keep_last)]
        if config.keep_best:
            best = {"get_metric_fn": rank, "reverse": lower_is_better, "keep_checkpoints_without_metrics": False}
            keep.append(policies.BestN(n=config.keep_best, **best))
        if config.keep_every:
            keep.append(policies.EveryNSteps(config.keep_every))
        if config.save_initial_state:
            keep.append(_Oldest())
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(keep),
            best_fn=rank,
            best_mode=config.best_mode,
            cleanup_tmp_directories=not read_only,
            create=not read_only,
            read_only=read_only,
        )
        self._best_metric = config.best_metric
        self._drop_unreadable_figures(read_only)
        self._handlers = {"state": handlers.StateHandler(), "meta": handlers.MetaHandler()}
        registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
        for args in (ocp.args.StandardSave, ocp.args.StandardRestore):
            registry.add("state", args, self._handlers["state"])
        for args in (ocp.args.JsonSave, ocp.args.JsonRestore):
            registry.add("meta", args, self._handlers["meta"])
        self._manager = ocp.CheckpointManager(self.directory, options=options, handler_registry=registry)

    def _drop_unreadable_figures(self, read_only: bool) -> None:
        """Orbax reads the metrics of all checkpoints at once: broken ones count as not measured."""
        for file in self.directory.glob("*/metrics/metrics"):
            try:
                for value in json.loads(file.read_text(encoding="utf-8")).values():
                    float(value)
            except FileNotFoundError:  # another process was first
                continue
            except (ValueError, TypeError, AttributeError):
                if read_only:
                    raise UserError(f"{file} is altered: it holds no metrics; delete {file.parent}") from None
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(file.parent)

    def steps(self) -> list[int]:
        """Steps of all checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def finished_steps(self) -> list[int]:
        """Steps of the checkpoints that are whole on the disk, ascending; may be asked in any thread."""
        return sorted(int(path.name) for path in self.directory.glob("*") if path.name.isdigit())

    def best(self) -> int | None:
        """The step with the best `checkpoint.best_metric`; None where no checkpoint has it."""
        step = self._manager.best_step()
        measured = None if step is None else self._manager.metrics(step)
        return step if measured and self._best_metric in measured else None

    def metrics(self, step: int) -> dict[str, float]:
        """What was measured at `step`: {metric: value}, as `save` was given it; {} if it was not."""
        return dict(self._manager.metrics(step) or {})

    def newest_whole(self, report: Callable[[str], None]) -> int | None:
        """The step to go on from; newer checkpoints, that are damaged, are put aside as `STEP.damaged`.

        Process 0 decides for all: others would read what it renames.

        Args:
          report: called with a line for each of them.

        Returns:
          The step, None where there are no checkpoints.

        Raises:
          UserError: there are checkpoints, and all of them are damaged.
        """
        newest = processes.from_first("the newest checkpoint", self._newest_whole(report) if is_primary() else None)
        steps = self.steps()
        if newest is None and steps:
            restore = "no other checkpoint is whole: restore the file, or delete the run_dir"
            raise UserError(f"{self.damage(steps[-1])}; {restore}")
        if steps and newest < steps[-1]:
            self._manager.reload()
        return newest

    def _newest_whole(self, report: Callable[[str], None]) -> int | None:
        """`newest_whole` of process 0; None where there is none, and nothing is put aside."""
        damaged: list[tuple[int, str]] = []
        for step in reversed(self.steps()):
            if (damage := self.damage(step)) is None:
                for bad, reason in damaged:
                    self._put_aside(bad, reason, report)
                return step
            damaged.append((step, damage))
        return None

    def _put_aside(self, step: int, damage: str, report: Callable[[str], None]) -> None:
        report(f"{damage}; put aside as {step}.damaged")
        if is_primary():
            aside = self.directory / f"{step}.damaged"
            shutil.rmtree(aside, ignore_errors=True)
            (self.directory / str(step)).rename(aside)

    def put_aside(self, step: int, damage: str, report: Callable[[str], None]) -> None:
        """Renames a checkpoint that turned out to be damaged, unless it is the only one.

        Args:
          step: of the checkpoint.
          damage: what is wrong with it.
          report: called with a line.

        Raises:
          UserError: there is no other one.
        """
        if self.steps() == [step]:
            raise UserError(f"{damage}; there is no other checkpoint: delete the run_dir to begin anew")
        self._put_aside(step, damage, report)
        self._manager.reload()

    def damage(self, step: int) -> str | None:
        """What is wrong with a checkpoint: the first file that is missing or altered, or that is not of this step and
        run, or arrays that do not open; None where it is whole."""
        if step in self._whole:
            return None
        directory = self.directory / str(step)
        for part in (directory / "meta", directory / "state"):
            if damage := checksums.damage(part, self._contents) or self._misplaced(part, step):
                return damage
        damage = handlers.unreadable(directory / "state")
        if damage is None:
            self._whole.add(step)
        return damage

    def _misplaced(self, part: Path, step: int) -> str | None:
        """What a part of a checkpoint belongs to, where that is not this step of this run."""
        owner, file = checksums.owner(part), self.directory / RUN_ID
        if not (isinstance(owner, dict) and owner.keys() == {"run", "step"}):
            return f"{part / checksums.NAME} is altered: it names no step and no run"
        if owner["step"] != step:
            return f"{part} is of step {owner['step']}, not {step}: it was renamed, or put in another's place"
        if not file.is_file():
            return f"{file} is missing: it holds the run's id, which is {owner['run']} by {part / checksums.NAME}"
        run = _id_in(file)
        return None if owner["run"] == run else f"{part} is of another run: {owner['run']}, the id in {file} is {run}"

    def check(self, step: int) -> None:
        """Raises UserError where a checkpoint is not whole, or not of this step and run."""
        if (damage := self.damage(step)) is not None:
            others = ", ".join(str(other) for other in self.steps() if other != step) or "none"
            raise UserError(f"{damage}; other checkpoints there: {others}")

    def save(self, state: State, meta: dict[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Starts to save in the background; the state may be donated as soon as this returns.

        Args:
          state: the state after its `step` updates.
          meta: JSON values kept beside it.
          metrics: what was measured at that step; `checkpoint.best_metric` among them ranks it for `keep_best`.
        """
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        args = ocp.args.Composite(state=ocp.args.StandardSave(_tree(state)), meta=ocp.args.JsonSave(meta))
        finite = {name: float(x) for name, x in (metrics or {}).items() if math.isfinite(x)}
        with self._saving():
            self._manager.wait_until_finished()  # raises what went wrong in the save before
            if is_primary():
                for handler in self._handlers.values():
                    handler.of = {"run": run_id(self.directory), "step": step}
            self._manager.save(step, args=args, metrics=finite if self._best_metric in finite else None)

    def add_figures(self, step: int, metrics: Mapping[str, float]) -> None:
        """Puts what was measured later beside a checkpoint that was saved without, so that it is ranked as the others
        and its model has all that is chosen on the validation set.

        All processes call it: process 0 writes, then all read.

        Args:
          step: of the checkpoint.
          metrics: as in `save`.
        """
        finite = {name: float(x) for name, x in metrics.items() if math.isfinite(x)}
        file = self.directory / str(step) / "metrics" / "metrics"
        saved = self.metrics(step)
        if self._best_metric in saved | finite and is_primary() and not finite.keys() <= saved.keys():
            file.parent.mkdir(exist_ok=True)
            disk.write_text(file, json.dumps(finite | saved))
        processes.from_first("figures of an earlier evaluation")
        self._manager.reload()

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Turns the disk's errors into a line for the user."""
        try:
            yield
        except Exception as error:
            number, is_late = disk.error_number(error), isinstance(error, TimeoutError)
            if number is None and not is_late:
                raise
            whole = self.steps()
            newest = f"the newest checkpoint is that of step {whole[-1]}" if whole else "there is no checkpoint yet"
            # Orbax reads the clock that can be set, not the one that only runs.
            late = "the save took too long, or the clock was set during it; re-run the same command to resume"
            reason = late if is_late or number is None else os.strerror(number)
            kind = RetryableError if is_late or number is None else UserError  # else by its number
            raise kind(f"{self.directory}: cannot save: {reason}; {newest}") from error

    def meta(self, step: int) -> dict[str, Any]:
        """What was kept beside the state of `step`."""
        self.check(step)
        return self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta

    def restore(self, setup: Setup, step: int) -> State:
        """The state of `step`, each array placed where the setup wants it, on any mesh."""
        self.check(step)
        saved, abstract_state = self._manager.item_metadata(step).state, setup.placed_shapes()
        wants_none = abstract_state.scale is None  # whatever the checkpoint has
        scale = spikes.fresh(np) if wants_none else abstract_state.scale
        abstract_state = abstract_state.replace(scale=scale if "scale" in saved else None)
        run_dir = self.directory.parent
        if saved["opt_state"] is None:
            start = f"start one from them: init_from.path={run_dir} run_dir=…"
            raise UserError(f"{run_dir}: holds imported weights alone, no run to go on with; {start}")
        stored.compare_model(self.directory / str(step), saved["params"], abstract_state.params)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(_tree(abstract_state)))
        try:
            state = State(**self._manager.restore(step, args=args).state)
        except ValueError as error:  # Orbax's, with a line for each array that one side lacks
            lines = [line for line in str(error).splitlines() if line.startswith("opt_state")]
            if not lines:
                raise
            reason = f"its optimizer state is laid out as by an earlier version, at {lines[0].rstrip(':')}"
            weights = f"start a new run from its weights: init_from.path={run_dir} run_dir=…"
            raise UserError(f"{self.directory / str(step)}: {reason}; {weights}") from error
        stored.compare_step(self.directory / str(step), state.step)
        if altered := corruption.changed(self.meta(step).get("digests", {}), state):
            raise AlteredError(
                f"{self.directory / str(step)}: {listed(altered, 2)} are not what was saved: their digests differ"
            )
        if (state.scale is None) != wants_none:
            state = state.replace(scale=setup.empty_scale())
        return state

    def restore_params(self, setup: Setup, step: int) -> Any:
        """The model's parameters alone of `step`: their average where the checkpoint has one, adapters merged.

        Args:
          setup: where they are placed, and how their segments are split; those of the checkpoint may be otherwise.
          step: of the checkpoint.
        """
        self.check(step)
        directory, abstract_state = self.directory / str(step), setup.placed_shapes()
        sources = stored.sources(self._manager.item_metadata(step).state)
        model = stored.shapes(stored.sources({"params": abstract_state.params}))
        stored.compare_model(directory, stored.shapes(sources), model)
        places = traverse_util.flatten_dict(abstract_state.params, sep="/")
        alike = sources.keys() == places.keys() and not any(map(stored.is_adapter, sources))
        if not alike:
            axes = traverse_util.flatten_dict(setup.network.logical_axes(), sep="/")
            places = stored.placed(sources, axes, setup.mesh, setup.table)
        flat = {f"{sources[path][0]}/{path}": x for path, x in places.items()}
        target = {"step": abstract_state.step, **traverse_util.unflatten_dict(flat, sep="/")}
        restore_args = ocp.checkpoint_utils.construct_restore_args(target)
        args = ocp.args.PyTreeRestore(item=target, restore_args=restore_args, partial_restore=True)
        with contextlib.closing(handlers.ArraysHandler()) as reader:
            restored = reader.restore(directory / "state", args=args)
        stored.compare_step(directory, restored["step"])
        params = trainable.merge(restored.get("params", {}), restored.get("ema", {}))
        if alike:
            return params
        adapter = stored.adapter(self.directory.parent, sources)

        def to_model(params: Any) -> Any:
            flat = traverse_util.flatten_dict(lora.merged(adapter, params), sep="/")
            whole = traverse_util.unflatten_dict(parts.join(flat, jnp.concatenate), sep="/")
            return parts.split(whole, setup.layout.parts)

        with setup.use():
            return jax.jit(to_model, out_shardings=setup.for_evaluation().shardings.params)(params)

    def wait(self) -> None:
        """Returns when the last save is whole on the disk."""
        with self._saving():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save and ends the background threads."""
        with self._saving():
            self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tree(state: State) -> dict[str, Any]:
    """A state by its fields; `carry` and `scale` are saved only if they are not None."""
    optional = ("carry", "scale")
    return {name: value for name, value in vars(state).items() if name not in optional or value is not None}


def run_id(directory: Path) -> str:
    """The id of the run whose checkpoints are in a directory; it gets a new one where it has none.

    Args:
      directory: `RUN_DIR/checkpoints`.
    """
    file = directory / RUN_ID
    if not file.is_file():
        disk.write_text(file, secrets.token_hex(8) + "\n")
    return _id_in(file)


def _id_in(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace").strip()


def named_step(path: str | Path) -> tuple[Path, int] | None:
    """(run_dir, step) where a path is `RUN_DIR/checkpoints/STEP`, else None."""
    run_dir, path = run_dir_of(path), Path(path)
    return None if run_dir == path else (run_dir, int(path.name))


def find(path: str | Path, step: int | None = None) -> tuple[Path, int]:
    """The run_dir and step that a user means.

    Args:
      path: a run_dir, or one of its `checkpoints/STEP` directories.
      step: the step; None for the newest, or the best one of a finished run that was scored on a task.

    Returns:
      (run_dir, step).

    Raises:
      UserError: there is no such checkpoint, those that exist are named; or the path names another step.
    """
    run_dir, named = named_step(path) or (Path(path), step)
    if step not in (None, named):
        raise UserError(f"{path}: is the checkpoint of step {named}, but step {step} is asked for; leave out one")
    step = named
    if not (run_dir / "checkpoints").is_dir():
        raise UserError(f"{path}: is no run_dir, it holds no checkpoints")
    with Checkpoints(run_dir, CheckpointConfig(), read_only=True) as saved:
        steps = saved.steps()
    if not steps:
        raise UserError(f"{path}: has no checkpoint yet")
    if step is not None and step not in steps:
        raise UserError(f"{path}: has no checkpoint of step {step}; there are: {', '.join(map(str, steps))}")
    if step is None:
        best = receipt(run_dir).get("best_step")
        step = best if best in steps else steps[-1]
    return run_dir, step


def is_primary() -> bool:
    """Whether this process writes what is written once."""
    return jax.process_index() == 0


# ---- when a run saves besides every n steps, and how long a save may take -------------------------------------------


class SaveClock:
    """Says after which steps all processes save or stop, because one of them wishes it."""

    def __init__(self, config: CheckpointConfig, votes: distributed.AnyProcess) -> None:
        """The time of `config.every_minutes` begins now."""
        self._minutes, self._votes = config.every_minutes, votes
        self._began, self._saved_step = time.monotonic(), -1

    def wish(self, done: int) -> int:
        """What all processes do after `done` steps: SAVE, STOP or 0; all must ask equally often.

        A vote that was under way during a save does not ask for another one.
        """
        wish = STOP if signals.received() is not None else SAVE if self._is_due() else 0
        vote = self._votes(wish)
        return 0 if vote == SAVE and done <= self._saved_step + 1 else vote

    def _is_due(self) -> bool:
        is_late = self._minutes is not None and time.monotonic() - self._began > 60 * self._minutes
        return signals.save_requested() or (is_late and is_primary())

    def saved(self, step: int) -> None:
        """A checkpoint of a step was begun: the clock starts again."""
        self._began, self._saved_step = time.monotonic(), step
        signals.clear_save_request()


def hard_end(config: CheckpointConfig, finished_steps: Callable[[], Sequence[int]]) -> signals.Callback:
    """What ends the process when most of `checkpoint.grace_seconds` is over after a signal.

    Args:
      config: says how many seconds there are.
      finished_steps: the steps of the checkpoints that are complete.
    """
    if config.grace_seconds is None:
        return lambda number: None

    def message() -> str:
        saved = finished_steps()
        newest = f"that of step {saved[-1]}" if saved else "none"
        end = f"checkpoint.grace_seconds={config.grace_seconds:g} end"
        return f"{end} before the save does; the newest checkpoint is {newest}"

    return signals.hard_end(0.9 * config.grace_seconds, message)
