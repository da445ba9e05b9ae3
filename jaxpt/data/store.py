"""Records on disk, read in any order: the deterministic half of a pipeline, run once.

    DIR/manifest.json            format, number of records, features with sizes and checksums, counts of documents
    DIR/<feature>.npy            all rows end to end (ragged feature), or [records, ...] (fixed shape)
    DIR/<feature>.offsets.npy    int64 [records + 1]: row i is values[offsets[i]:offsets[i+1]]

Files are memory-mapped. A store is written under a temporary name and renamed when whole, so that one under its right
name is complete; of two processes that build the same store, the second finds the first one's and takes it.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.errors import UserError

FORMAT = 1
_BATCH = 256  # records that leave TensorFlow together
_CHECKED_BYTES = 256 << 20  # larger stores are checked by their sizes alone


class Ragged(NamedTuple):
    """Rows of unequal length: `values` [Σ lengths] end to end, `lengths` [rows]."""

    values: np.ndarray
    lengths: np.ndarray


class Store:
    """A store that is open for reading."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        """Maps the files that `manifest` names; use `Store.open`."""
        self.directory, self.manifest = directory, manifest
        self._columns = {
            name: (_map(directory / f"{name}.npy"), _map(directory / f"{name}.offsets.npy") if f["ragged"] else None)
            for name, f in manifest["features"].items()
        }

    @classmethod
    def open(cls, directory: str | Path) -> Store | None:
        """Opens a store.

        Args:
          directory: where it lies.

        Returns:
          The store, or None if there is none, or one that is not whole (altered, cut short, of another format).
        """
        directory = Path(directory)
        try:
            manifest = json.loads((directory / "manifest.json").read_text("utf-8"))
            sizes = {name: (directory / name).stat().st_size for name in manifest["files"]}
            if manifest["format"] != FORMAT or sizes != {n: f["size"] for n, f in manifest["files"].items()}:
                return None
            small = sum(sizes.values()) <= _CHECKED_BYTES
            if small and any(_crc(directory / n) != f["crc32"] for n, f in manifest["files"].items()):
                return None
            return cls(directory, manifest)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def __len__(self) -> int:
        return self.manifest["records"]

    @property
    def checksum(self) -> str:
        """A short name of the content: equal stores have equal ones."""
        files = sorted((name, f["size"], f["crc32"]) for name, f in self.manifest["files"].items())
        return f"{zlib.crc32(json.dumps(files).encode()):08x}-{len(self)}"

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        """Shape and type of a record's features."""
        return {
            name: tf.TensorSpec([None] if f["ragged"] else f["shape"], f["dtype"])
            for name, f in self.manifest["features"].items()
        }

    def fetch(self, indices: np.ndarray) -> dict[str, Ragged | np.ndarray]:
        """Reads records.

        Args:
          indices: int [rows], each in [0, len(store)).

        Returns:
          {feature: Ragged, or an array [rows, ...] for a feature of fixed shape}.
        """
        out: dict[str, Ragged | np.ndarray] = {}
        for name, (values, offsets) in self._columns.items():
            if offsets is None:
                out[name] = values[indices]
            else:
                starts, ends = offsets[indices], offsets[indices + 1]
                rows = [values[a:b] for a, b in zip(starts.tolist(), ends.tolist())]
                out[name] = Ragged(np.concatenate(rows) if rows else values[:0], ends - starts)
        return out


def build(
    make: Callable[[], tf.data.Dataset],
    directory: str | Path,
    counts: Callable[[], dict[str, int]] = dict,
    report: Callable[[int], None] = lambda records: None,
) -> Store:
    """Opens the store at `directory`; where there is none that is whole, runs the pipeline and writes it.

    Args:
      make: gives the data set of records; called only if it has to be built.
      directory: where the store belongs.
      counts: called at the end; what it gives is kept in the manifest.
      report: called now and then with the number of records written so far.

    Returns:
      The store.

    Raises:
      UserError: no records come out.
    """
    directory = Path(directory)
    found = Store.open(directory)
    if found is not None:
        return found
    temporary = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.partial")
    temporary.mkdir(parents=True)
    try:
        _write(make(), temporary, counts, report)
        return _publish(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, directory: Path) -> Store:
    """Renames a finished store; another process's whole one is kept, a torn one is replaced."""
    for _ in range(3):
        found = Store.open(directory)
        if found is not None:
            return found
        if directory.exists():
            torn = temporary.with_suffix(".torn")
            try:
                directory.rename(torn)
            except OSError:
                continue  # another process was faster
            shutil.rmtree(torn, ignore_errors=True)
        try:
            temporary.rename(directory)
        except OSError:
            continue
    found = Store.open(directory)
    if found is None:
        raise UserError(f"{directory}: cannot be written; give another data.cache_dir")
    return found


def _write(
    ds: tf.data.Dataset, directory: Path, counts: Callable[[], dict[str, int]], report: Callable[[int], None]
) -> None:
    spec = ds.element_spec
    columns = {name: _Column(directory, name, s) for name, s in spec.items()}
    records = 0
    for rows in _batches(ds):
        for name, column in columns.items():
            column.append(rows[name])
        records += len(next(iter(rows.values())).lengths if columns else ())
        report(records)
    if not records:
        raise UserError("data: the documents give no record; they are too few or too short for data.length")
    files = {file: entry for column in columns.values() for file, entry in column.close().items()}
    manifest = {
        "format": FORMAT,
        "records": records,
        "features": {name: column.describe() for name, column in columns.items()},
        "files": files,
        "counts": counts(),
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1), "utf-8")
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _batches(ds: tf.data.Dataset) -> Iterator[dict[str, Ragged]]:
    """Rows of every feature as one flat array and their lengths in elements of it."""

    def flatten(batch: dict[str, Any]) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        out = {}
        for name, value in batch.items():
            if isinstance(value, tf.RaggedTensor):
                out[name] = (value.flat_values, value.row_lengths())
            else:
                out[name] = (value, tf.ones(tf.shape(value)[:1], tf.int64))
        return out

    options = tf.data.Options()
    # A preprocessor that gathers the whole corpus in one batch would have room for 2^62 elements allocated beforehand.
    options.experimental_optimization.map_and_batch_fusion = False
    ds = ds.ragged_batch(_BATCH).map(flatten).prefetch(2).with_options(options)
    for batch in ds.as_numpy_iterator():
        yield {name: Ragged(*pair) for name, pair in batch.items()}


class _Column:
    """A feature on its way to disk."""

    def __init__(self, directory: Path, name: str, spec: tf.TensorSpec) -> None:
        self._ragged = spec.shape.rank == 1 and spec.shape[0] is None
        if not self._ragged and not spec.shape.is_fully_defined():
            raise ValueError(f"feature {name} has shape {spec.shape}: wants a fixed one, or a vector of any length")
        self._shape = [] if self._ragged else spec.shape.as_list()
        self._dtype = spec.dtype.as_numpy_dtype
        self._values = _Array(directory / f"{name}.npy", self._dtype, self._shape)
        self._offsets = _Array(directory / f"{name}.offsets.npy", np.int64, []) if self._ragged else None
        self._end = 0
        if self._offsets:
            self._offsets.append(np.zeros(1, np.int64))

    def append(self, rows: Ragged) -> None:
        self._values.append(rows.values)
        if self._offsets:
            ends = self._end + np.cumsum(rows.lengths)
            self._offsets.append(ends)
            self._end = int(ends[-1])

    def close(self) -> dict[str, dict[str, int]]:
        return self._values.close() | (self._offsets.close() if self._offsets else {})

    def describe(self) -> dict[str, Any]:
        return {"ragged": self._ragged, "shape": self._shape, "dtype": np.dtype(self._dtype).name, "values": self._end}


class _Array:
    """A .npy file of unknown length, appended to."""

    def __init__(self, path: Path, dtype: Any, row: list[int]) -> None:
        self._path, self._dtype, self._row, self._rows = path, np.dtype(dtype), row, 0
        self._file = path.open("wb")
        self._header()

    def _header(self) -> None:
        """NumPy pads headers so that the first dimension can grow in place."""
        shape = (self._rows, *self._row)
        head = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, head)

    def append(self, rows: np.ndarray) -> None:
        rows = np.ascontiguousarray(rows, self._dtype)
        self._rows += len(rows)
        self._file.write(rows.data if rows.size else b"")

    def close(self) -> dict[str, dict[str, int]]:
        self._file.seek(0)
        self._header()
        self._file.close()
        return {self._path.name: {"size": self._path.stat().st_size, "crc32": _crc(self._path)}}


def _map(path: Path) -> np.ndarray:
    """Memory-mapped; an array without elements cannot be mapped."""
    array = np.load(path, mmap_mode="r")
    return array.view(np.ndarray) if array.size else np.load(path)


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc
