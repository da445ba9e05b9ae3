"""Runs the fine-tunings of a study: in each cell the grid with the first seed, then the other seeds at its best point.

All run in one process besides the study's (`jaxpt.cli.children`). Of each run one line is shown, all go to LOG. BEGUN
says with which settings and from which weights a run began, and whether it is finished, so that a study that goes on
asks for it no more.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.config.files import read
from jaxpt.config.finetunings import KEEP, Cell, FineTuning, cells, fine_tuning, points
from jaxpt.config.studies import Study
from jaxpt.errors import UserError, shown
from jaxpt.runtime import disk, signals
from jaxpt.runtime.exit_codes import MISTAKE
from jaxpt.study import failures, recipes
from jaxpt.study.failures import Failure
from jaxpt.train import checksums
from jaxpt.train.lock import wait
from jaxpt.train.run_dir import has_checkpoint, receipt

END = "\x1e"
"""Begins the line after a run's own lines."""
LOG = "log.txt"
"""In a run's directory: what it said."""
BEGUN = "study.json"
"""In the directory of a row or a fine-tuning: what it began from."""
FIXED = (
    "train.steps", "train.eval_every", "train.patience", "checkpoint.best_metric", "checkpoint.best_mode"
)  # fmt: skip
"""Keys that a run may change when it goes on, but not one that is compared: its schedule would have a kink, or its best
checkpoint would be chosen among others."""
MOST = 60
"""Runs of one process: then it is started anew, since compiled functions stay in its memory."""


class Worker:
    """A process that trains one run after another; it is started when the first one is asked for."""

    def __init__(self, notify: Callable[[int | None], None], environment: Mapping[str, str] | None = None) -> None:
        """`notify` gets its pid, and None when it has ended; without an environment it has that of this process."""
        self._notify, self._environment, self._process, self._done = notify, environment, None, 0

    def run(self, words: list[str]) -> tuple[list[str], Failure]:
        """Runs a command line of jaxpt.

        Args:
          words: after `jaxpt`.

        Returns:
          (its lines, the reason of failure or "").
        """
        if self._process is None:
            # In a new session, so that it receives Ctrl-C once, through the study.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jaxpt.cli.children", "train"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                env=self._environment,
            )  # fmt: skip
            self._done = 0
            self._notify(self._process.pid)
        with contextlib.suppress(BrokenPipeError):  # it died: said below
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line.startswith(END):
                self._done += 1
                if self._done >= MOST:
                    self.stop()
                return lines, failures.of_process(int(line[1:]), lines)
            lines.append(line.rstrip())
        return lines, failures.of_process(self.stop(), lines) or failures.ended_early()

    def stop(self) -> int:
        """Ends the process; returns its exit code."""
        if self._process is None:
            return 0
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        code, self._process = self._process.wait(), None
        self._notify(None)
        return code


def run(
    study: Study, say: Callable[[str], None], notify: Callable[[int | None], None], write: Callable[[], None],
    failed: Mapping[str, Failure], stop: bool = False, environment: Mapping[str, str] | None = None,
) -> dict[str, Failure]:  # fmt: skip
    """Runs what is not finished.

    Args:
      study: with `evaluate.finetune`.
      say: gets lines for people.
      notify: gets the pid of the process that trains, and None when there is none.
      write: writes the tables; called after each cell.
      failed: {row: why}; their models are not fine-tuned.
      stop: end at the first failure.
      environment: of the process that trains; by default that of this one.

    Returns:
      {name of a run: why it failed}.
    """
    failed_runs: dict[str, Failure] = {}
    every, worker = cells(study), Worker(notify, environment)
    try:
        for place, cell in enumerate(every, 1):
            if cell.row.name in failed:
                continue
            say(f"fine-tuning {place} of {len(every)}: {cell.name}")
            for tuning in _runs(study, cell):
                if is_finished(tuning):
                    continue
                lines, failure = _run(tuning, worker, say)
                if signals.received() is not None:
                    return failed_runs
                if not failure:
                    scored = [line for line in lines if " task: " in line or line.startswith(("test: ", "best on "))]
                    say(f"[{tuning.name}] {scored[-1] if scored else 'finished'}")
                    continue
                failed_runs[tuning.name] = failure
                say(f"[{tuning.name}] failed: {failure}")
                if stop:
                    return failed_runs
            write()
    finally:
        worker.stop()
    return failed_runs


def _run(tuning: FineTuning, worker: Worker, say: Callable[[str], None]) -> tuple[list[str], Failure]:
    """Trains; (its lines, the reason of failure or "")."""
    began = begun(tuning.run_dir).get("from", weights(tuning.origin))
    if began != weights(tuning.origin):
        words = f"{tuning.run_dir}: began from {tuning.origin} as it was before; delete it, or set another run_dir"
        return [], Failure(words, MISTAKE)
    wait(tuning.run_dir, tuning.name, say)
    if has_checkpoint(tuning.run_dir):
        try:
            check_unchanged(recipes.load(tuning.recipe, tuning.overrides, "its settings"))
        except UserError as error:
            return [], failures.of_error(error)
    tuning.run_dir.mkdir(parents=True, exist_ok=True)
    disk.write_text(tuning.run_dir / BEGUN, identity(tuning, is_finished=False))
    lines, failure = worker.run(tuning.command)
    disk.write_text(tuning.run_dir / LOG, "\n".join(lines) + "\n")
    if not failure and receipt(tuning.run_dir).get("best_value") is None and signals.received() is None:
        words = "checkpoint.best_metric was not measured, and it chooses the checkpoint and the point of the grid"
        failure = Failure(words, MISTAKE)
    if not failure and signals.received() is None:
        disk.write_text(tuning.run_dir / BEGUN, identity(tuning))
    return lines, failure


def check_unchanged(config: Config) -> None:
    """Finds out whether a run that has a checkpoint and goes on is then one of these settings.

    Args:
      config: what is asked for.

    Raises:
      UserError: one of the keys FIXED has another value there.
    """
    old = configs.load(config.run_dir)
    of_roles = [configs.differences(old, config, role) for role in ("extensible", "execution")]
    for key, was, now in (
        difference for differences in of_roles for difference in differences if difference[0] in FIXED
    ):
        raise UserError(
            f"{config.run_dir}: was begun with {key}={shown(was)}, the study has {shown(now)}; "
            "delete it, or set another run_dir"
        )


def _runs(study: Study, cell: Cell) -> Iterator[FineTuning]:
    """The runs of a cell; the best point is asked for when the search is over."""
    tuned = study.evaluate.finetune
    for point in range(len(points(tuned, cell))):
        yield fine_tuning(study, cell, point, tuned.seeds[0])
    best = best_point(study, cell)
    for seed in tuned.seeds[1:] if best is not None else ():
        yield fine_tuning(study, cell, best, seed)


def best_point(study: Study, cell: Cell) -> int | None:
    """The point of the grid with the best validation metric of the first seed; the first of a tie.

    Args:
      study: with `evaluate.finetune`.
      cell: which.

    Returns:
      None if no run of the search is finished.
    """
    values = searched(study, cell)
    return max(values, key=values.get) if values else None


def searched(study: Study, cell: Cell) -> dict[int, float]:
    """{point of the grid: the first seed's best validation metric, more is better} of the finished runs of a search.

    Args:
      study: with `evaluate.finetune`.
      cell: which.
    """
    tuned = study.evaluate.finetune
    runs = [fine_tuning(study, cell, point, tuned.seeds[0]) for point in range(len(points(tuned, cell)))]
    known = {tuning.point: receipt(tuning.run_dir) for tuning in runs if is_finished(tuning)}
    return {
        point: run_receipt["best_value"] * (-1 if run_receipt["best_mode"] == "min" else 1)
        for point, run_receipt in known.items()
        if run_receipt.get("best_value") is not None
    }


def is_finished(tuning: FineTuning) -> bool:
    """True if this run was finished with these settings, from these weights."""
    known = begun(tuning.run_dir)
    known.pop("recipe", None)  # in files of before: the same recipe may stand elsewhere
    return known == json.loads(identity(tuning))


def begun(run_dir: Path) -> dict[str, Any]:
    """What BEGUN says; {} where it is not there."""
    path = run_dir / BEGUN
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def weights(run_dir: str | Path) -> str | int | None:
    """What tells the weights of a run's last step from others: the digest of their checksums.

    Args:
      run_dir: of a trained row; None for a directory of another kind, and for "".
    """
    if not run_dir:
        return None
    step = receipt(Path(run_dir)).get("step")
    file = Path(run_dir) / "checkpoints" / str(step) / "state" / checksums.NAME
    return checksums.digest(file) if file.is_file() else step


def identity(tuning: FineTuning, is_finished: bool = True) -> str:
    """The text of BEGUN."""
    known: dict[str, Any] = {"settings": read(Path(tuning.recipe))[0]}
    known["overrides"] = [item for item in tuning.overrides if item != KEEP]  # which changes no result
    known |= {"from": weights(tuning.origin), "finished": is_finished}
    if (simple_model := tuning.cell.row.simple_model) is not None:
        known["simple_model"] = simple_model
    return json.dumps(known, indent=1, default=str) + "\n"


def run_dirs(study: Study, cell: Cell) -> dict[int, Path]:
    """{seed: run_dir} of the finished runs at the best point of a cell.

    Args:
      study: with `evaluate.finetune`.
      cell: which.
    """
    best = best_point(study, cell)
    if best is None:
        return {}
    runs = [fine_tuning(study, cell, best, seed) for seed in study.evaluate.finetune.seeds]
    return {tuning.seed: tuning.run_dir for tuning in runs if is_finished(tuning)}
