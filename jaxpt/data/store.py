"""Records on disk, read in any order: the deterministic half of a pipeline, run once.

    DIR/records-00000-of-00012.safetensors   a shard: every feature's values, and the offsets of ragged ones
    DIR/manifest.json                        format, identity, features, counts; each shard's size, checksum and records

A shard is memory-mapped, one file whatever the number of features. Integers take the fewest bytes that hold them (a
vocabulary below 65,536 ids: 2 a token) and come back in the type that they were given in.

    feature "tokens", ragged   tokens [Σ lengths], tokens.offsets [records + 1]; row i: tokens[offsets[i]:offsets[i+1]]
    feature "origin", fixed    origin [records, 3]

The manifest is written last, so that a store that has one is whole. `jaxpt.data.cache` says which shards there are,
and makes them in parallel.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.errors import UserError

FORMAT = 2
CHECKED_BYTES = 256 << 20
"""Larger stores are opened by their sizes alone; `jaxpt cache --verify` reads them through."""
MOST_SHARDS = 512
"""Larger corpora have larger shards: each is one open file."""
_BATCH = 256  # records that leave TensorFlow together
_CHUNK = 1 << 20  # elements that are narrowed at a time
_TYPES = {"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32",
          "uint16": "U16", "uint8": "U8", "bool": "BOOL", "float32": "F32", "float64": "F64"}  # fmt: skip
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Ragged(NamedTuple):
    """Rows of unequal length: `values` [Σ lengths] end to end, `lengths` [rows]."""

    values: np.ndarray
    lengths: np.ndarray


class Store:
    """A store that is open for reading."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        """Maps the files that `manifest` names; use `Store.open`."""
        self.directory, self.manifest = directory, manifest
        shards = [s for s in manifest["shards"] if s["records"]]
        self._shards = [_map(directory / s["file"]) for s in shards]
        self._starts = np.cumsum([0, *(s["records"] for s in shards)])

    @classmethod
    def open(cls, directory: str | Path, check: bool | None = None) -> Store | None:
        """Opens a store.

        Args:
          directory: where it lies.
          check: compare the checksums of all files; by default those of stores up to 256 MB, where it takes no time.

        Returns:
          The store, or None if there is none, or one that is not whole (altered, cut short, of another format).
        """
        directory = Path(directory)
        manifest = read_manifest(directory)
        if manifest is None or damaged(directory, manifest, check):
            return None
        try:
            return cls(directory, manifest)
        except (OSError, ValueError, KeyError):
            return None

    def __len__(self) -> int:
        return self.manifest["records"]

    @property
    def checksum(self) -> str:
        """A short name of the content: equal stores have equal ones."""
        files = sorted((s["file"], s["size"], s["crc32"]) for s in self.manifest["shards"])
        return f"{zlib.crc32(json.dumps(files).encode()):08x}-{len(self)}"

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        """Shape and type of a record's features."""
        return {
            name: tf.TensorSpec([None] if f["ragged"] else f["shape"], f["dtype"])
            for name, f in self.manifest["features"].items()
        }

    def lengths(self, name: str) -> np.ndarray:
        """Lengths of a ragged feature, of all records.

        Args:
          name: the feature.

        Returns:
          int32 [len(store)].
        """
        sizes = [np.diff(shard[f"{name}.offsets"].astype(np.int64)).astype(np.int32) for shard in self._shards]
        return np.concatenate([np.zeros(0, np.int32), *sizes])

    def fetch(self, indices: np.ndarray) -> dict[str, Ragged | np.ndarray]:
        """Reads records.

        Args:
          indices: int [rows], each in [0, len(store)).

        Returns:
          {feature: Ragged, or an array [rows, ...] for a feature of fixed shape}.
        """
        number = np.searchsorted(self._starts, indices, side="right") - 1
        places = [(self._shards[s], i) for s, i in zip(number.tolist(), (indices - self._starts[number]).tolist())]
        out: dict[str, Ragged | np.ndarray] = {}
        for name, feature in self.manifest["features"].items():
            dtype, offsets = feature["dtype"], f"{name}.offsets"
            if feature["ragged"]:
                rows = [shard[name][shard[offsets][i] : shard[offsets][i + 1]] for shard, i in places]
                values = np.concatenate(rows, dtype=dtype) if rows else np.zeros(0, dtype)
                out[name] = Ragged(values, np.fromiter(map(len, rows), np.int64, len(rows)))
            else:
                rows = [shard[name][i] for shard, i in places]
                out[name] = np.array(rows, dtype).reshape(len(rows), *feature["shape"])
        return out


def build(
    make: Callable[[], tf.data.Dataset],
    directory: str | Path,
    counts: Callable[[], dict[str, Any]] = dict,
    report: Callable[[int], None] = lambda records: None,
) -> Store:
    """Opens the store at `directory`; where there is none that is whole, runs the pipeline and writes it, as one shard.

    Args:
      make: gives the data set of records; called only if it has to be built.
      directory: where the store belongs.
      counts: called at the end; what it gives is kept in the manifest.
      report: called now and then with the number of records written so far.

    Returns:
      The store.

    Raises:
      UserError: no records come out, or the disk is full.
    """
    directory = Path(directory)
    found = Store.open(directory)
    if found is not None:
        return found
    with made(directory):
        write_shard(make(), directory / shard_name(0, 1), counts, report)
        return publish(directory, 1, {})


@contextmanager
def made(directory: Path) -> Iterator[None]:
    """A directory, which a failure leaves behind only if something whole is in it."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if not any(directory.iterdir()):
            directory.rmdir()
        raise


def shard_name(index: int, shards: int) -> str:
    """File name of a shard, as SeqIO numbers its own."""
    return f"records-{index:05d}-of-{shards:05d}.safetensors"


# ---- writing --------------------------------------------------------------------------------------------------------


def write_shard(
    ds: tf.data.Dataset,
    path: Path,
    counts: Callable[[], dict[str, Any]] = dict,
    report: Callable[[int], None] = lambda records: None,
) -> None:
    """Writes a data set of records as one shard; it appears under its name when it is whole.

    Memory holds 256 records at a time: columns grow in unnamed files, which vanish with the process.

    Args:
      ds: records, features of fixed shape or vectors of any length.
      path: the shard's file.
      counts: called at the end; JSON values kept in the file.
      report: called with the number of records written so far.

    Raises:
      UserError: the disk is full.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        columns = {name: _Column(name, spec, path.parent) for name, spec in ds.element_spec.items()}
        records = 0
        for rows in _batches(ds):
            for name, column in columns.items():
                column.append(rows[name])
            records += len(next(iter(rows.values())).lengths)
            report(records)
        features = {name: column.describe() for name, column in columns.items()}
        meta = {"records": records, "features": features, "counts": counts()}
        with partial.open("w+b") as file:
            _assemble(file, [array for column in columns.values() for array in column.arrays()], meta)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if full_disk(error):
            raise UserError(
                f"{path.parent}: the disk is full ({error.strerror}); what is done is kept: free some space and start "
                "again, or give another data.cache_dir"
            ) from None
        raise
    finally:
        partial.unlink(missing_ok=True)


def publish(
    directory: Path,
    shards: int,
    identity: dict[str, Any],
    check: Callable[[dict[str, Any]], None] = lambda counts: None,
) -> Store:
    """Writes the manifest of a directory that holds all its shards.

    Args:
      directory: where they lie.
      shards: how many there are.
      identity: what determines them, kept for people to read.
      check: called with the sum of all counts; may raise.

    Returns:
      The store.

    Raises:
      UserError: the shards hold no record at all.
    """
    names = [shard_name(i, shards) for i in range(shards)]
    heads = [read_meta(directory / name) for name in names]
    records, counts = sum(head["records"] for head in heads), _total([head["counts"] for head in heads])
    check(counts)
    if not records:
        raise UserError("data: the documents give no record; they are too few or too short for data.length")
    features = heads[0]["features"]
    for name, feature in features.items():
        feature["values"] = sum(head["features"][name]["values"] for head in heads)
    manifest = {
        "format": FORMAT,
        "identity": identity,
        "records": records,
        "features": features,
        "counts": counts,
        "shards": [
            {"file": name, "size": (directory / name).stat().st_size} | {k: head[k] for k in ("records", "crc32")}
            for name, head in zip(names, heads)
        ],
    }
    write_manifest(directory, manifest | {"crc32": _manifest_crc(manifest)})
    return Store(directory, manifest)


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest of a directory that holds all its shards: from now on it is a store."""
    partial = directory / f".manifest.{uuid.uuid4().hex}.partial"
    partial.write_text(json.dumps(manifest, indent=1), "utf-8")
    os.replace(partial, directory / "manifest.json")


def full_disk(error: OSError) -> str | None:
    """The system's words for a disk that is full, None for another error."""
    return error.strerror if error.errno in _FULL else None


def _total(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of counts, and of counts inside them."""
    keys = dict.fromkeys(key for count in counts for key in count)
    values = {key: [count[key] for count in counts if key in count] for key in keys}
    return {key: _total(found) if isinstance(found[0], dict) else sum(found) for key, found in values.items()}


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
        self._values = _Array(name, spec.dtype.as_numpy_dtype, [] if self._ragged else spec.shape.as_list(), directory)
        self._offsets = _Array(f"{name}.offsets", np.int64, [], directory) if self._ragged else None
        self._end = 0
        if self._offsets:
            self._offsets.append(np.zeros(1, np.int64))

    def append(self, rows: Ragged) -> None:
        self._values.append(rows.values)
        if self._offsets:
            ends = self._end + np.cumsum(rows.lengths)
            self._offsets.append(ends)
            self._end = int(ends[-1])

    def arrays(self) -> list[_Array]:
        return [self._values, *([self._offsets] if self._offsets else [])]

    def describe(self) -> dict[str, Any]:
        dtype = self._values.dtype.name
        return {"ragged": self._ragged, "shape": self._values.row, "dtype": dtype, "values": self._end}


def _assemble(file: IO[bytes], arrays: list[_Array], meta: dict[str, Any]) -> None:
    """The arrays in the safetensors format: length of the header, header, data. Wide types first: all are aligned."""
    arrays = sorted(arrays, key=lambda a: (-a.narrow().itemsize, a.name))
    header: dict[str, Any] = {}
    end = 0
    for a in arrays:
        dtype, shape = a.narrow(), [a.rows, *a.row]
        begin, end = end, end + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        header[a.name] = {"dtype": _TYPES[dtype.name], "shape": shape, "data_offsets": [begin, end]}

    def head(crc: int) -> bytes:
        told = json.dumps({"crc32": f"{crc:08x}"} | meta)
        text = json.dumps({"__metadata__": {"jaxpt": told}} | header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    file.write(head(0))
    crc = zlib.crc32(head(0))
    for a in arrays:
        for chunk in a.chunks():
            crc = zlib.crc32(chunk, crc)
            file.write(chunk.data)
    file.seek(0)
    file.write(head(crc))


# ---- reading --------------------------------------------------------------------------------------------------------


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """What a store says of itself, None where there is none that can be read."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text("utf-8"))
        return manifest if manifest_is_whole(manifest) else None
    except (OSError, ValueError):
        return None


def manifest_is_whole(manifest: Any) -> bool:
    """Whether a manifest is of this format and has its own checksum."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return False
    return manifest.get("crc32") == _manifest_crc(manifest)


def _manifest_crc(manifest: dict[str, Any]) -> str:
    told = {key: value for key, value in manifest.items() if key != "crc32"}
    return f"{zlib.crc32(json.dumps(told, sort_keys=True).encode()):08x}"


def damaged(directory: Path, manifest: dict[str, Any], check: bool | None = None) -> list[str]:
    """Names of the shards that are missing, cut short or altered.

    Args:
      directory: where the store lies.
      manifest: what it says of itself.
      check: compare checksums and not sizes alone; by default for stores up to 256 MB.

    Returns:
      File names, sorted.
    """
    if check is None:
        check = sum(shard["size"] for shard in manifest["shards"]) <= CHECKED_BYTES
    return sorted(s["file"] for s in manifest["shards"] if not _sound(directory / s["file"], s, check))


def _sound(path: Path, told: dict[str, Any], check: bool) -> bool:
    try:
        return path.stat().st_size == told["size"] and (not check or whole_shard(path, told["crc32"]))
    except OSError:
        return False


def whole_shard(path: Path, crc: str | None = None) -> bool:
    """Whether a shard has the checksum that the manifest (`crc`), or else its own header, tells.

    The checksum is that of the whole file with eight zeros in its own place.
    """
    try:
        told = read_meta(path)["crc32"]
        with path.open("rb") as file:
            size = file.read(8)
            head = file.read(int.from_bytes(size, "little")).replace(told.encode(), b"0" * 8, 1)
            found = zlib.crc32(size + head)
            while chunk := file.read(_CHUNK):
                found = zlib.crc32(chunk, found)
        return told == f"{found:08x}" == (crc or told)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_meta(path: Path) -> dict[str, Any]:
    """A shard's own description: records, features, counts, crc32."""
    return json.loads(_header(path)["__metadata__"]["jaxpt"])


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))


def _map(path: Path) -> dict[str, np.ndarray]:
    """A shard's arrays, memory-mapped."""
    dtypes = {short: np.dtype(name) for name, short in _TYPES.items()}
    header = _header(path)
    buffer = np.memmap(path, np.uint8, "r").view(np.ndarray)
    data = buffer[8 + int.from_bytes(buffer[:8].tobytes(), "little") :]
    return {
        name: data[slice(*entry["data_offsets"])].view(dtypes[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }
