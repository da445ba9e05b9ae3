"""Data sets of the Hugging Face hub, through the package `datasets` (extra [datasets]).

They are Arrow tables on disk, whose rows have numbers: a reader begins at any of them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any

from jaxpt.config.kinds import nearest
from jaxpt.data.tables.rows import START, Offset, Row
from jaxpt.errors import UserError, printable
from jaxpt.runtime import packages

ROWS_AT_ONCE = 1000
_NAME = re.compile(r"(?P<path>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.+-]+))?(?:@(?P<revision>[\w./-]+))?")


def hf(name: str, split: str = "train", start: Offset = START) -> Iterator[Row]:
    """Reads a split of a data set.

    Args:
      name: OWNER/NAME, OWNER/NAME/CONFIGURATION, each also with @REVISION; or a directory of files.
      split: "train", "validation", … as the data set names them.
      start: the number of rows to pass over.

    Yields:
      Rows, numbered from 1 in the order of the data set. Classes are their names, None where a row has none (-1).

    Raises:
      UserError: no such data set or split, it cannot be downloaded, or `datasets` is not installed.
    """
    dataset = open_split(name, split)
    for begin in range(start.number, len(dataset), ROWS_AT_ONCE):
        columns = dataset[begin : begin + ROWS_AT_ONCE]
        columns = {key: [_plain(dataset.features[key], x) for x in cells] for key, cells in columns.items()}
        for number, cells in enumerate(zip(*columns.values()), begin + 1):
            yield Row(number, dict(zip(columns, cells)))


def open_split(name: str, split: str) -> Any:
    """A split as a `datasets.Dataset`; it is downloaded where the cache does not have it.

    Args:
      name: as for `hf`.
      split: its name.

    Raises:
      UserError: as `hf`.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise UserError(f"hf://{name}: {error.name} is not installed: {packages.install_command('datasets')}") from None
    datasets.disable_progress_bars()
    try:
        splits = datasets.load_dataset(**_arguments(name))
    except UserError:
        raise
    except Exception as error:  # the library has many, with messages of many lines
        reason = printable(str(error).strip().partition("\n")[0] or type(error).__name__, 200)
        raise UserError(f"hf://{name}: cannot be read ({reason})") from None
    if split not in splits:
        raise UserError(f"hf://{name}: no split {split!r}; it has {', '.join(splits)}{nearest(split, list(splits))}")
    return splits[split]


def revision(name: str, split: str) -> dict[str, Any]:
    """What identifies the content of a split, wherever it lies: a hash of its rows.

    Args:
      name: as for `hf`.
      split: its name.
    """
    dataset, digest = open_split(name, split), hashlib.blake2b(digest_size=16)
    for batch in dataset.data.to_batches():
        for column in batch.columns:
            for buffer in column.buffers():
                digest.update(buffer or b"")
    return {"rows": len(dataset), "blake2b": digest.hexdigest()}


def _arguments(name: str) -> dict[str, Any]:
    """A name as `datasets.load_dataset` takes it."""
    if os.path.isdir(name):
        return {"path": name}
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(f"hf://{name}: wants OWNER/NAME, OWNER/NAME/CONFIGURATION, or a directory")
    return {"path": match["path"], "name": match["config"], "revision": match["revision"]}


def _plain(feature: Any, cell: Any) -> Any:
    """A cell as JSON has it, with the names of its classes; bytes are text."""
    if hasattr(feature, "int2str"):
        return feature.int2str(cell) if isinstance(cell, int) and cell >= 0 else None
    if isinstance(cell, list):
        inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        return [_plain(inner, element) for element in cell]
    if isinstance(cell, dict):
        features = feature if isinstance(feature, dict) else {}
        return {key: _plain(features.get(key), field) for key, field in cell.items()}
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return cell if cell is None or isinstance(cell, str | bool | int | float) else str(cell)
