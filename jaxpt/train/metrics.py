"""Where a run's figures go: metrics.jsonl, TensorBoard, Weights & Biases, and the run's receipt run.json."""

from __future__ import annotations

import importlib.util
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpt.config import Config, dump
from jaxpt.runtime import packages
from jaxpt.runtime.disk import write_text, writing
from jaxpt.train import checkpoint
from jaxpt.train.display import say
from jaxpt.train.run_dir import metrics_line, records


class Metrics:
    """Appends to RUN_DIR/metrics.jsonl, a JSON object a line: {"step": …, "train/loss": …, …}; process 0 alone does.

    After a resume at step s the lines after s are dropped: they are about to be written again.
    """

    def __init__(self, run_dir: Path, config: Config, start: int) -> None:
        self.path = run_dir / "metrics.jsonl"
        self._file, self._others = None, []  # (write, close) of each
        if jax.process_index() > 0:
            return
        self._rewind(start)
        self._file = self.path.open("a", encoding="utf-8")
        if config.log.tensorboard and importlib.util.find_spec("tensorboardX") is None:
            say("tensorboardX is not installed: no curves for TensorBoard; metrics.jsonl has all figures")
        elif config.log.tensorboard:
            board = Board(run_dir / "tensorboard", start)
            self._others.append((board.write, board.close))
        if config.log.wandb:
            self._others.append(_wandb(run_dir, config))

    def _rewind(self, start: int) -> None:
        if not self.path.exists():
            return
        entries, damaged = records(self.path.parent)
        if damaged > (not self.path.read_bytes().endswith(b"\n")):  # the last one may have been cut short by a kill
            say(f"{self.path}: lines that are damaged and left out: {damaged}")
        write_text(self.path, "".join(metrics_line(entry) for entry in entries if entry["step"] <= start))

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Records figures of a step; arrays (one entry for each layer) become `name/0`, `name/1`, …; None is not known:
        null in the file, and left out elsewhere."""
        if self._file is None:
            return
        flat: dict[str, float] = {}
        for name, value in values.items():
            if value is None:
                continue
            array = np.asarray(value, np.float64)
            if array.ndim == 0:
                flat[name] = float(array)
            else:
                flat |= {f"{name}/{index}": float(x) for index, x in enumerate(array.ravel())}
        # JSON has no NaN: such a figure is written as null.
        known = {name: rounded(x) if np.isfinite(x) else None for name, x in flat.items()}
        known |= {name: None for name, value in values.items() if value is None}
        with writing(self.path):
            self._file.write(metrics_line({"step": step, "time": round(time.time(), 3), **known}))
            self._file.flush()
        for write, _ in self._others:
            write(step, flat)

    def close(self) -> None:
        """Flushes and closes all writers."""
        if self._file:
            with writing(self.path):
                self._file.close()
        for _, close in self._others:
            close()


def _wandb(run_dir: Path, config: Config) -> tuple[Callable[[int, dict[str, float]], None], Callable[[], None]]:
    """(write, close) of the run of Weights & Biases that has this run's id: a resume goes on with it.

    Its own steps only rise, and figures of an earlier one are refused. So `step` is a figure, which the others are
    drawn against: after a resume or a rewind it may fall.
    """
    import wandb

    run = wandb.init(
        project=config.log.wandb,
        name=run_dir.name,
        dir=run_dir,
        config=dump(config),
        id=checkpoint.run_id(run_dir / "checkpoints"),
        resume="allow",
    )
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    return lambda step, figures: run.log({**figures, "step": step}), run.finish


def rounded(x: float) -> float:
    """A figure to 8 decimals, one below 1 to 9 significant digits: those of a float32.

    Example:
      >>> rounded(2.123456789123), rounded(1.0000000116860974e-05)
      (2.12345679, 1.00000001e-05)
    """
    return round(x, 8) if abs(x) >= 1 else float(f"{x:.9g}")


class Board:
    """TensorBoard's file. tensorboardX's own writer is a thread with a queue: on a full disk the run would hang."""

    _FLUSH = 30.0  # seconds; a flush waits for the disk

    def __init__(self, directory: Path, start: int) -> None:
        """Begins a file; figures of earlier files from the step `start` on are no longer shown."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        directory.mkdir(exist_ok=True)
        self._directory, self._event, self._flushed = directory, Event, time.monotonic()
        with writing(directory):
            self._file: Any = EventsWriter(str(directory / "events"))
            if start:
                self._file.write_event(Event(step=start + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Adds figures of a step."""
        from tensorboardX.summary import scalar

        with writing(self._directory):
            for name, value in values.items():
                event = self._event(step=step, summary=scalar(name, value), wall_time=time.time())
                self._file.write_event(event)
            if time.monotonic() - self._flushed > self._FLUSH:
                self._file.flush()
                self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes what is left and closes the file; may be called again."""
        file, self._file = self._file, None
        if file is not None:
            with writing(self._directory):
                file.close()


def environment() -> dict[str, Any]:
    """Versions and devices, for the receipt of a run."""
    names = ("jaxpt", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "seqio", "tensorflow")
    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: packages.version(name) for name in names},
        "devices": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "processes": jax.process_count(),
        "command": sys.argv,
    }
