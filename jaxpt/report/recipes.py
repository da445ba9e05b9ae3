"""`jaxpt recipes`: the recipes of a directory, each in the words of its header's first line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jaxpt
from jaxpt.config.kinds import nearest
from jaxpt.errors import UserError
from jaxpt.runtime.terminal import print_table

KINDS = ("smoke", "pretrain", "finetune", "studies", "tasks", "models")
"""Directories of `configs`, in the order in which they are shown."""


class Recipe(NamedTuple):
    """A file."""

    path: str
    line: str
    """What it is."""


def directory() -> Path:
    """`configs` here, or that of the checkout from which jaxpt is installed.

    Raises:
      UserError: there is neither.
    """
    for path in (Path("configs"), Path(jaxpt.__file__).parents[1] / "configs"):
        if (path / "smoke").is_dir():
            return path
    raise UserError("configs: no such directory here, and jaxpt is not installed from its checkout (pip install -e .)")


def recipes(word: str = "", root: Path | None = None) -> list[Recipe]:
    """The recipes whose path or first line has a word.

    Args:
      word: in any case; "" for all.
      root: of the recipes, `directory()` by default.

    Returns:
      By kind, then by path.
    """
    root = root or directory()
    files = [path for kind in KINDS for path in sorted((root / kind).rglob("*.yaml"))]
    candidates = [Recipe(str(path), _first_line(path)) for path in files]
    return [
        recipe
        for recipe in candidates
        if word.lower() in f"{recipe.path.removeprefix(str(root))} {recipe.line}".lower()
    ]


def print_recipes(word: str = "") -> None:
    """`jaxpt recipes`: the recipes that have a word, as a table.

    Raises:
      UserError: none has it.
    """
    matches = recipes(word)
    if not matches:
        names = [Path(recipe.path).stem for recipe in recipes()]
        raise UserError(f"no recipe has the word {word!r}{nearest(word, names, '')}")
    print_table(("recipe", "what it is"), matches)


def _first_line(path: Path) -> str:
    """The first comment that is for people."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if "yaml-language-server" not in line:
            return line.lstrip("# ").rstrip()
    return ""
