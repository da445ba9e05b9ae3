"""Statistics of documents that are read once: lengths, equal texts, languages. Memory does not grow with their number.

A document's text is hashed, counted and forgotten. What is kept of a split: how often each length occurs (lengths above
4,096 to within 0.8 %), 2^20 digests of texts (of more documents those of a sample of the texts, by their hash, so that
all copies of a text are in it or none is), and the beginnings of 1,000 documents for their languages.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxpt.config import Config
from jaxpt.data import tables
from jaxpt.data.labelled.examples import split_rows
from jaxpt.data.labelled.layout import Record
from jaxpt.data.sources.base import Source
from jaxpt.data.sources.readers import PAIR_SEPARATOR
from jaxpt.data.sources.rows import Rows
from jaxpt.data.tasks.base import LocatedRow, names_of
from jaxpt.data.tokenizers.base import Tokenizer

_EXACT = 4096  # lengths up to this one are counted each
_DIGESTS = 1 << 20
_DRAWN, _BEGINNING = 1000, 1000  # documents whose language is told, and characters of them that are looked at
_LETTERS = 20  # of a text with fewer no language is told
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Document(NamedTuple):
    """A document or a labelled row."""

    text: str | np.ndarray
    """Its text, or the token ids that a registered Task gives."""
    columns: dict[str, str]
    """The texts of a row's columns, or of a document's fields."""
    content: tables.Text | None = None
    """What makes it equal to another one; the text by default."""
    labels: Sequence[str] = ()
    value: float | None = None
    """The number to predict."""


class Lengths:
    """How long things are."""

    def __init__(self) -> None:
        self.count = self.total = self.most = 0
        self.bins: collections.Counter[int] = collections.Counter()

    def add(self, length: int) -> None:
        """Counts one more."""
        self.count, self.total, self.most = self.count + 1, self.total + length, max(self.most, length)
        shift = 0 if length <= _EXACT else (length - 1).bit_length() - 8
        self.bins[((length - 1 >> shift) + 1) << shift] += 1  # a bin goes up to its name: 4,097 to 4,128 is 4,128

    def quantile(self, share: float) -> int:
        """The smallest length that so large a share of all do not exceed; 0 of none.

        Example:
          >>> lengths = Lengths()
          >>> for length in (1, 2, 3, 9_999, 20_000): lengths.add(length)
          >>> lengths.quantile(0.5), lengths.quantile(0.8), lengths.quantile(1.0), lengths.above(2)
          (3, 10048, 20000, 3)
        """
        cumulative = 0
        for length in sorted(self.bins):
            cumulative += self.bins[length]
            if cumulative >= share * self.count:
                return min(length, self.most)
        return 0

    def above(self, length: int) -> int:
        """How many are longer; exact up to 4,096 and for powers of two."""
        return sum(n for bound, n in self.bins.items() if bound > length)

    def histogram(self) -> list[tuple[int, int, int]]:
        """(first length, last length, how many) of 0, 1, 2, 3–4, 5–8, 9–16, …, between those that are not empty."""
        bins: collections.Counter[int] = collections.Counter()
        for length, n in self.bins.items():
            bins[(length - 1).bit_length() + 1 if length else 0] += n
        every = range(min(bins, default=0), max(bins, default=-1) + 1)
        edges = [0, 1, *(2**n for n in range(1, max(bins, default=0)))]
        return [(edges[n - 1] + 1 if n else 0, edges[n], bins[n]) for n in every]

    def result(self) -> dict[str, Any]:
        """Ready for JSON."""
        quantiles = {f"{share:.0%}": self.quantile(share) for share in QUANTILES}
        mean = self.total / self.count if self.count else 0.0
        return {"mean": mean, "least": min(self.bins, default=0), **quantiles, "most": self.most}


class Texts:
    """Which texts occur more than once."""

    def __init__(self, most: int = _DIGESTS) -> None:
        """`most` digests are kept."""
        self._most, self._bits = most, 0
        self.texts: dict[int, int] = {}
        self._example: tuple[int, str] = (1, "")

    def add(self, digest: int, content: tables.Text) -> None:
        """Counts a text, of which `digest` has 64 bits."""
        if digest & (1 << self._bits) - 1:
            return
        copies = self.texts[digest] = self.texts.get(digest, 0) + 1
        if copies > self._example[0]:
            self._example = copies, excerpt(content)
        while len(self.texts) > self._most:
            self._bits += 1
            self.texts = {d: n for d, n in self.texts.items() if not d & (1 << self._bits) - 1}

    @property
    def one_in(self) -> int:
        """One text in so many is in the sample."""
        return 1 << self._bits

    def result(self, documents: int) -> dict[str, Any]:
        """Copies beyond the first of each text, and the text with the most; of a sample an estimate."""
        count = sum(n - 1 for n in self.texts.values()) * self.one_in
        copies, text = self._example
        example = {"text": text, "copies": copies} if copies > 1 else None
        return {"count": count, "share": count / max(documents, 1), "sampled": self.one_in, "example": example}


class Sample:
    """Some of many values, in which each has the same chance to be."""

    def __init__(self, most: int = _DRAWN, seed: int = 0) -> None:
        """`most` are kept."""
        self.kept: list[Any] = []
        self._most, self._seen, self._random = most, 0, random.Random(seed)

    def add(self, value: Any) -> None:
        """Keeps a value in the place of another one, or does not."""
        self._seen += 1
        if len(self.kept) < self._most:
            self.kept.append(value)
        elif (at := self._random.randrange(self._seen)) < self._most:
            self.kept[at] = value


@functools.cache
def _identifier() -> Any:
    from py3langid import langid

    settings = {"norm_probs": True, "min_confidence": 0.5}
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, **settings)


def language(text: str) -> str:
    """The language of a text as py3langid tells it.

    Example:
      >>> language("Der Hund schläft den ganzen Tag auf dem alten Sofa im Wohnzimmer."), language("42")
      ('de', 'und')
    """
    if sum(map(str.isalpha, text)) < _LETTERS:
        return "und"
    return _identifier().classify(text.encode("utf-8", "replace"))[0]


def languages(texts: Sequence[str]) -> dict[str, Any]:
    """{"documents": how many, "shares": {ISO 639-1 code: share}}; `und` where a text is short or not clear."""
    counts = collections.Counter(map(language, texts))
    return {"documents": len(texts), "shares": {name: count / len(texts) for name, count in counts.most_common()}}


class Split:
    """The statistics of a split's documents."""

    def __init__(self, tokenizer: Tokenizer | None, train: Split | None = None) -> None:
        """Lengths are in tokens, or without a `tokenizer` in words; `train` is the training set, of another split."""
        self._tokenizer, self._train = tokenizer, train
        self.documents = self.characters = self.bytes = self.words = self.in_train = 0
        self.lengths, self.texts = Lengths(), Texts()
        self._beginnings, self._values = Sample(), Sample()
        self.columns: dict[str, Lengths] = collections.defaultdict(Lengths)
        self.labels: collections.Counter[str] = collections.Counter()
        self._in_train_example = ""

    def add(self, documents: Sequence[Document]) -> None:
        """Counts some documents, whose texts are tokenized together."""
        names = [*dict.fromkeys(name for document in documents for name in document.columns)]
        lengths = {name: self._sizes([document.columns.get(name, "") for document in documents]) for name in names}
        for name, of_column in lengths.items():
            for length in of_column:
                self.columns[name].add(length)
        whole = [sum(sizes) for sizes in zip(*lengths.values())] if names else self._sizes([d.text for d in documents])
        for document, length in zip(documents, whole):
            self.documents += 1
            self.lengths.add(length)
            self._count(document)

    def _count(self, document: Document) -> None:
        content = document.text if document.content is None else document.content
        if isinstance(document.text, str):
            self.characters += len(document.text)
            self.bytes += len(document.text.encode("utf-8", "replace"))
            self.words += len(document.text.split())
            texts = document.columns.values() if document.content is None else ()  # a text and its translation
            for text in texts or (document.text,):
                self._beginnings.add(text[:_BEGINNING])
        digest = _digest(content)
        self.texts.add(digest, content)
        if self._train is not None and digest in self._train.texts.texts:
            self.in_train += 1
            self._in_train_example = self._in_train_example or excerpt(content)
        self.labels.update(document.labels)
        if document.value is not None:
            self._values.add(document.value)

    def _sizes(self, texts: Sequence[str | np.ndarray]) -> list[int]:
        """Tokens, or words, of texts."""
        if any(not isinstance(text, str) for text in texts):
            return [len(text) for text in texts]
        if self._tokenizer is None:
            return [len(text.split()) for text in texts]
        return [len(ids) for ids in self._tokenizer.encode_batch(texts)]

    def result(self) -> dict[str, Any]:
        """Ready for JSON."""
        report: dict[str, Any] = {
            "documents": self.documents, "characters": self.characters, "bytes": self.bytes, "words": self.words,
            "total": self.lengths.total, "lengths": self.lengths.result(), "histogram": self.lengths.histogram(),
            "columns": {name: lengths.result() for name, lengths in self.columns.items()},
            "duplicates": self.texts.result(self.documents), "languages": languages(self._beginnings.kept),
        }  # fmt: skip
        if self._train is not None:
            count, sampled = self.in_train * self._train.texts.one_in, self._train.texts.one_in
            share, example = count / max(self.documents, 1), self._in_train_example or None
            report["in_train"] = {"count": count, "share": share, "sampled": sampled, "example": example}
        if self.labels:
            report["labels"] = {label: self.labels[label] for label in tables.in_order(self.labels)}
        if values := self._values.kept:
            quantiles = {f"{share:.0%}": float(np.quantile(values, share)) for share in QUANTILES}
            report["values"] = {"mean": float(np.mean(values)), **quantiles, "looked_at": len(values)}
        return report


def excerpt(content: tables.Text | np.ndarray) -> str:
    """The beginning of a text in one line.

    Example:
      >>> excerpt(("a cat\\nsat", "b"))
      'a cat sat | b'
    """
    if isinstance(content, np.ndarray):
        return f"ids {content[:12].tolist()} …"
    line = " ".join((content if isinstance(content, str) else " | ".join(content))[:400].split())
    return line if len(line) <= 70 else f"{line[:69]}…"


def strings(value: Any) -> str:
    """All texts and numbers of a column's value in a row, however nested.

    Example:
      >>> strings([{"role": "user", "content": "hi"}, 3])
      'user hi 3'
    """
    if isinstance(value, dict | list | tuple):
        inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
        return " ".join(filter(None, map(strings, inner)))
    return "" if value is None else str(value)


def _digest(content: tables.Text | np.ndarray) -> int:
    if isinstance(content, np.ndarray):
        return int.from_bytes(hashlib.blake2b(content.tobytes(), digest_size=8).digest())
    return tables.digest(content)


def measure(
    config: Config,
    source: Source,
    tokenizer: Tokenizer | None,
    lengths: list[int],
    most: int | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Reads all splits of a task.

    Args:
      config: the recipe, as if this task were all.
      source: its documents or rows.
      tokenizer: the recipe's; None: lengths are in words.
      lengths: `data.length` of each phase.
      most: only the first so many documents of a split are read.
      say: is given lines of progress.

    Returns:
      {"found", "unit", "splits": {split: what `statistics.Split` has, "empty", "cut", "longer"}}, ready for JSON.

    Raises:
      UserError: names the file and line that is not as it should be.
    """
    splits: dict[str, Any] = {}
    train = None
    for split in ("train", "validation", *(("test",) if config.task and config.data.has_test else ())):
        statistics = Split(tokenizer, train)
        cut = encoder = None
        if config.task is not None and tokenizer is not None and split != "test":
            encoder = config.objective.encoder(config.data.length, tokenizer.vocabulary)
            cut = dict.fromkeys(("examples", "cut", "left_out"), 0)
        for chunk in tables.chunks(itertools.islice(_rows(config, source, split), most)):
            statistics.add([document for document, _ in chunk])
            if encoder is not None:
                rows = (row for _, row in chunk)
                _count_cut(cut, encoder(rows, tokenizer, has_targets=True, train=split == "train"))
            say(f"{split}: {statistics.documents:,} read")
        empty = source.counts.get(split, {}).get("empty")
        splits[split] = statistics.result() | {"empty": empty, "cut": cut}
        if config.task is None and tokenizer is not None:
            splits[split]["longer"] = {str(length): statistics.lengths.above(length) for length in lengths}
        train = statistics if split == "train" else train
    return {"found": list(source.found), "unit": "documents" if config.task is None else "rows", "splits": splits}


def _rows(config: Config, source: Source, split: str) -> Iterator[tuple[Document, LocatedRow | None]]:
    """Documents of a split; with a task each with its row."""
    if split == "test":
        yield from ((_of_row(config, row, split), row) for row in split_rows(config, split))
        return
    for file, number, text in source.documents(split):
        if isinstance(source, Rows):
            located = source.place(split, file, number, str(text))
            yield _of_row(config, located, split), located
        elif source.fields is not None:
            columns = dict(zip(source.fields, str(text).split(PAIR_SEPARATOR)))
            yield Document(str(text).replace(PAIR_SEPARATOR, "\n"), columns), None
        else:
            yield Document(text, {}), None


def _of_row(config: Config, located: LocatedRow, split: str) -> Document:
    """A labelled row. The rows of a test set may have no labels."""
    task, row, where = config.task, located.row, located.where
    columns = {name: strings(tables.column(row, name, where)) for name in task.columns()}
    content = task.content(row, where)
    has_labels = split != "test" or set(names_of(getattr(task, "label", ()))) <= row.values.keys()
    labels = task.labels_in(row, where) if has_labels else []
    value = float(task.target(row, where)) if task.quantiles and has_labels else None
    text = " ".join(columns.values()) or " ".join(content)
    return Document(text, columns or {"text": text}, content, labels, value)


def _count_cut(counts: dict[str, int], records: Iterable[Record]) -> None:
    """Counts the records that the objective's own encoder cut to `data.length`, or left out."""
    for record in records:
        is_left_out = not len(record.get("tokens", record))  # there are none of a dialogue that is left out
        counts["examples"] += not is_left_out
        counts["cut"] += bool(record["truncated"]) and not is_left_out
        counts["left_out"] += is_left_out
