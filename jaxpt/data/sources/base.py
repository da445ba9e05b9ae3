"""Where documents come from: text, JSONL, Parquet, TFDS, the built-in corpus, a registered SeqIO Task, or anyone's own.

A document is {"text": string, "origin": int64[2]}; the origin is (number of the file, number of the document in it),
both from 0. The number in the file is that of the line (text, JSONL), row (Parquet, TFDS) or block (blank_line), so
that it leads back to the place. Documents without text, and files without documents, are skipped and counted.

Without a `validation_path` a document is held out if the hash of its text falls under `validation_fraction`: the
choice depends on nothing but the text, and equal documents never stand on both sides. Finished examples of a SeqIO Task
(`examples.py`) are held out by a hash of their place: equal ones may stand on both sides.

A corpus is cut into shards, runs of documents of 8 MB of text or more, or of what the order of the run has: a function
of the files alone, so that the same shards come out whatever the number of processes that work on them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxpt.data import builtin, tables
from jaxpt.data._tf import from_generator, tf
from jaxpt.data.records.store import MOST_SHARDS
from jaxpt.data.sources import readers
from jaxpt.data.tables import Offset
from jaxpt.data.tables.files import open_file, packed_in
from jaxpt.data.tables.files import size as size_of
from jaxpt.errors import UserError, listed, shown

Text = str | np.ndarray  # a text, or the token ids that a registered Task gives
Reader = Callable[[str, Offset], Iterator[tuple[int, Text]]]
Cutter = Callable[[str, int], Iterable[tuple[Offset, int]]]

SHARD_BYTES = 8 << 20
"""Text in a shard, at least, where the order of records does not say it."""
_HASHED_BYTES = 1 << 30  # files up to this size in all are known by their content, larger ones by size and time


class Piece(NamedTuple):
    """A run of documents of one file."""

    file: int
    """Number of the file in its split."""
    start: Offset = Offset()
    stop: int | None = None
    """Number of the first document that is not in it, None for all to the file's end."""
    size: int = 0
    """Bytes of text, about."""


class Pieces(list[Piece]):
    """A shard of a source: runs of documents."""

    @property
    def size(self) -> int:
        """Bytes of text, about."""
        return sum(piece.size for piece in self)


class Source:
    """The documents of a corpus, by split.

    Attributes:
      language: of its text, where the configuration says it.
      sentences: how objectives cut its documents, as `data.sentences` has it.
      found: what is in each directory that stands for files, in words.
      fields: of two texts that make a document, joined by `readers.PAIR_SEPARATOR`.
      failure: the mistake that ended a reading inside tf.data, which would hide it.
      counts: {split: {"documents": n, "empty": n, "files": {file: documents before any is held out}}} of the last
        reading that came to its end. Where a fraction is held out, "empty" counts for train alone.
      consumed: characters (or token ids) read so far.
      shard_bytes: text in a shard, at least; by default `SHARD_BYTES`.
    """

    def __init__(
        self,
        files: dict[str, list[str]],
        read: Reader,
        fraction: float | None,
        tokenized: bool = False,
        cut: Cutter = lambda path, every: [(Offset(), 0)],
        size: Callable[[str], int] = lambda path: 0,
        identity: Mapping[str, Any] | None = None,
        below: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """A corpus of `files` by split, of which `read` gives (number, text) from a mark on.

        `fraction` is held out by hash; `cut` gives (mark, bytes) of a file's pieces, `size` a file's bytes of text;
        `identity` says what else determines the documents, `below` which files hold them where `files` are none.
        """
        self._identity, self._below = dict(identity or {}), dict(below or {})
        self._files, self._read, self._fraction, self._cut, self._size = files, read, fraction, cut, size
        self.tokenized, self.language, self.fields, self.sentences = tokenized, None, None, "rule"
        self.found: tuple[str, ...] = ()
        self.failure: Exception | None = None
        self.counts: dict[str, dict[str, Any]] = {}
        self.consumed = 0
        self.shard_bytes: int | None = None

    @property
    def tier(self) -> str:
        """Which guarantee the stream has, for people to read."""
        return "by index: a resume seeks; every epoch has its own order and noise"

    def shards(self, split: str) -> list[Pieces]:
        """Cuts a split into runs of documents; corpora of many bytes are read through for it.

        Args:
          split: "train" or "validation".

        Returns:
          Pieces by shard, in the order of the documents.
        """
        paths = self._files[split]
        every = max(self.shard_bytes or SHARD_BYTES, -(-sum(map(self._size, paths)) // MOST_SHARDS))
        shards = [Pieces()]
        for number, path in enumerate(paths):
            cuts = list(self._cut(path, every))
            stops = [mark.number for mark, _ in cuts[1:]]
            for (mark, size), stop in zip(cuts, [*stops, None]):
                if shards[-1] and not 0 < shards[-1].size < every:
                    shards.append(Pieces())
                shards[-1].append(Piece(number, mark, stop, size))
        return shards

    def documents(self, split: str, pieces: Iterable[Piece] | None = None) -> Iterator[tuple[int, int, Text]]:
        """Reads a split from its start.

        Args:
          split: "train" or "validation".
          pieces: only these; all by default.

        Yields:
          (number of the file, number of the document in it, text).

        Raises:
          UserError: names the file and line that is not as it should be; or the (whole) split is empty.
        """
        counts: dict[str, Any] = {"documents": 0, "empty": 0, "files": {}}
        for piece in map(Piece, range(len(self._files[split]))) if pieces is None else pieces:
            num_documents = counts["files"].setdefault(str(piece.file), 0)
            for document in self._read(self._files[split][piece.file], piece.start):
                if not isinstance(document, tuple) or len(document) != 2 or not isinstance(document[1], Text):
                    path = self._files[split][piece.file]
                    raise UserError(f"{path}: its reader must yield (number, text), it yields {shown(document)}")
                index, text = document
                if piece.stop is not None and index >= piece.stop:
                    break
                self.consumed += len(text)
                if (not text.strip()) if isinstance(text, str) else not text.size:
                    counts["empty"] += self._fraction is None or split == "train"  # both splits read the same files
                    continue
                num_documents += 1
                if self.is_of(split, text):
                    counts["documents"] += 1
                    yield piece.file, index, text
            counts["files"][str(piece.file)] = num_documents
        if pieces is None:
            self.check(split, counts)
        self.counts[split] = counts

    def texts(self, split: str) -> Iterator[str]:
        """The texts of a split from its start, for a vocabulary; errors are those of `documents`."""
        return (text for _, _, text in self.documents(split) if isinstance(text, str))

    def fail(self, error: Exception) -> None:
        """Keeps the mistake that ended a dataset, the first one of it."""
        self.failure = self.failure or error

    def is_of(self, split: str, text: Text) -> bool:
        """Whether a document of the split's files belongs to the split, where both splits have the same files."""
        return self._fraction is None or held_out(text, self._fraction) == (split == "validation")

    def check(self, split: str, counts: dict[str, Any]) -> str:
        """Raises UserError where no file has documents, or a split none.

        Args:
          split: "train" or "validation".
          counts: of all its pieces together, as in `counts`.

        Returns:
          How many files have none, in words; "" where all have some, or the files are those of the other split.
        """
        paths = self._files[split]
        blank = [paths[int(number)] for number, num_documents in counts["files"].items() if not num_documents]
        if blank and len(blank) == len(counts["files"]):
            raise readers.no_documents(blank)
        if not counts["documents"]:
            raise UserError(
                f"data.validation_fraction: {self._fraction} of {sum(counts['files'].values())} documents leaves the "
                f"{split} split empty; give data.validation_path, another fraction or more documents"
            )
        if not blank or (self._fraction is not None and split != "train"):
            return ""
        return f"{split}: {len(blank):,} of {len(paths):,} files without a document, skipped: {listed(blank, 2)}"

    def dataset(self, split: str, pieces: Iterable[Piece] | None = None) -> tf.data.Dataset:
        """The same as a dataset; a mistake inside it ends it and is kept in `failure`.

        Args:
          split: "train" or "validation".
          pieces: only these; all by default.

        Returns:
          {"text": string, "origin": int64[2]}, or "tokens": int32[n] in place of the text.
        """
        key = "tokens" if self.tokenized else "text"
        spec = tf.TensorSpec([None], tf.int32) if self.tokenized else tf.TensorSpec([None], tf.string)
        signature = {key: spec, "origin": tf.TensorSpec([2] if self.tokenized else [None, 2], tf.int64)}

        def elements() -> Iterator[dict[str, Any]]:
            documents = self.documents(split, pieces)
            if self.tokenized:
                for file, number, tokens in documents:
                    yield {key: tokens, "origin": (file, number)}
            else:
                for chunk in tables.chunks(documents):
                    yield {
                        key: [text for _, _, text in chunk],
                        "origin": np.array([(f, n) for f, n, _ in chunk], np.int64).reshape(-1, 2),
                    }

        ds = from_generator(elements, signature, self.fail)
        return ds if self.tokenized else ds.unbatch()

    def fingerprint(self) -> dict[str, Any]:
        """What determines the documents: each file's name and content (or size and time), and what is held out."""
        paths = {split: list(paths) for split, paths in self._files.items()}
        known = fingerprints(sorted({p for ps in paths.values() for p in ps}))
        contents = {split: _digest(fingerprints(list(ps))) for split, ps in self._below.items()}
        return {
            "files": {split: [known[p] for p in ps] for split, ps in paths.items()},
            "held_out": self._fraction,
            **self._identity,
            **({"contents": contents} if contents else {}),
        }


def held_out(text: Text, fraction: float) -> bool:
    """True if a document belongs to the validation split: blake2b(text) / 2^64 < fraction.

    Args:
      text: the document, or its token ids.
      fraction: share of documents to hold out.

    Returns:
      True for validation. A document held out under a small fraction is also held out under a larger one.
    """
    content = text.encode(errors="surrogatepass") if isinstance(text, str) else text.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") < fraction * 2**64


def fingerprints(paths: list[str]) -> dict[str, dict[str, Any]]:
    """What identifies each file, wherever it lies: its name and content; size and time where that would take long."""
    stats = {path: _stat(path) for path in paths}
    by_content = sum(size for size, _ in filter(None, stats.values())) <= _HASHED_BYTES
    out: dict[str, dict[str, Any]] = {}
    for path in paths:
        if (stat := stats[path]) is None:  # a TFDS name, or the built-in corpus
            out[path] = {"name": path}
            if path == "builtin":
                out[path] |= {"python": platform.python_version(), "blake2b": builtin.VERSION}
            continue
        archive, is_member, member = path.partition(".zip!")
        out[path] = {"name": archive.rpartition("/")[2] + is_member + member, "size": stat[0]}
        if by_content:
            with open_file(path, unpack=False) as file:
                out[path]["blake2b"] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        else:
            out[path]["mtime_nsec"] = stat[1]
    return out


def _digest(known: dict[str, dict[str, Any]]) -> str:
    """Of the fingerprints of several files."""
    return hashlib.blake2b(json.dumps([*known.values()]).encode(), digest_size=10).hexdigest()


def _stat(path: str) -> tuple[int, int] | None:
    """(bytes of a file, time of its last change in ns: of a file in a .zip, the .zip's); None of what is no file."""
    file = packed_in(path)
    if not tf.io.gfile.exists(file):
        return None
    stat = tf.io.gfile.stat(file)
    return (size_of(path) if file != path else stat.length), stat.mtime_nsec


def interleaved_texts(sources: Sequence[Source]) -> Iterator[str]:
    """The training texts of several sources in turn, for a vocabulary of all of them."""
    streams = (source.texts("train") for source in sources)
    for group in itertools.zip_longest(*streams):
        yield from (text.replace(readers.PAIR_SEPARATOR, "\n") for text in group if text is not None)
