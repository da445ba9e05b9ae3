"""ArrayRecord: files of records that are read by their numbers (package `array-record`, extra [array-record]).

A record is a serialized tf.train.Example, as Grain's and MaxText's data are, or a JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from jaxpt.data.tables.quiet_tensorflow import tensorflow
from jaxpt.data.tables.rows import START, NoRowsError, Offset, Row
from jaxpt.errors import UserError, printable
from jaxpt.runtime import packages

RECORDS_AT_ONCE = 1000


def array_record(path: str, start: Offset = START, columns: Sequence[str] = ()) -> Iterator[Row]:
    """Reads an ArrayRecord file.

    Args:
      path: the file, local.
      start: the number of records to pass over.
      columns: the only ones that are kept, where a record has them; () for all.

    Yields:
      Rows, numbered from 1. Features of one value are that value, others lists; bytes are text.

    Raises:
      UserError: no such file, none of ArrayRecord, or a record that is neither a tf.train.Example nor a JSON object.
    """
    reader = _open(path)
    try:
        total = reader.num_records()
        if not total:
            raise NoRowsError(f"{path}: no records in it")
        for begin in range(start.number, total, RECORDS_AT_ONCE):
            records = reader.read(range(begin, min(begin + RECORDS_AT_ONCE, total)))
            for number, record in enumerate(records, begin + 1):
                values = _values(record, f"{path}: row {number}")
                yield Row(number, {key: values[key] for key in columns if key in values} if columns else values)
    except (RuntimeError, ValueError, IndexError) as error:
        raise UserError(f"{path}: a damaged ArrayRecord file ({printable(str(error), 200)}); fetch it again") from None
    finally:
        with contextlib.suppress(RuntimeError):  # of a damaged file, whose damage has been said
            reader.close()


def cuts(path: str, every: int, columns: Sequence[str] = ()) -> Iterator[tuple[Offset, int]]:
    """Cuts a file into runs of records.

    Args:
      path: the file.
      every: bytes of the file that a piece has at least, about.
      columns: not used: a record is read as a whole.

    Yields:
      (where a piece begins, its bytes).
    """
    reader = _open(path)
    try:
        total, size = reader.num_records(), os.path.getsize(path)
    finally:
        reader.close()
    pieces = min(max(size // every, 1), max(total, 1))
    for piece in range(pieces):
        yield Offset(number=total * piece // pieces), size // pieces


def _open(path: str) -> Any:
    try:
        from array_record.python import array_record_module
    except ModuleNotFoundError:
        hint = packages.install_command("array-record")
        raise UserError(f"{path}: reading ArrayRecord needs the package array-record: {hint}") from None
    if "://" in path:
        raise UserError(f"{path}: ArrayRecord files are read from disks; download or mount them")
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file")
    reader = array_record_module.ArrayRecordReader(path)
    if not reader.ok():
        raise UserError(f"{path}: not a readable ArrayRecord file; fetch or write it again")
    return reader


def _values(record: bytes, place: str) -> dict[str, Any]:
    """The fields of a record."""
    if record.lstrip()[:1] == b"{":
        try:
            return json.loads(record)
        except ValueError as error:
            if record[:1] == b"\n":  # the tag that opens an Example, whose length may be 123, the code of {
                return _example(record, place)
            raise UserError(f"{place}: not JSON ({error})") from None
    return _example(record, place)


def _example(record: bytes, place: str) -> dict[str, Any]:
    """The fields of a tf.train.Example."""
    from google.protobuf.message import DecodeError

    try:
        features = tensorflow().train.Example.FromString(record).features.feature
    except DecodeError:
        features = {}
    if not features:
        raise UserError(f"{place}: wants a tf.train.Example or a JSON object, as records of text are written")
    return {key: _plain(features[key]) for key in sorted(features)}


def _plain(feature: Any) -> Any:
    """A feature's value, or the list of them; bytes as text."""
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    values = [x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in values]
    return values[0] if len(values) == 1 else values or None
