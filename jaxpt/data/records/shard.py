"""A shard of a store: one safetensors file, every feature's values and the offsets of ragged ones.

    feature "tokens", ragged   tokens [Σ lengths], tokens.offsets [records + 1]; row i: tokens[offsets[i]:offsets[i+1]]
    feature "origin", fixed    origin [records, 3]

Integers take the fewest bytes that hold them (a vocabulary below 65,536 ids: 2 a token) and come back in the type that
they were given in. The header tells records, features, counts and the checksum of the whole file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from jaxpt.data._tf import TRACING, from_generator, tf
from jaxpt.data.layout import Ragged
from jaxpt.errors import StorageError
from jaxpt.runtime import disk, safetensors

_BATCH = 256  # records that leave TensorFlow together
_CHUNK = 1 << 20  # elements that are narrowed at a time


@dataclasses.dataclass(frozen=True)
class Batches:
    """Records that are made many at a time: TensorFlow would take them one by one, which costs more than they do."""

    spec: dict[str, tf.TensorSpec]
    """Shape and type of a record's features."""
    make: Callable[[], Iterator[dict[str, Ragged]]]
    """Makes them, from the first on: of each feature the values of many records, and the lengths in them."""

    def dataset(self, fail: Callable[[Exception], None]) -> tf.data.Dataset:
        """One record after the other, for a preprocessor that follows; `fail` as in `from_generator`."""

        def records() -> Iterator[dict[str, np.ndarray]]:
            for rows in self.make():
                columns = {name: np.split(x.values, np.cumsum(x.lengths)[:-1]) for name, x in rows.items()}
                for record in zip(*columns.values()):
                    yield {name: x.reshape(_row(self.spec[name])) for name, x in zip(columns, record)}

        return from_generator(records, self.spec, fail)


def _row(spec: tf.TensorSpec) -> list[int]:
    """Shape of a record's feature, for NumPy."""
    return [-1 if size is None else size for size in spec.shape.as_list()]


def write_shard(
    ds: tf.data.Dataset | Batches,
    path: Path,
    counts: Callable[[], dict[str, Any]] = dict,
    report: Callable[[int], None] = lambda records: None,
) -> int:
    """Writes records as one shard; it appears under its name when it is whole.

    Memory holds some hundred records at a time: columns grow in unnamed files, which vanish with the process.

    Args:
      ds: records, one by one or many at a time; features of fixed shape or vectors of any length.
      path: the shard's file.
      counts: called at the end; JSON values kept in the file.
      report: called with the number of records written so far.

    Returns:
      The number of records.

    Raises:
      UserError: the disk is full.
    """
    try:
        spec = ds.spec if isinstance(ds, Batches) else ds.element_spec
        columns = {name: _Column(name, spec, path.parent) for name, spec in spec.items()}
        records = 0
        for rows in ds.make() if isinstance(ds, Batches) else _batches(ds):
            for name, column in columns.items():
                column.append(rows[name])
            records += len(next(iter(rows.values())).lengths)
            report(records)
        features = {name: column.describe() for name, column in columns.items()}
        meta = {"records": records, "features": features, "counts": counts()}
        with disk.whole_file(path) as file:
            _assemble(file, [array for column in columns.values() for array in column.arrays], meta)
        return records
    except OSError as error:
        if reason := disk.full(error):
            raise StorageError(
                f"{path.parent}: the disk is full ({reason}); what is done is kept: free some space and start "
                "again, or give another data.cache_dir"
            ) from None
        raise


# ---- writing --------------------------------------------------------------------------------------------------------


def _batches(ds: tf.data.Dataset) -> Iterator[dict[str, Ragged]]:
    """Rows of every feature as one flat array and their lengths in elements of it."""

    def flatten(batch: dict[str, Any]) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        return {
            name: (x.flat_values, x.row_lengths())
            if isinstance(x, tf.RaggedTensor)
            else (x, tf.ones(tf.shape(x)[:1], tf.int64))
            for name, x in batch.items()
        }

    options = tf.data.Options()
    # A preprocessor that gathers the whole corpus in one batch would have room for 2^62 elements allocated beforehand.
    options.experimental_optimization.map_and_batch_fusion = False
    with TRACING:
        ds = ds.ragged_batch(_BATCH).map(flatten).prefetch(2).with_options(options)
    for batch in ds.as_numpy_iterator():
        yield {name: Ragged(*pair) for name, pair in batch.items()}


class _Array:
    """An array on its way to disk: elements in an unnamed file, and what they range over."""

    def __init__(self, name: str, dtype: Any, row: list[int], directory: Path) -> None:
        self.name, self.dtype, self.row, self.rows = name, np.dtype(dtype), row, 0
        self._least, self._most = 0, 0
        # Closed when the shard is written, or with the process.
        self._file = tempfile.TemporaryFile(dir=directory, prefix=".jaxpt-")  # noqa: SIM115

    def append(self, rows: np.ndarray) -> None:
        rows = np.ascontiguousarray(rows, self.dtype)
        if rows.size:
            if self.dtype.kind in "iu":
                self._least, self._most = min(self._least, int(rows.min())), max(self._most, int(rows.max()))
            self._file.write(rows.data)
        self.rows += len(rows)

    def narrow(self) -> np.dtype:
        """The smallest type that holds all elements."""
        if self.dtype.kind not in "iu":
            return self.dtype
        return np.promote_types(np.min_scalar_type(self._least), np.min_scalar_type(self._most))

    def chunks(self) -> Iterator[np.ndarray]:
        self._file.flush()
        self._file.seek(0)
        while (chunk := np.frombuffer(self._file.read(_CHUNK * self.dtype.itemsize), self.dtype)).size:
            yield chunk.astype(self.narrow())
        self._file.close()


class _Column:
    """A feature on its way to disk."""

    def __init__(self, name: str, spec: tf.TensorSpec, directory: Path) -> None:
        self._ragged = spec.shape.rank == 1 and spec.shape[0] is None
        if not self._ragged and not spec.shape.is_fully_defined():
            raise ValueError(f"feature {name} has shape {spec.shape}: wants a fixed one, or a vector of any length")
        row = [] if self._ragged else spec.shape.as_list()
        self.arrays = [_Array(name, spec.dtype.as_numpy_dtype, row, directory)]
        self._end = 0
        if self._ragged:
            self.arrays.append(_Array(f"{name}.offsets", np.int64, [], directory))
            self.arrays[1].append(np.zeros(1, np.int64))

    def append(self, rows: Ragged) -> None:
        self.arrays[0].append(rows.values)
        if self._ragged:
            ends = self._end + np.cumsum(rows.lengths)
            self.arrays[1].append(ends)
            self._end = int(ends[-1])

    def describe(self) -> dict[str, Any]:
        values = self.arrays[0]
        return {"ragged": self._ragged, "shape": values.row, "dtype": values.dtype.name, "values": self._end}


def _assemble(file: IO[bytes], arrays: list[_Array], meta: dict[str, Any]) -> None:
    """The arrays in the safetensors format. Wide types first: all are aligned."""
    arrays = sorted(arrays, key=lambda a: (-a.narrow().itemsize, a.name))
    tensors = {a.name: (a.narrow(), [a.rows, *a.row]) for a in arrays}

    def head(crc: int) -> bytes:
        return safetensors.header(tensors, {"jaxpt": json.dumps({"crc32": f"{crc:08x}"} | meta)})

    file.write(head(0))
    crc = zlib.crc32(head(0))
    for a in arrays:
        for chunk in a.chunks():
            crc = zlib.crc32(chunk, crc)
            file.write(chunk.data)
    file.seek(0)
    file.write(head(crc))


# ---- reading --------------------------------------------------------------------------------------------------------


def is_intact(path: Path, crc: str | None = None, pace: float = math.inf) -> bool:
    """True if a shard has the checksum in the manifest (`crc`), or without one, in its header.

    The checksum is that of the whole file with eight zeros in its own place. It is read at `pace` bytes a second.
    """
    try:
        written = read_meta(path)["crc32"]
        head = safetensors.raw_header(path)
        actual_crc = zlib.crc32(head.replace(written.encode(), b"0" * 8, 1))
        with path.open("rb") as file:
            file.seek(len(head))
            while chunk := file.read(_CHUNK):
                actual_crc = zlib.crc32(chunk, actual_crc)
                time.sleep(len(chunk) / pace)
        return written == f"{actual_crc:08x}" == (crc or written)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_meta(path: Path) -> dict[str, Any]:
    """A shard's own description: records, features, counts, crc32."""
    return json.loads(safetensors.read(path)[0]["jaxpt"])
