"""Where documents come from: text, JSONL, Parquet, TFDS, the built-in corpus, or a registered SeqIO Task.

A document is {"text": string, "origin": int64[2]}; the origin is (number of the file, number of the document in it),
both from 0. The number in the file is that of the line (text, JSONL), row (Parquet, TFDS) or block (blank_line), so
that it leads back to the place. Documents without text are skipped and counted.

Without a `validation_path` a document is held out if the hash of its text falls under `validation_fraction`: the
choice depends on nothing but the text, and equal documents never stand on both sides.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
import json
import platform
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from jaxpt.config import DataConfig
from jaxpt.data import builtin
from jaxpt.data._tf import tf
from jaxpt.errors import UserError

Text = str | np.ndarray  # a text, or the token ids that a registered Task gives
Reader = Callable[[str], Iterator[tuple[int, Text]]]

_CHUNK = 256  # documents that cross into TensorFlow together
_HASHED_BYTES = 1 << 30  # files up to this size in all are known by their content, larger ones by size and time
_SUFFIXES = {".txt": "text", ".text": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
             ".parquet": "parquet"}  # fmt: skip


class Source:
    """The documents of a corpus, by split.

    Attributes:
      failure: the mistake that ended a reading inside tf.data, which would hide it.
      counts: {split: {"documents": n, "empty": n}} of the readings that came to their end.
    """

    def __init__(
        self, files: dict[str, list[str]], read: Reader, fraction: float | None, tokenized: bool = False
    ) -> None:
        """A corpus of `files` by split, of which `read` gives (number, text); `fraction` is held out by hash."""
        self._files, self._read, self._fraction = files, read, fraction
        self.tokenized = tokenized
        self.failure: UserError | None = None
        self.counts: dict[str, dict[str, int]] = {}

    def documents(self, split: str) -> Iterator[tuple[int, int, Text]]:
        """Reads a split from its start.

        Args:
          split: "train" or "validation".

        Yields:
          (number of the file, number of the document in it, text).

        Raises:
          UserError: names the file and line that is not as it should be; or the split is empty.
        """
        kept = seen = empty = 0
        for number, path in enumerate(self._files[split]):
            before = seen
            for index, text in self._read(path):
                if (not text.strip()) if isinstance(text, str) else not text.size:
                    empty += 1
                    continue
                seen += 1
                if self._fraction is None or held_out(text, self._fraction) == (split == "validation"):
                    kept += 1
                    yield number, index, text
            if seen == before:
                raise UserError(f"{path}: no documents in it")
        if not kept:
            raise UserError(
                f"data.validation_fraction: {self._fraction} of {seen} documents leaves the {split} split empty; "
                "give data.validation_path, another fraction or more documents"
            )
        self.counts[split] = {"documents": kept, "empty": empty}

    def dataset(self, split: str) -> tf.data.Dataset:
        """The same as a dataset; a mistake inside it is kept in `failure`.

        Args:
          split: "train" or "validation".

        Returns:
          {"text": string, "origin": int64[2]}, or "tokens": int32[n] in place of the text.
        """
        key = "tokens" if self.tokenized else "text"
        spec = tf.TensorSpec([None], tf.int32) if self.tokenized else tf.TensorSpec([None], tf.string)
        signature = {key: spec, "origin": tf.TensorSpec([2] if self.tokenized else [None, 2], tf.int64)}

        def elements() -> Iterator[dict[str, Any]]:
            try:
                if self.tokenized:
                    for file, number, tokens in self.documents(split):
                        yield {key: tokens, "origin": (file, number)}
                else:
                    for chunk in _chunks(self.documents(split)):
                        yield {key: [text for _, _, text in chunk], "origin": [(f, n) for f, n, _ in chunk]}
            except UserError as error:
                self.failure = error
                raise

        ds = tf.data.Dataset.from_generator(elements, output_signature=signature)
        return ds if self.tokenized else ds.unbatch()

    def fingerprint(self) -> dict[str, Any]:
        """What determines the documents: each file's name and content (or size and time), and what is held out."""
        paths = {split: list(paths) for split, paths in self._files.items()}
        known = fingerprints(sorted({p for ps in paths.values() for p in ps}))
        return {
            "files": {split: [known[p] for p in ps] for split, ps in paths.items()},
            "held_out": self._fraction,
        }


def held_out(text: Text, fraction: float) -> bool:
    """Whether a document belongs to the validation split: blake2b(text) / 2^64 < fraction.

    Args:
      text: the document, or its token ids.
      fraction: share of documents to hold out.

    Returns:
      True for validation. A document held out under a small fraction is also held out under a larger one.
    """
    content = text.encode(errors="surrogatepass") if isinstance(text, str) else text.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") < fraction * 2**64


def open_source(data: DataConfig) -> Source:
    """Finds the files (or the data set, or the task) that a configuration names.

    Args:
      data: `source`, `path`, `validation_path`, …

    Returns:
      A source with a "train" and a "validation" split; nothing but the files' existence is checked yet.

    Raises:
      UserError: a file is missing or a directory, a glob matches nothing, a suffix is unknown.
    """
    if data.source == "task":
        from jaxpt.data import foreign

        return Source(*foreign.task_documents(data))
    if data.source == "builtin" or (data.source == "auto" and data.path is None):
        return Source(
            {"train": ["builtin"], "validation": ["builtin"]},
            lambda _: enumerate(builtin.documents()),
            data.validation_fraction,
        )
    if data.path is None:
        raise UserError(f"data.path is missing: data.source: {data.source} needs one")
    if data.source == "tfds":
        from jaxpt.data import foreign

        return Source(*foreign.tfds_documents(data))
    train = _expand(data.path, "data.path")
    held = _expand(data.validation_path, "data.validation_path") if data.validation_path else None
    for path in [*train, *(held or [])]:
        _format(path, data)
    return Source(
        {"train": train, "validation": held or train},
        lambda path: _read(path, data),
        None if held else data.validation_fraction,
    )


def _expand(paths: str | tuple[str, ...], key: str) -> list[str]:
    """Files in the order given, globs in alphabetical order."""
    files: list[str] = []
    for path in [paths] if isinstance(paths, str) else paths:
        found = sorted(tf.io.gfile.glob(path)) if any(c in path for c in "*?[") else [path]
        if not found:
            raise UserError(f"{key}: no file matches {path}")
        for file in found:
            if tf.io.gfile.isdir(file):
                raise UserError(f"{key}: {file} is a directory; name its files, such as {file.rstrip('/')}/*.txt")
            if not tf.io.gfile.exists(file):
                raise UserError(f"{key}: {file}: no such file")
        files += found
    return files


def _format(path: str, data: DataConfig) -> str:
    """text, jsonl or parquet."""
    if data.source != "auto":
        return data.source
    name = path.removesuffix(".gz")
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    raise UserError(f"{path}: the suffix says nothing of the format; set data.source to text, jsonl or parquet")


def fingerprints(paths: list[str]) -> dict[str, dict[str, Any]]:
    """What identifies each file, wherever it lies: its name and content; size and time where that would take long."""
    stats = {p: tf.io.gfile.stat(p) for p in paths if tf.io.gfile.exists(p)}
    by_content = sum(s.length for s in stats.values()) <= _HASHED_BYTES
    out: dict[str, dict[str, Any]] = {}
    for path in paths:
        if path not in stats:  # a TFDS name, or the built-in corpus
            out[path] = {"name": path}
            if path == "builtin":
                code = hashlib.blake2b(inspect.getsource(builtin).encode(), digest_size=16)
                out[path] |= {"python": platform.python_version(), "blake2b": code.hexdigest()}
            continue
        out[path] = {"name": path.rpartition("/")[2], "size": stats[path].length}
        if by_content:
            with _open(path, unpack=False) as file:
                out[path]["blake2b"] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        else:
            out[path]["mtime_nsec"] = stats[path].mtime_nsec
    return out


# ---- readers: path → (number, text) ---------------------------------------------------------------------------------


class _Remote(io.RawIOBase):
    """A file that tf.io.gfile opens (`gs://`), as Python's own file objects are."""

    def __init__(self, path: str) -> None:
        self._file = tf.io.gfile.GFile(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _open(path: str, unpack: bool = True) -> IO[bytes]:
    # The caller closes it.
    file = io.BufferedReader(_Remote(path), 1 << 20) if "://" in path else open(path, "rb")  # noqa: SIM115
    return gzip.GzipFile(fileobj=file) if unpack and path.endswith(".gz") else file


def _read(path: str, data: DataConfig) -> Iterator[tuple[int, str]]:
    kind = _format(path, data)
    if kind == "parquet":
        return _parquet(path, data.field)
    if kind == "jsonl":
        return _jsonl(path, data.field)
    return _blocks(path) if data.documents == "blank_line" else _lines(path)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file, its number from 0."""
    try:
        with _open(path) as file:
            for number, line in enumerate(file):
                try:
                    text = line.decode("utf-8-sig" if number == 0 else "utf-8")
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{line[error.start]:02x}"
                    raise UserError(
                        f"{path}: line {number + 1}: not UTF-8 ({byte}); convert the file to UTF-8"
                    ) from None
                yield number, text.rstrip("\r\n")
    except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path}: not a whole gzip file ({error})") from None
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or getattr(error, 'message', error)})"
        ) from None


def _blocks(path: str) -> Iterator[tuple[int, str]]:
    """Runs of lines between blank ones."""
    block: list[str] = []
    number = 0
    for _, line in _lines(path):
        if line.strip():
            block.append(line)
        elif block:
            yield number, "\n".join(block)
            block, number = [], number + 1
    if block:
        yield number, "\n".join(block)


def _jsonl(path: str, field: str) -> Iterator[tuple[int, str]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path}: line {number + 1}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: not JSON ({error}); wants one object a line") from None
        if not isinstance(record, dict):
            raise UserError(f"{where}: wants a JSON object, got {type(record).__name__}")
        if field not in record:
            raise UserError(
                f"{where}: no field {field!r} (data.field); it has {', '.join(map(repr, record)) or 'none'}"
            )
        if not isinstance(record[field], str):
            raise UserError(f"{where}: field {field!r} wants a string, got {type(record[field]).__name__}")
        yield number, record[field].encode("utf-8", "replace").decode()  # JSON can spell half a surrogate pair


def _parquet(path: str, field: str) -> Iterator[tuple[int, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with _open(path) as file:
            table = pq.ParquetFile(file)
            names = table.schema_arrow.names
            if field not in names:
                raise UserError(f"{path}: no column {field!r} (data.field); it has {', '.join(map(repr, names))}")
            kind = table.schema_arrow.field(field).type
            if pa.types.is_dictionary(kind):
                kind = kind.value_type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise UserError(f"{path}: column {field!r} wants strings, it holds {kind}")
            number = 0
            for batch in table.iter_batches(batch_size=1024, columns=[field]):
                for value in batch.column(0).to_pylist():
                    yield number, value or ""
                    number += 1
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None


def _chunks(items: Iterator[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
