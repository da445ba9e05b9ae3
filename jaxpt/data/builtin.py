"""The built-in corpus: English text that every CPython brings along.

The topics of `help()` and the docstrings of the standard library: about 2 MB, enough for a first run with no network
and no files. For objectives that want a text and its translation: signatures of functions and what their docstrings
say of them. The library's sources are parsed, never imported.
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

_SENTENCE_END = re.compile(r"(?<=[.!?:])\s|\n\n")

VERSION = "a8cfbfda87d1a7d5c35183792db2abcf"
"""Says which texts are made of a Python: another value wherever they change, since a run on others cannot resume. Its
first value was the digest of this file's source, which runs of that time have."""
PAIR = ("code", "en")
"""The fields of `pairs`, as `data.fields` names them."""

_LEFT_OUT = {
    "__pycache__", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests", "turtledemo",
}  # fmt: skip


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
    docstrings: set[str] = set()
    for _, path in sources():
        new = [d for d in dict.fromkeys(text for _, text in documented(path)) if d not in docstrings]
        docstrings.update(new)
        texts.append("\n\n".join(new))
    return tuple(text for text in texts if text)


@functools.cache
def pairs() -> tuple[tuple[str, str], ...]:
    """Functions of the standard library and what they are said to do, always in the same order.

    Returns:
      For each documented function its signature and the first sentence of its docstring; no such pair twice.

    Example:
      >>> dict(pairs())["def shuffle(self, x)"]
      'Shuffle list x in place, and return None.'
    """
    candidates = ((_signature(node), first_sentence(text)) for _, path in sources() for node, text in documented(path))
    return tuple(dict.fromkeys((code, text) for code, text in candidates if code))


def _signature(node: ast.AST) -> str:
    """The line that a function begins with, without types; nothing of what is no function."""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return f"def {node.name}({arguments(node)[0]})" if is_function else ""


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, set[str]]:
    """The arguments of a function as they stand in its signature, without types; and their names."""
    args = [argument for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
    for argument in args:
        argument.annotation = None
    return ast.unparse(node.args), {argument.arg for argument in args}


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    return " ".join(_SENTENCE_END.split(text)[0].split())


def sources() -> Iterator[tuple[str, Path]]:
    """Modules of the standard library, always in the same order.

    Yields:
      (top-level name, such as asyncio for asyncio.events; source file).
    """
    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
        # Not importlib.util.find_spec: setuptools answers that for distutils, with files of its own.
        spec = importlib.machinery.PathFinder.find_spec(name, library)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        path = Path(spec.origin)
        if path.name != "__init__.py":
            yield name, path
            continue
        for file in sorted(path.parent.rglob("*.py")):
            if not _LEFT_OUT.intersection(file.relative_to(path.parent).parts):
                yield name, file


def documented(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Whatever has a docstring in a source file, and the docstring, in the order in which they stand there."""
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
                yield node, text
        todo.extend(reversed(list(ast.iter_child_nodes(node))))
