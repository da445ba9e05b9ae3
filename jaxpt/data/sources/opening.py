"""From a configuration to the source that it names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxpt.config import DataConfig, TaskConfig
from jaxpt.config.kinds import import_failure
from jaxpt.data import builtin
from jaxpt.data.sources import foreign, readers
from jaxpt.data.sources.base import Source
from jaxpt.data.sources.examples import Examples
from jaxpt.data.sources.readers import is_builtin
from jaxpt.data.sources.rows import ROWS_PER_SHARD, Rows
from jaxpt.data.tables.files import size
from jaxpt.errors import UserError, shown
from jaxpt.runtime import plugins


def open_source(
    data: DataConfig,
    examples: int | None = None,
    task: TaskConfig | None = None,
    rows_per_shard: int | None = ROWS_PER_SHARD,
    shard_bytes: int | None = None,
    ascii_blanks: bool = False,
    null_fields: bool = False,
) -> Source:
    """Finds the files (or the data set, or the task) that a configuration names.

    Args:
      data: `source`, `path`, `validation_path`, …
      examples: finished examples of a SeqIO Task are wanted, not documents, with so many tokens of targets at most.
      task: rows of labelled files are wanted.
      rows_per_shard: of labelled files, as `Rows` takes it.
      shard_bytes: as of `Source`.
      ascii_blanks: how text files are cut, as `readers.cuts` takes it.
      null_fields: of labelled files, as `Rows` takes it.

    Returns:
      A source with a "train" and a "validation" split; nothing but the files' existence is checked yet.

    Raises:
      UserError: a file is missing, a directory or a glob has none, a suffix is unknown.
    """
    if data.source == "batches":
        raise UserError("data.source: batches: records are made of the data itself; name the recipe as it was before")
    if task is not None:
        return Rows(data, task, rows_per_shard, null_fields)
    source = _open(data, examples, ascii_blanks)
    source.language, source.fields, source.sentences = data.language, data.fields, data.sentences
    source.shard_bytes = shard_bytes
    return source


def _open(data: DataConfig, examples: int | None, ascii_blanks: bool) -> Source:
    if data.fields is not None:
        _check_fields(data.fields, data)
    if examples is not None:
        if data.source != "task":
            raise UserError("objective.kind: seq2seq wants inputs and targets, of data.source: task and data.task")
        return Examples(data, examples)
    if "." in data.source:
        return _own(data)
    if data.source == "task":
        return foreign.task_documents(data)
    if is_builtin(data):
        return Source(
            {"train": ["builtin"], "validation": ["builtin"]},
            lambda path, mark: enumerate(_builtin(data.fields)),
            data.validation_fraction,
        )
    if data.source == "tfds":
        readers.check_path(data)
        return foreign.tfds_documents(data)
    if data.source == "hf":
        readers.check_path(data)
        return foreign.hf_documents(data)
    lines: list[str] = []
    files = readers.text_files(data, lines.append)
    held = bool(files["validation"])
    source = Source(
        files if held else files | {"validation": files["train"]},
        lambda path, mark: readers.read(path, data, mark),
        None if held else data.validation_fraction,
        cut=lambda path, every: readers.cuts(path, data, every, ascii_blanks),
        size=size,
    )
    source.found = tuple(lines)
    return source


def _own(data: DataConfig) -> Source:
    """What the module of anyone's own that `data.source` names opens; its code is part of what determines the data."""
    name = data.source
    try:
        module = plugins.import_module(name, "data.source")
    except Exception as error:
        raise UserError(f"data.source: {import_failure(name, error)}") from error
    source = module.open_source(data) if callable(getattr(module, "open_source", None)) else None
    if not isinstance(source, Source):
        signature = "open_source(data), which returns a jaxpt.data.sources.base.Source"
        raise UserError(f"data.source: {name} must define {signature}")
    _check_files(name, source._files)
    source._identity["modules"] = {name: plugins.digest(name)}
    return source


def _check_files(name: str, files: Any) -> None:
    """Raises UserError where a source of anyone's own has not the paths of both splits."""
    for split in ("train", "validation"):
        paths = files.get(split) if isinstance(files, Mapping) else None
        if paths == [None]:
            raise UserError(f"data.path: {name} reads it, and it is not set; name a file with data.path=…")
        if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
            raise UserError(
                f"data.source: {name}: the files of its Source must be {{'train': [path], 'validation': [path]}}, "
                f"they are {shown(files)}"
            )


def _check_fields(fields: tuple[str, str], data: DataConfig) -> None:
    if is_builtin(data) and set(fields) != set(builtin.PAIR):
        raise UserError(
            f"data.fields: the built-in corpus has {' and '.join(builtin.PAIR)}, not {' and '.join(fields)}; "
            "other fields are those of JSONL and Parquet files, which data.path names"
        )
    if not is_builtin(data) and (
        data.path is None or data.source in ("text", "tfds", "hf", "task") or "." in data.source
    ):
        raise UserError("data.fields: JSONL and Parquet files have fields; name such files with data.path")


def _builtin(fields: tuple[str, str] | None) -> Iterable[str]:
    """Documents of the built-in corpus: texts, or pairs with their fields in this order."""
    if fields is None:
        return builtin.documents()
    order = [builtin.PAIR.index(field) for field in fields]
    return (readers.document([pair[place] for place in order]) for pair in builtin.pairs())
