"""What a run's directory says, read once for all sections of a page."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.config.kinds import is_unread
from jaxpt.objectives.base import Objective
from jaxpt.report import runs
from jaxpt.report.inspect import display_name
from jaxpt.study import curves
from jaxpt.train import run_dir as run_dirs

Curve = tuple[list[float], list[float]]
"""Steps or tokens, and values."""


@dataclasses.dataclass(frozen=True)
class RunData:
    """A run."""

    path: Path
    name: str
    """On the page: the shortest part of the path that no other run has."""
    colour: int
    config: Config
    run: runs.Run
    receipt: dict[str, Any]
    """{} where the run has not ended."""
    lines: tuple[tuple[dict[str, Any], float, float], ...]
    """(a line of metrics, tokens of text up to it, FLOPs)."""

    @property
    def kind(self) -> str:
        """What is trained on, in words: losses of one kind can be compared."""
        task, objective = self.config.task, display_name(self.config.objective.kind)
        name = None if task is None else getattr(task, "name", None) or display_name(task.kind)
        return objective if name in (None, objective) else f"{name} ({objective})"

    @property
    def objective(self) -> Objective | None:
        """None where it, or a part of it, is of a module that is not jaxpt's: a report runs none of its code."""
        objective = self.config.objective
        return objective if isinstance(objective, Objective) and not is_unread(objective) else None

    @property
    def losses(self) -> list[str]:
        """The names of the loss's parts."""
        return [] if self.objective is None else list(self.objective.coefficients())

    @property
    def loss_parts(self) -> list[str]:
        """The parts of a loss of several."""
        return self.losses if len(self.losses) > 1 else []

    @property
    def text_tokens(self) -> float:
        """Tokens of text that the run has seen; 0 where it is not known."""
        return self.lines[-1][1] if self.lines else 0.0

    @property
    def flops(self) -> float:
        """Those of its training steps; 0 where it is not known."""
        return self.lines[-1][2] if self.lines else 0.0

    @functools.cached_property
    def last(self) -> dict[str, float]:
        """The last finite value of each figure."""
        return {name: x for line, _, _ in self.lines for name, x in line.items() if x is not None}

    def curve(self, name: str, over_tokens: bool = False) -> Curve:
        """A figure over steps, or over tokens of text.

        Args:
          name: as in metrics.jsonl.
          over_tokens: not over steps.
        """
        points = [(text if over_tokens else line["step"], line[name]) for line, text, _ in self.lines
                 if line.get(name) is not None]  # fmt: skip
        return [x for x, _ in points], [y for _, y in points]

    def json(self, name: str) -> Any:
        """A file of `evaluations`; None where there is none, or it cannot be read."""
        try:
            return json.loads((self.path / "evaluations" / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The lines of a file of `evaluations`, likewise []."""
        try:
            text = (self.path / "evaluations" / name).read_bytes()
            rows = [json.loads(line) for line in text.splitlines()]  # of bytes: text has other ends of lines
        except (OSError, ValueError):
            return []
        return [row for row in rows if isinstance(row, dict)]


def read(paths: Sequence[Path]) -> list[RunData]:
    """Reads runs.

    Args:
      paths: their directories.

    Raises:
      UserError: the configuration of one cannot be read, or its receipt is damaged.
    """
    return [_read(path, name, n) for n, (path, name) in enumerate(zip(paths, names(paths)))]


def _read(path: Path, name: str, colour: int) -> RunData:
    lines = tuple(curves.cumulated(run_dirs.records(path)[0]))
    return RunData(path, name, colour, configs.load(path), runs.run(path), run_dirs.receipt(path), lines)


def names(paths: Sequence[Path]) -> list[str]:
    """The last parts of paths, as many as tell them apart.

    Example:
      >>> names([Path("runs/a"), Path("runs/b")]), names([Path("x/a"), Path("y/a")])
      (['a', 'b'], ['x/a', 'y/a'])
    """
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    for count in range(1, max(map(len, parts), default=1) + 1):
        suffixes = ["/".join(path_parts[-count:]) for path_parts in parts]
        if len(set(suffixes)) == len(set(parts)):
            return suffixes
    return [str(path) for path in paths]
