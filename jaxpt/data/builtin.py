"""The built-in corpus: English text that every CPython brings along.

The topics of `help()` and the docstrings of the standard library: about 2 MB, enough for a first run with no network
and no files. The library's sources are parsed, never imported.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# A line of * or = under a heading: a mark for the eye, and no text to learn from.
_UNDERLINE = re.compile(r"^ *[*=~^-]{3,}\n", re.MULTILINE)

_LEFT_OUT = {
    "__pycache__",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}


@functools.cache
def documents() -> tuple[str, ...]:
    """The corpus, always in the same order.

    Returns:
      One text for each topic of `help()`, then one for each module: its docstring, followed by those of its classes
      and functions, parted by blank lines. No paragraph of a module stands twice in the corpus.

    Example:
      >>> sum(len(text) for text in documents()) > 1_000_000
      True
    """
    from pydoc_data.topics import topics

    texts = list(dict.fromkeys(_UNDERLINE.sub("", topics[name]).strip() for name in sorted(topics)))
    seen: set[str] = set()
    for path in _sources():
        new = [d for d in dict.fromkeys(_docstrings(path)) if d not in seen]
        seen.update(new)
        texts.append("\n\n".join(new))
    return tuple(text for text in texts if text)


def _sources() -> Iterator[Path]:
    """Files of the standard library's modules."""
    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
        # Not importlib.util.find_spec: setuptools answers that for distutils, with files of its own.
        spec = importlib.machinery.PathFinder.find_spec(name, library)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        path = Path(spec.origin)
        if path.name != "__init__.py":
            yield path
            continue
        for file in sorted(path.parent.rglob("*.py")):
            if not _LEFT_OUT.intersection(file.relative_to(path.parent).parts):
                yield file


def _docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a source file, in the order in which they stand there."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = _UNDERLINE.sub("", inspect.cleandoc(ast.get_docstring(node, clean=False) or "")).strip()
            if text:
                yield text
        todo.extend(reversed(list(ast.iter_child_nodes(node))))
