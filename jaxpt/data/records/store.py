"""Records on disk, read in any order: the deterministic half of a pipeline, run once.

    DIR/records-00000-of-00012.safetensors   a shard (`shard.py`): one file whatever the number of features
    DIR/manifest.json                        format, identity, features, counts; each shard's size, checksum and records

Shards are memory-mapped. The manifest is written last, so that a store that has one is whole. `cache.py` says which
shards there are, and makes them in parallel.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.data.records.shard import Ragged, is_intact, read_meta
from jaxpt.errors import UserError
from jaxpt.runtime import background, safetensors
from jaxpt.runtime.disk import write_text

FORMAT = 2
CHECKED_BYTES = 256 << 20
"""Larger stores are opened by their sizes alone; a run reads them through in the background, `jaxpt cache --verify`
before."""
_PACE = 100e6
"""Bytes a second in the background: a tenth of a core, and what a disk has to spare."""
COUNTED = 2**27
MOST_SHARDS = 512
"""Larger corpora have larger shards: each is one open file."""


class Store:
    """A store that is open for reading."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        """Maps the files that `manifest` names; use `Store.open`."""
        self.directory, self.manifest = directory, manifest
        shards = {n: s for n, s in enumerate(manifest["shards"]) if s["records"]}
        self._shards = {n: safetensors.mapped(directory / s["file"]) for n, s in shards.items()}
        self._starts = np.cumsum([0, *(s["records"] for s in manifest["shards"])])
        self._damaged: Path | None = None

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
            for name, f in self._features().items()
        }

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self.manifest["shards"])

    def records_of(self, shards: Sequence[int]) -> np.ndarray:
        """How many records some shards have: int64 [shards]."""
        return np.array([self.manifest["shards"][n]["records"] for n in shards], np.int64)

    def meta(self, number: int) -> dict[str, Any]:
        """What a shard says of itself, see `read_meta`."""
        return read_meta(self.directory / self.manifest["shards"][number]["file"])

    def parts_of(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shard of each record, and its place in the shard."""
        number = np.searchsorted(self._starts, records, side="right") - 1
        return number, records - self._starts[number]

    def _features(self) -> dict[str, Any]:
        """Type and shape of the features."""
        return self.manifest["features"]

    def _shard(self, number: int) -> Mapping[str, np.ndarray]:
        """The arrays of a shard that has records."""
        return self._shards[number]

    def wait(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Waits until all records are there; False if `stop` ended it. Those of a store on disk are."""
        return True

    def check_in_background(self, part: int = 0, parts: int = 1) -> None:
        """Compares the checksums of a large store, whose sizes alone were compared, while it is read.

        `fetch` raises an error once a shard is found that is not as it was written.

        Args:
          part: which part of the shards, such as the number of this process.
          parts: into how many they are divided.
        """
        if sum(shard["size"] for shard in self.manifest["shards"]) > CHECKED_BYTES:
            shards = self.manifest["shards"][part::parts]
            arguments = shards, background.current()
            threading.Thread(target=self._check, args=arguments, name="jaxpt-store", daemon=True).start()

    def _check(self, shards: list[dict[str, Any]], scope: background.Scope) -> None:
        for shard in shards:
            if scope.is_ended:
                return
            path = self.directory / shard["file"]
            if not is_intact(path, shard["crc32"], _PACE):
                self._damaged = path
                return

    def lengths(self, name: str) -> np.ndarray:
        """Lengths of a ragged feature, of all records.

        Args:
          name: the feature.

        Returns:
          int32 [len(store)].
        """
        sizes = [np.diff(shard[f"{name}.offsets"].astype(np.int64)).astype(np.int32) for shard in self._shards.values()]
        return np.concatenate([np.zeros(0, np.int32), *sizes])

    def values(self, name: str) -> np.ndarray:
        """Values of a feature, of all records.

        Args:
          name: the feature.

        Returns:
          [len(store), ...], of a ragged feature [Σ lengths].
        """
        shards = [shard[name] for shard in self._shards.values()]
        return np.concatenate(shards, dtype=self.manifest["features"][name]["dtype"])

    def token_counts(self, size: int) -> np.ndarray:
        """How often each id is in "tokens", by up to 2^27 of them, which are spread evenly over the shards.

        Args:
          size: ids.

        Returns:
          int64 [size].
        """
        counts = np.zeros(size, np.int64)
        for shard in self._shards.values():
            values = shard["tokens"]
            counts += np.bincount(values[: max(1, COUNTED // len(self._shards))], minlength=size)[:size]
        return counts

    def fetch(self, indices: np.ndarray) -> dict[str, Ragged | np.ndarray]:
        """Reads records.

        Args:
          indices: int [rows], each in [0, len(store)).

        Returns:
          {feature: Ragged, or an array [rows, ...] for a feature of fixed shape}.

        Raises:
          UserError: a shard was found to be damaged in the background.
        """
        return self.fetch_at(*self.parts_of(indices))

    def fetch_at(self, shards: np.ndarray, places: np.ndarray) -> dict[str, Ragged | np.ndarray]:
        """Reads records as `fetch` does.

        Args:
          shards: int [rows], numbers of shards.
          places: int [rows], those of the records in them.

        Returns:
          As `fetch`.

        Raises:
          UserError: as `fetch`.
        """
        if self._damaged is not None:
            raise UserError(
                f"{self._damaged}: is damaged: its checksum differs, and batches may have had wrong records since the "
                "start; `jaxpt cache RECIPE --verify` makes it again, then re-run to resume"
            )
        mapped = {n: self._shard(n) for n in np.unique(shards).tolist()}
        rows_at = [(mapped[n], i) for n, i in zip(shards.tolist(), places.tolist())]
        out: dict[str, Ragged | np.ndarray] = {}
        for name, feature in self._features().items():
            dtype, offsets = feature["dtype"], f"{name}.offsets"
            if feature["ragged"]:
                rows = [shard[name][shard[offsets][i] : shard[offsets][i + 1]] for shard, i in rows_at]
                values = np.concatenate(rows, dtype=dtype) if rows else np.zeros(0, dtype)
                out[name] = Ragged(values, np.fromiter(map(len, rows), np.int64, len(rows)))
            else:
                rows = [shard[name][i] for shard, i in rows_at]
                out[name] = np.array(rows, dtype).reshape(len(rows), *feature["shape"])
        return out


@contextmanager
def made(directory: Path) -> Iterator[None]:
    """A directory, which a failure leaves behind only if something whole is in it."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
        raise


def shard_name(index: int, shards: int) -> str:
    """File name of a shard, as SeqIO numbers its own."""
    return f"records-{index:05d}-of-{shards:05d}.safetensors"


# ---- writing --------------------------------------------------------------------------------------------------------


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
    sums = together(heads)
    check(sums["counts"])
    if not sums["records"]:
        raise UserError("data: the documents give no record; they are too few or too short for data.length")
    manifest = {
        "format": FORMAT,
        "identity": identity,
        **sums,
        "shards": [
            {"file": name, "size": (directory / name).stat().st_size} | {k: head[k] for k in ("records", "crc32")}
            for name, head in zip(names, heads)
        ],
    }
    write_manifest(directory, manifest | {"crc32": _manifest_crc(manifest)})
    return Store(directory, manifest)


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest of a directory that holds all its shards: from now on it is a store."""
    write_text(directory / "manifest.json", json.dumps(manifest, indent=1))


def together(heads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What some shards have in all, of what each says of itself: {"records", "features", "counts"}."""
    features = {name: dict(feature) for name, feature in heads[0]["features"].items()}
    for name, feature in features.items():
        feature["values"] = sum(head["features"][name]["values"] for head in heads)
    counts = _total([head["counts"] for head in heads])
    return {"records": sum(head["records"] for head in heads), "features": features, "counts": counts}


def _total(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of counts, and of counts inside them."""
    keys = dict.fromkeys(key for count in counts for key in count)
    values = {key: [count[key] for count in counts if key in count] for key in keys}
    return {key: _total(terms) if isinstance(terms[0], dict) else sum(terms) for key, terms in values.items()}


# ---- reading --------------------------------------------------------------------------------------------------------


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """What a store says of itself, None where there is none that can be read."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if manifest_is_whole(manifest) else None


def manifest_is_whole(manifest: Any) -> bool:
    """True if a manifest has this format and a right checksum."""
    has_format = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    return has_format and manifest.get("crc32") == _manifest_crc(manifest)


def _manifest_crc(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "crc32"}
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


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

    def is_whole(path: Path, size: int, crc: str) -> bool:
        return path.is_file() and path.stat().st_size == size and (not check or is_intact(path, crc))

    shards = manifest["shards"]
    return sorted(s["file"] for s in shards if not is_whole(directory / s["file"], s["size"], s["crc32"]))
