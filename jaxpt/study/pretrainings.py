"""`jaxpt study`: trains several recipes on the same amount of text and compares them in a table.

Each row is a separate run in STUDY/ROW, by `jaxpt train` in a subprocess. A study has no state besides its runs. Re-run
the same command to resume.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config, sweeps
from jaxpt.config.files import override
from jaxpt.config.finetunings import SIMPLE, FineTuning, cells, fine_tuning, points
from jaxpt.config.kinds import nearest
from jaxpt.config.plain import get
from jaxpt.config.studies import ORIGIN, WRITTEN, Study, StudyRow, SweptRow, load_study, paths_in_study
from jaxpt.errors import RetryableError, StorageError, UserError
from jaxpt.metrics import describe
from jaxpt.runtime import disk, exit_codes, plugins, signals
from jaxpt.runtime.process import without_script
from jaxpt.study import children, curves, failures, finetunings, pace, recipes, tables
from jaxpt.study.children import Children, Stopped
from jaxpt.study.failures import Failure
from jaxpt.train import preflight
from jaxpt.train.display import number, say
from jaxpt.train.lock import hold, wait
from jaxpt.train.run_dir import has_checkpoint, receipt

PROGRAM = (sys.executable, "-m", "jaxpt")
"""What trains and probes a row: the words before the command."""
PACE = (sys.executable, "-m", "jaxpt.cli.children", "measure")
"""What measures its steps."""


def study(
    path: str, overrides: Sequence[str] = (), table: bool = False, stop: bool = False, parallel: int = 1,
    devices: str | None = None,
) -> int:  # fmt: skip
    """Trains the unfinished rows of a study, and writes table and picture after each row.

    Args:
      path: the study file.
      overrides: `key=value`, as in `load_study`.
      table: only write table and picture, from the existing run_dirs.
      stop: stop after the first row that fails.
      parallel: how many rows are trained at once.
      devices: numbers of devices, such as "0,1,2,3": a row is trained on each of them at once, and sees no other;
        fine-tunings run on the first.

    Returns:
      The exit code: 0 if all rows are finished, that of a failed row (`failures.exit_code`), 128 + signal number if
      stopped by a signal.

    Raises:
      UserError: the study file is invalid, its run_dir is an address, or another process runs the study.
    """
    plan = load_study(path, overrides)
    disk.check_mounted(plan.run_dir, f"{path}: run_dir: ")
    directory = Path(plan.run_dir)
    if table:
        with plugins.unread():
            tables.write(plan)
        say(_written(directory))
        return 0
    slots = children.slots(parallel, devices)
    for row in plan.rows:
        _check(plan, row, f"{path}: row {row.name}", overrides)
    _check_copies(plan, path)
    if plan.evaluate.finetune is not None:
        check_finetunings(plan, path)
    say(f"jaxpt study: {plan.name}, {len(plan.rows)} row(s) → {directory}\n{plan.question}")
    directory.mkdir(parents=True, exist_ok=True)
    child = Children()
    with hold(directory), signals.deferred(child.notify):
        try:
            failed = _rows(plan, path, child, stop, slots)
            if plan.evaluate.finetune is not None and not (failed and stop):
                write = functools.partial(tables.write, plan, dict(failed))
                failed |= finetunings.run(plan, say, child.set, write, failed, stop, children.environment(slots[0]))
                if signals.received() is not None:
                    raise Stopped
                write()
        except Stopped:
            tables.write(plan)
            number = signals.received()
            say(f"{signal.Signals(number).name}: stopped; re-run the same command to resume")
            signals.leave(number)
    say(_written(directory))
    for name, why in failed.items():
        say(f"{name} failed: {why}")
    return failures.exit_code(failed.values())


def _written(directory: Path) -> str:
    """Says which files of a study there are."""
    file_names = ("table.md", "table.json", "picture.png", "picture.svg")
    return f"written: {directory}/{', '.join(name for name in file_names if (directory / name).exists())}"


def _check(plan: Study, row: StudyRow, where: str, overrides: Sequence[str] = ()) -> None:
    """Finds what is wrong with a row before the first one starts, also with what the command line sets.

    Raises:
      UserError: names the row.
    """
    if not row.is_trained:
        return
    if isinstance(row, SweptRow) and row.seed not in (None, *plan.seeds[:1]):  # as the first seed
        return
    names = {other.name for other in plan.rows}
    waits = any(not receipt(Path(plan.run_dir) / name).get("finished") for name in names & {*origins(row)})
    if waits and {key for key, _ in paths_in_study(row)} - {*_STANDING_IN, *WRITTEN}:  # files that are still to be made
        return
    load = functools.partial(_as_if_trained, plan) if waits else recipes.load
    try:
        config = load(row.recipe, _overrides(plan, row), where)
        _check_phases(plan, config)
        _check_steps(plan, row, config, overrides)
        if waits:
            preflight.check_recipe(config)
        elif finished(plan, config) is None:
            preflight.check(config)
    except UserError as error:
        raise error if str(error).startswith(where) else UserError(f"{where}: {error}") from None


_STANDING_IN = ("init_from.path", "data.tokenizer.path", "objective.teacher")
"""Keys that may name a run that is not there yet: `_as_if_trained` takes the first two from its recipe."""


def _check_copies(plan: Study, path: str) -> None:
    """Raises UserError where rows have one `checkpoint.copy_to`: it is the copy of one run."""
    names: dict[Path, str] = {}
    for name, place in plan.copies().items():
        if (other := names.setdefault(Path(place).absolute(), name)) != name:
            raise UserError(
                f"{path}: checkpoint.copy_to: {place} is that of {other} and of {name}; each wants its own: "
                f"checkpoint.copy_to={place.rstrip('/')}/{{row}} in the study's set"
            )


def _check_phases(plan: Study, config: Config) -> None:
    """Raises UserError where a budget of tokens has no number of steps, as the phases' own steps are set."""
    if plan.tokens is not None and config.train.phases:
        raise UserError("train.phases: not supported in a study with tokens; set train.phases: []")


def _check_steps(plan: Study, row: StudyRow, config: Config, overrides: Sequence[str]) -> None:
    """Raises UserError where the command line or the grid sets the steps, and the budget of the row gives them.

    What the study's file sets is left alone: rows with phases keep its proportions.
    """
    budget = "minutes" if plan.tokens is None else "tokens"
    if plan.tokens is None and (plan.minutes_of(row) is None or len(config.train.phases) > 1):
        return
    for item in (*overrides, *(sweeps.overrides(row.point) if isinstance(row, SweptRow) else ())):
        tree: recipes.Tree = {}
        override(tree, {}, item)
        if get(tree, ("train", "steps")) is not None:
            raise UserError(f"{item}: has no effect: the study's {budget} give the steps; set {budget}=… instead")


def check_finetunings(plan: Study, path: str) -> dict[str, Config]:
    """Finds what is wrong with the fine-tunings of the rows before hours of pretraining.

    Args:
      plan: with `evaluate.finetune`.
      path: the study file, for messages.

    Returns:
      {name of a fine-tuning: its configuration}, of the first seed and the first start.

    Raises:
      UserError: names the fine-tuning.
    """
    tuned, checked = plan.evaluate.finetune, {}
    for cell in (cell for cell in cells(plan) if cell.start in (tuned.starts[0], SIMPLE)):
        for point in range(len(points(tuned, cell))):
            tuning = fine_tuning(plan, cell, point, tuned.seeds[0])
            try:
                config = _checked(plan, tuning)
                _check_metric(cell.task.metric, config)
                if config.checkpoint.copy_to is not None:
                    raise UserError("checkpoint.copy_to: would be the copy of several runs; leave it out")
            except UserError as error:
                raise UserError(f"{path}: fine-tuning {cell.name}: {error}") from None
            checked[tuning.name] = config
    return checked


def _checked(plan: Study, tuning: FineTuning) -> Config:
    """The configuration of a fine-tuning, or of a simple model."""
    row = tuning.cell.row
    if row.simple_model is not None:
        return recipes.load_data(tuning.recipe, tuning.overrides)[0]
    load = recipes.load if row.model is not None else functools.partial(_as_if_trained, plan)
    config = load(tuning.recipe, tuning.overrides, "its settings")
    preflight.check_recipe(config)
    return config


def _check_metric(metric: str | None, config: Config) -> None:
    """Raises UserError if a task does not measure what is to be compared."""
    if metric is None or config.task.kind == "mixture":
        return
    known = [name for scored in config.task.scored for name in describe(scored).values]
    if metric not in known:
        raise UserError(f"metric: {metric!r} is not measured{nearest(metric, known)}")


def _as_if_trained(plan: Study, recipe: str, overrides: Sequence[str], where: str) -> Config:
    """A recipe's configuration before the rows that it begins from are trained: their recipes say its model and
    vocabulary."""
    rows = {Path(plan.run_dir) / row.name: row for row in plan.rows if row.is_trained}

    def origin(path: Path, vocabulary: Any) -> tuple[recipes.Tree, recipes.Tree]:
        if (row := rows.get(configs.run_dir_of(path))) is None:
            return recipes.origin_of(path, vocabulary)
        config = _as_if_trained(plan, row.recipe, plan.overrides(row), where)
        return configs.dump(config)["model"], config.data.tokenizer.model_dump(mode="json", exclude_none=True)

    tree: recipes.Tree = {}
    for item in overrides:
        override(tree, {}, item, where)
    if Path(plan.run_dir) in Path(str(get(tree, ("data", "tokenizer", "path")))).parents:
        overrides = [*overrides, "data.tokenizer.path=null"]
    config = recipes.load(recipe, overrides, where, origin=origin)
    is_of_row = config.init_from is not None and configs.run_dir_of(config.init_from.path) in rows
    return config.model_copy(update={"init_from": None}) if is_of_row else config


def _rows(plan: Study, path: str, child: Children, stop: bool, slots: Sequence[str | None]) -> dict[str, Failure]:
    """Trains each unfinished row; returns {row: reason of failure}."""
    failed: dict[str, Failure] = {}
    untrained: dict[str, Failure] = {}  # of another one the probe may have failed
    rows = {row.name: row for row in plan.rows if row.is_trained}
    places, writing = {name: place for place, name in enumerate(rows, 1)}, threading.Lock()

    def run(name: str, device: str | None) -> bool:
        if signals.received() is not None:
            raise Stopped
        row, environment = rows[name], children.environment(device)
        say(f"row {places[name]} of {len(rows)}: {name}" + (f" on device {device}" if device else ""))
        prevented = _of_origin(plan, row, untrained)
        failure = prevented or _attempted(_train, plan, row, f"{path}: row {name}", child, environment)
        if failure:
            untrained[name] = failure
        failure = failure or _attempted(_probe, plan, row, child, environment)
        with writing:
            if failure:
                failed[name] = failure
                say(f"[{name}] {failure}" if prevented else f"[{name}] failed: {failure}")
            tables.write(plan, failed | {name: failure})
        return not (failure and stop)

    children.in_parallel([(name, origins(row)) for name, row in rows.items()], run, slots[: len(rows)])
    if not rows:  # each row's weights are there: no row has written the table
        tables.write(plan)
    return failed


def _attempted(part: Callable[..., Failure | None], *arguments: Any) -> Failure | None:
    """The reason of failure of a part of a row's training, if it fails."""
    try:
        return part(*arguments)
    except UserError as error:
        return failures.of_error(error)


def _of_origin(plan: Study, row: StudyRow, untrained: Mapping[str, Failure]) -> Failure | None:
    """Why a row cannot be started, if one that it begins from has failed, and it is not trained already."""
    origin = next((name for name in origins(row) if name in untrained), None)
    if origin is None or receipt(Path(plan.run_dir) / row.name).get("finished"):
        return None
    return Failure(f"not started: it begins from {origin}, which failed", untrained[origin].code)


def _train(plan: Study, row: StudyRow, where: str, child: Children, environment: Mapping[str, str]) -> Failure | None:
    """Trains or resumes a row; returns the reason of failure, if it fails."""
    overrides, minutes = _overrides(plan, row), plan.minutes_of(row)
    config = recipes.load(row.recipe, overrides, where)
    begun, weights = finetunings.begun(Path(config.run_dir)), _origins(plan, row)
    if begun and begun != weights:
        raise UserError(
            f"{config.run_dir}: began from {' and '.join(weights)} as before; delete it, or choose another "
            "run_dir=… for the study"
        )
    done = finished(plan, config)
    if done is not None:
        say(f"[{row.name}] is finished at step {done}")
        return None
    if plan.tokens is not None:
        steps = _counted(plan, config, child)
        overrides.append(f"train.steps={steps}")
        config = recipes.load(row.recipe, overrides, where)
    elif minutes is not None:
        words = {"recipe": str(row.recipe), "overrides": plan.overrides(row), "minutes": minutes}
        is_known = pace.known(recipes.load(row.recipe, words["overrides"], where), minutes) is not None
        if not is_known and (failure := children.run([*PACE, json.dumps(words)], row.name, child, environment)):
            return failure
        overrides = _overrides(plan, row)
        config = recipes.load(row.recipe, overrides, where)
    wait(Path(config.run_dir), row.name, say)
    if has_checkpoint(Path(config.run_dir)):
        finetunings.check_unchanged(config)
    if weights:
        Path(config.run_dir).mkdir(parents=True, exist_ok=True)
        disk.write_text(Path(config.run_dir) / finetunings.BEGUN, json.dumps(weights) + "\n")
    command = [*PROGRAM, "train", str(row.recipe), *overrides]
    return children.run(command, row.name, child, environment)


def _overrides(plan: Study, row: StudyRow) -> list[str]:
    """What is set over a row's recipe; with a budget of minutes its steps too, once they are known."""
    budget = pace.read(Path(plan.run_dir) / row.name, plan.minutes_of(row))
    return plan.overrides(row) + ([] if budget is None else budget.overrides)


def origins(row: StudyRow) -> list[str]:
    """Names of the rows that a row begins from, or learns from.

    Example:
      >>> origins(StudyRow(name="b", set={"init_from.path": "{study}/a"}))
      ['a']
    """
    return sorted({name for text in row.set for name in re.findall(ORIGIN, text)})


def _origins(plan: Study, row: StudyRow) -> dict[str, str | int | None]:
    """{row that this one begins from, or learns from: what its weights are}."""
    return {name: finetunings.weights(Path(plan.run_dir) / name) for name in origins(row)}


def _probe(plan: Study, row: StudyRow, child: Children, environment: Mapping[str, str]) -> Failure | None:
    """Runs the linear probe of a trained row, once; returns the reason of failure, if it fails."""
    settings, run_dir = plan.evaluate.probe, Path(plan.run_dir) / row.name
    if settings is None or curves.probe(run_dir, settings) is not None:
        return None
    words = [f"{key}={json.dumps(value)}" for key, value in settings.model_dump(mode="json").items()]
    return children.run([*PROGRAM, "probe", str(run_dir), *words], row.name, child, environment)


def finished(plan: Study, config: Config) -> int | None:
    """The last step of a row that was finished with these settings; None if it is not finished.

    Args:
      plan: the study.
      config: the row's configuration; `train.steps` is ignored if the study has a token budget. A run that
        `train.patience` ended is finished where it ended.

    Raises:
      UserError: the row was trained for more steps.
    """
    run_dir = Path(config.run_dir)
    run_receipt = receipt(run_dir)
    if not run_receipt.get("finished"):
        return None
    saved = configs.load(run_dir)
    if any(configs.differences(saved, config, role) for role in ("identity", "content")):
        return None
    steps = config.train.steps
    if plan.tokens is not None:
        steps = steps_of(plan.tokens, run_receipt["text_tokens_per_step"])
    if run_receipt["step"] > steps:
        raise UserError(
            f"{run_dir}: was trained for {run_receipt['step']} steps, but the study requires {steps}; "
            f"delete it, or choose another run_dir=… for the study"
        )
    is_over = config.train.patience is not None and (saved.train.patience, saved.train.steps) == (
        config.train.patience, steps
    )  # fmt: skip
    return run_receipt["step"] if is_over or run_receipt["step"] == steps else None


def budget(plan: Study, config: Config) -> int:
    """Number of steps of a row for the study's token budget; prepares the row's data to count its tokens.

    Args:
      plan: the study, with `tokens`.
      config: the row's configuration.

    Raises:
      UserError: the recipe has phases, or its data cannot be prepared.
    """
    _check_phases(plan, config)
    from jaxpt.data import preparing

    name = Path(config.run_dir).name
    data = preparing.prepare(config, report=lambda line: say(f"[{name}] {line}"), save=False)
    per_step = config.data.batch_size * data.text_per_row
    steps = steps_of(plan.tokens, per_step)
    say(f"[{name}] {number(plan.tokens)} tokens of text, {per_step:,.0f} per step: {steps} steps")
    return steps


class _UnexpectedError(UserError):
    """The data were not prepared because of an error that jaxpt did not expect."""

    exit_code = failures.UNEXPECTED


def _counted(plan: Study, config: Config, child: Children) -> int:
    """`budget` in a subprocess, so that TensorFlow does not stay in this process's memory."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_count, args=(theirs, plan, config))
    with without_script():
        process.start()
    theirs.close()
    child.set(process.pid)
    try:
        answer = ours.recv()
    except EOFError:
        if signals.received() is not None:
            raise Stopped from None
        process.join()
        words = f"{config.run_dir}: the process that prepared the data"
        answer = RetryableError(f"{words} was terminated")
        if process.exitcode == failures.UNEXPECTED:
            answer = _UnexpectedError(f"{words} failed with an error that jaxpt did not expect; its traceback is above")
    finally:
        child.set(None)
        process.terminate()
        process.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _count(answer: Connection, plan: Study, config: Config) -> None:
    """Sends the number of steps, or a UserError; another exception ends the process with its traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit on a signal, without a traceback
    try:
        with plugins.explained():
            steps = budget(plan, config)
        answer.send(steps)
    except UserError as error:
        answer.send(error)
    except ModuleNotFoundError as error:
        answer.send(UserError(str(error)))
    except OSError as error:
        answer.send((StorageError if exit_codes.of(error) == exit_codes.STORAGE else UserError)(str(error)))


def steps_of(tokens: int, per_step: float) -> int:
    """Number of steps for a number of tokens, at least one.

    Example:
      >>> steps_of(1_000_000, 32 * 125.3)
      249
    """
    return max(round(tokens / per_step), 1)
