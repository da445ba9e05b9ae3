"""Files of text by their names: which there are, and how each is read. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

from jaxpt.config import SourceConfig
from jaxpt.data.tables.files import expand
from jaxpt.errors import UserError

SUFFIXES = {".txt": "text", ".text": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
            ".parquet": "parquet"}  # fmt: skip
"""Suffix → format; each also as `.gz`."""


def is_builtin(data: SourceConfig) -> bool:
    """Whether the text is the built-in corpus: by name, or because no path is given."""
    return data.source == "builtin" or (data.source == "auto" and data.path is None)


def file_format(path: str, data: SourceConfig) -> str:
    """How a file is read.

    Args:
      path: its name.
      data: `source` says it, or leaves it to the suffix.

    Returns:
      "text", "jsonl" or "parquet".

    Raises:
      UserError: the suffix says nothing.
    """
    if data.source != "auto":
        return data.source
    name = path.removesuffix(".gz")
    for suffix, kind in SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    raise UserError(f"{path}: the suffix says nothing of the format; set data.source to text, jsonl or parquet")


def check_path(data: SourceConfig) -> None:
    """Raises UserError where `path` is missing."""
    if data.path is None:
        raise UserError(f"data.path is missing: data.source: {data.source} needs one")


def text_files(data: SourceConfig, report: Callable[[str], None] = lambda line: None) -> dict[str, list[str]]:
    """The files of both splits of a source of text files.

    Args:
      data: `path` and `validation_path`; `source` is `auto`, `text`, `jsonl` or `parquet`.
      report: is given a line for each directory.

    Returns:
      {"train": files, "validation": files}; without a `validation_path` the latter is empty.

    Raises:
      UserError: no path, a file is missing, a glob matches nothing, or a suffix is unknown.
    """
    check_path(data)
    suffixes = list(SUFFIXES) if data.source == "auto" else [""]
    files = {"train": expand(data.path, "data.path", suffixes, report), "validation": []}
    if data.validation_path:
        files["validation"] = expand(data.validation_path, "data.validation_path", suffixes, report)
    for path in [*files["train"], *files["validation"]]:
        file_format(path, data)
    return files
