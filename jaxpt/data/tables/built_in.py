"""Labelled data made of the built-in corpus: for a first fine-tuning with no network and no files.

  modules    a docstring → the module of the standard library that it stands in (classification)
  kinds      words of a signature and of its docstring → which kind of name each is (tagging)
  summaries  a signature → the first sentence of its docstring (text to text)
  matches    a signature and the first sentence of a docstring → whether it is its own (pairs)

A table depends on the version of Python alone, and so does the split of each row: on the hash of its text.
"""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import re
import sys
from collections.abc import Iterator
from typing import Any

from jaxpt.config.kinds import nearest
from jaxpt.data.builtin import arguments, documented, first_sentence, pairs, sources
from jaxpt.data.tables.rows import Row
from jaxpt.data.tables.splits import digest
from jaxpt.errors import UserError

VERSION = "47411c8d3791443bda59"
"""Says which rows are made of a Python, as `jaxpt.data.builtin.VERSION` does of texts."""
MODULES = (
    "asyncio", "email", "http", "importlib", "logging", "multiprocessing", "tkinter", "turtle", "unittest", "xml",
)  # fmt: skip
"""The classes of `modules`: those with the most docstrings that every Python has."""
_MOST = 250
"""Rows of a class."""
KINDS = ("argument", "class", "function", "module", "other")
"""The tags of `kinds`."""
_WORD = re.compile(r"\w+|[^\w\s]")
_LONGEST = 100  # words

SPLITS = ("train", "validation", "test")
"""8, 1 and 1 of ten rows."""


def rows(name: str, split: str = "train") -> Iterator[Row]:
    """Reads a table.

    Args:
      name: "modules" (columns `text`, `module`), "kinds" (`tokens`, `tags`), "summaries" (`signature`, `summary`) or
        "matches" (`signature`, `summary`, `match`: "yes" or "no").
      split: "train", "validation" or "test".

    Yields:
      Rows, numbered from 1, always in the same order. No text stands in two splits.

    Raises:
      UserError: no such table or split.

    Example:
      >>> sorted({row.values["module"] for row in rows("modules", "test")}) == list(MODULES)
      True
    """
    if name not in _TABLES:
        raise UserError(
            f"data.path: no built-in table {name!r}; there are {', '.join(_TABLES)}{nearest(name, [*_TABLES], '')}; "
            "for files of your own set data.source=auto and data.test_path=null, or a file"
        )
    if split not in SPLITS:
        raise UserError(f"built-in data: no split {split!r}; {name} has {', '.join(SPLITS)}")
    splits = {8: "validation", 9: "test"}
    chosen = (values for text, values in _TABLES[name]() if splits.get(digest(text) % 10, "train") == split)
    yield from (Row(number, values) for number, values in enumerate(chosen, 1))


@functools.cache
def _modules() -> tuple[tuple[str, dict[str, Any]], ...]:
    """(text, row) for each docstring of four words or more that one module alone has."""
    modules_by_text: dict[str, set[str]] = collections.defaultdict(set)
    for name, path in sources():
        if name in MODULES:
            for _, text in documented(path):
                if len(text.split()) > 3:
                    modules_by_text[text].add(name)
    of_module: dict[str, list[str]] = {name: [] for name in MODULES}
    for text in sorted(modules_by_text, key=digest):
        if len(modules_by_text[text]) == 1:
            of_module[min(modules_by_text[text])].append(text)
    balanced = [(text, name) for name, texts in of_module.items() for text in texts[:_MOST]]
    return tuple(
        (text, {"text": text, "module": name}) for text, name in sorted(balanced, key=lambda row: digest(row[0]))
    )


@functools.cache
def _summaries() -> tuple[tuple[str, dict[str, Any]], ...]:
    """(signature, row) for each documented function; the first of those with one signature."""
    first = dict(reversed(pairs()))
    return tuple((code, {"signature": code, "summary": first[code]}) for code in sorted(first, key=digest))


@functools.cache
def _matches() -> tuple[tuple[str, dict[str, Any]], ...]:
    """(signature, row): of half of the functions with their own summary, of the others with the next one's."""
    rows = [row for _, row in _summaries()]
    matches = []
    for row, following in itertools.pairwise(rows):
        is_own = digest(row["signature"] + row["summary"]) % 2 == 0
        summary = (row if is_own else following)["summary"]
        if is_own or summary != row["summary"]:
            matches.append((row["signature"], row | {"summary": summary, "match": "yes" if is_own else "no"}))
    return tuple(matches)


@functools.cache
def _kinds() -> tuple[tuple[str, dict[str, Any]], ...]:
    """(words, row) for each documented module, class and function."""
    tagged_words: dict[str, dict[str, Any]] = {}
    for name, path in sources():
        for node, text in documented(path):
            pieces = _declaration(node, name)
            names = {piece: kind for piece, kind in pieces if kind != "other" and piece not in ("a", "self", "cls")}
            sentence = _WORD.findall(first_sentence(text))
            pieces += [(word, kind_of_word(word, names, sentence[at + 1 : at + 2])) for at, word in enumerate(sentence)]
            tokens, tags = (list(column) for column in zip(*pieces))
            if len(tokens) <= _LONGEST:
                tagged_words.setdefault(" ".join(tokens), {"tokens": tokens, "tags": tags})
    return tuple(sorted(tagged_words.items(), key=lambda row: digest(row[0])))


def _declaration(node: ast.AST, module: str) -> list[tuple[str, str]]:
    """The words of a signature, each with its kind."""
    if isinstance(node, ast.Module):
        return [("import", "other"), (module, "module")]
    if isinstance(node, ast.ClassDef):
        bases = [piece for base in node.bases for piece in [(",", "other"), *_base(base)]][1:]
        inner = [("(", "other"), *bases, (")", "other")] if bases else []
        return [("class", "other"), (node.name, "class"), *inner]
    text, names = arguments(node)
    words = _WORD.findall(f"({text})")
    return [("def", "other"), (node.name, "function"), *((w, "argument" if w in names else "other") for w in words)]


def _base(node: ast.expr) -> list[tuple[str, str]]:
    """The words of a base class: the last name is the class, those before it are modules."""
    words = _WORD.findall(ast.unparse(node))
    if not isinstance(node, ast.Name | ast.Attribute):
        return [(word, "other") for word in words]
    return [(word, "other" if word == "." else "module") for word in words[:-1]] + [(words[-1], "class")]


def kind_of_word(word: str, names: dict[str, str], following: list[str]) -> str:
    """The kind of a word of a sentence: what the signature calls it, or what it looks like."""
    if word in names:
        return names[word]
    if following in (["module"], ["package"]) and word in sys.stdlib_module_names:
        return "module"
    if following == ["("] and word.isidentifier() and not word[0].isupper():
        return "function"
    if re.fullmatch(r"([A-Z][a-z0-9]+){2,}", word):
        return "class"
    return "function" if re.fullmatch(r"[a-z]+(_[a-z]+)+", word) else "other"


_TABLES = {"modules": _modules, "kinds": _kinds, "summaries": _summaries, "matches": _matches}
