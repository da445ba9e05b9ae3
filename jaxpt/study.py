"""`jaxpt study`: several recipes on the same amount of text, one after the other, and one table of them.

Each row is a run of its own, `jaxpt train` in a process of its own, in STUDY/ROW. What a row was and how it went is
read from there: a study has no state besides its rows, and goes on by being started again.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from jaxpt import config as configs
from jaxpt import disk, signals
from jaxpt.config import Config
from jaxpt.config.studies import Study, StudyRow, load_study
from jaxpt.errors import UserError
from jaxpt.report import curves, studies
from jaxpt.train.display import console, number
from jaxpt.train.lock import hold


class Child:
    """The process that the study waits for; a signal is passed on to it."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._received: int | None = None
        self._lock = threading.Lock()

    def set(self, pid: int | None) -> None:
        """The process is `pid` from now on; None: there is no process."""
        with self._lock:
            self._pid = pid
            if self._received is not None:
                self._send(self._received)

    def notify(self, number: int) -> None:
        """Passes a signal on."""
        with self._lock:
            self._received = number
            self._send(number)

    def _send(self, number: int) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)


class Stopped(Exception):
    """A signal came: the rows that are left are not started."""


def study(path: str, overrides: Sequence[str] = (), table: bool = False, stop: bool = False) -> int:
    """Trains the rows of a study that are not finished yet, and writes its table and picture after each.

    Args:
      path: the study's file.
      overrides: `key=value`, as of `load_study`.
      table: train nothing, write table and picture from the run_dirs as they are.
      stop: end after the first row that fails.

    Returns:
      The exit code: 0 when all rows are finished, 1 when some failed, 128 + the signal's number when stopped by one.

    Raises:
      UserError: the file is not as it should be, or another process runs the study.
    """
    plan = load_study(path, overrides)
    directory = Path(plan.run_dir)
    if table:
        studies.write(plan)
        say(f"written: {directory}/table.md, table.json, picture.png, picture.svg")
        return 0
    say(f"jaxpt study: {plan.name}, {len(plan.rows)} rows → {directory}\n{plan.question}")
    directory.mkdir(parents=True, exist_ok=True)
    child = Child()
    with hold(directory), signals.deferred(child.notify):
        try:
            failures = _rows(plan, path, child, stop)
        except Stopped:
            studies.write(plan)
            number = signals.received()
            say(f"{signal.Signals(number).name}: stopped; re-run the same command to resume")
            signals.leave(number)
    say(f"table and picture: {directory}/table.md, {directory}/picture.png")
    for name, why in failures.items():
        say(f"{name} failed: {why}")
    return 1 if failures else 0


def say(text: str) -> None:
    """A line for the person; square brackets are not markup."""
    console.print(text, markup=False)


def _rows(plan: Study, path: str, child: Child, stop: bool) -> dict[str, str]:
    """Trains each row that is not finished; {row: why it failed}."""
    failures: dict[str, str] = {}
    for place, row in enumerate(plan.rows, 1):
        if signals.received() is not None:
            raise Stopped
        say(f"row {place} of {len(plan.rows)}: {row.name}")
        try:
            failure = _train(plan, row, f"{path}: row {row.name}", child) or _probe(plan, row, child)
        except UserError as error:
            failure = str(error)
        if failure:
            failures[row.name] = failure
            say(f"[{row.name}] failed: {failure}")
        studies.write(plan, failures | {row.name: failure})
        if failure and stop:
            break
    return failures


def _train(plan: Study, row: StudyRow, where: str, child: Child) -> str:
    """Trains a row, or goes on with it; why it failed, or nothing."""
    overrides = plan.overrides(row)
    config = configs.load(row.recipe, overrides, where)
    done = finished(plan, config)
    if done is not None:
        say(f"[{row.name}] is finished at step {done}")
        return ""
    if plan.tokens is not None:
        steps = _counted(plan, config, child)
        overrides.append(f"train.steps={steps}")
        configs.load(row.recipe, overrides, where)
    _wait(Path(config.run_dir), row.name)
    command = [sys.executable, "-m", "jaxpt", "train", str(row.recipe), *overrides]
    return _run(command, row.name, child)


def _probe(plan: Study, row: StudyRow, child: Child) -> str:
    """Probes a row that is trained, unless it was probed already; why it failed, or nothing."""
    settings, run_dir = plan.evaluate.probe, Path(plan.run_dir) / row.name
    if settings is None or curves.probe(run_dir, settings) is not None:
        return ""
    words = [f"{key}={json.dumps(value)}" for key, value in settings.model_dump(mode="json").items()]
    return _run([sys.executable, "-m", "jaxpt", "probe", str(run_dir), *words], row.name, child)


def finished(plan: Study, config: Config) -> int | None:
    """The last step of a row that has come to its end under these very settings, None for another.

    Args:
      plan: the study.
      config: the row's configuration; its `train.steps` count only where the study has no budget.

    Raises:
      UserError: the row went further than it should.
    """
    run_dir = Path(config.run_dir)
    receipt = curves.receipt(run_dir)
    if receipt is None or not receipt["finished"] or configs.differences(configs.load(run_dir), config):
        return None
    steps = config.train.steps
    if plan.tokens is not None:
        steps = steps_of(plan.tokens, receipt["text_tokens_per_step"])
    if receipt["step"] > steps:
        raise UserError(
            f"{run_dir}: was trained for {receipt['step']} steps, the study asks for {steps}; "
            f"delete it, or choose another run_dir=… for the study"
        )
    return steps if receipt["step"] == steps else None


def budget(plan: Study, config: Config) -> int:
    """Steps in which a row sees the study's tokens of text; prepares the row's data to count them.

    Args:
      plan: the study, with `tokens`.
      config: the row's configuration.

    Raises:
      UserError: the recipe has phases, or its data cannot be prepared.
    """
    if config.train.phases:
        raise UserError("train.phases have steps of their own; in a study with tokens, set train.phases: []")
    from jaxpt.data import pipeline

    name = Path(config.run_dir).name
    data = pipeline.prepare(config, report=lambda line: say(f"[{name}] {line}"), save=False)
    per_step = config.data.batch_size * data.text_per_row
    steps = steps_of(plan.tokens, per_step)
    say(f"[{name}] {number(plan.tokens)} tokens of text, {per_step:,.0f} a step: {steps} steps")
    return steps


def _counted(plan: Study, config: Config, child: Child) -> int:
    """`budget`, in a process of its own: TensorFlow, which prepares the data, would stay in this one's memory."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_count, args=(theirs, plan, config))
    process.start()
    theirs.close()
    child.set(process.pid)
    try:
        answer = ours.recv()
    except EOFError:
        if signals.received() is not None:
            raise Stopped from None
        answer = UserError(f"{config.run_dir}: the process that prepared the data ended before it was done")
    finally:
        child.set(None)
        process.terminate()
        process.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _count(answer: Connection, plan: Study, config: Config) -> None:
    """Sends the steps, or what the user can mend."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a signal ends it at once, without a traceback
    try:
        answer.send(budget(plan, config))
    except (UserError, OSError) as error:
        answer.send(UserError(str(error)))


def steps_of(tokens: int, per_step: float) -> int:
    """Steps in which so many tokens are seen, at least one.

    Example:
      >>> steps_of(1_000_000, 32 * 125.3)
      249
    """
    return max(round(tokens / per_step), 1)


def _wait(run_dir: Path, name: str) -> None:
    """Waits for a trainer that a killed study has left behind: it ends with the next line that nobody reads."""
    path, said = run_dir / ".lock", False
    while path.exists():
        with path.open() as file:
            if disk.lock(file.fileno()):
                return
            if not said:
                say(f"[{name}] waiting for {file.read().strip()}, which is still running there")
                said = True
        time.sleep(0.1)


def _run(command: list[str], name: str, child: Child) -> str:
    """Runs a trainer, its lines passed on under the row's name; why it failed, or nothing."""
    last = ""
    # In a session of its own, so that Ctrl-C comes to it once, through the study.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    ) as trainer:
        child.set(trainer.pid)
        for line in trainer.stdout:
            say(f"[{name}] {line.rstrip()}")
            last = line.strip() or last
        child.set(None)
    if signals.received() is not None:
        raise Stopped
    if trainer.returncode == 0:
        return ""
    last = last.removeprefix("jaxpt: ")
    if trainer.returncode < 0:
        return f"killed by {signal.Signals(-trainer.returncode).name}; its last line: {last}"
    return last or f"exit code {trainer.returncode}"
