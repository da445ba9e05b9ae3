"""Sentences of words with a tag each, as records: the first token of a word has the word's tag."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jaxpt.data import tables
from jaxpt.data.labelled.layout import Record, TextLayout, lay, record, record_like
from jaxpt.data.labelled.windows import most_context, windows
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.tagging import TaggingTask
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError


@dataclasses.dataclass(frozen=True)
class TaggingEncoder:
    """From rows to records of a `TaggingTask`. A long sentence has several, a word is in one of them."""

    task: TaggingTask
    layout: TextLayout
    length: int
    """Maximum number of tokens in a record."""
    stride: int
    """Tokens from one window's start to the next, at least."""

    def __call__(
        self, rows: Iterable[LocatedRow], tokenizer: Tokenizer, has_targets: bool, train: bool
    ) -> Iterator[Record]:
        """Encodes rows, in their order.

        Args:
          rows: the rows.
          tokenizer: the run's.
          has_targets: False: the rows need no tags, targets are 0.
          train: not used.

        Yields:
          {"tokens", "token_types" int32 [n], "positions", "targets" int32 [words]: the first token and the tag of each
          word that has more context here than in another window, "truncated" int32 []: a word was cut, "origin" int64
          [2]}; the words of a row in order.

        Raises:
          UserError: names the row.
        """
        for chunk in tables.chunks(rows):
            words = [self.task.words(row.row, row.where) for row in chunk]
            for row, row_words, pieces in zip(chunk, words, tokenizer.encode_words(words)):
                unknown = tokenizer.vocabulary.unk  # of a word without a token, such as a control character
                if unknown is None and [] in pieces:
                    at = pieces.index([])
                    raise UserError(f"{row.where}: word {at + 1}, {row_words[at]!r}, has no token")
                tags = self.task.target(row.row, row.where) if has_targets else [self.task.labels[0]] * len(row_words)
                yield from self._records([ids or [unknown] for ids in pieces], self.task.encoded(tags), row)

    def _records(self, pieces: Sequence[Sequence[int]], targets: np.ndarray, row: LocatedRow) -> Iterator[Record]:
        room = self.layout.room(self.length, 1)
        is_cut = max(map(len, pieces)) > room
        pieces = [ids[:room] for ids in pieces]  # a word beyond the window: its first token has the tag
        lengths = [len(ids) for ids in pieces]
        firsts = np.concatenate([[0], np.cumsum(lengths)])
        spans = windows(lengths, room, self.stride)
        window_of = most_context([(firsts[start], firsts[end]) for start, end in spans], firsts[:-1])
        for number, (start, end) in enumerate(spans):
            word_indices = np.flatnonzero(window_of == number)
            if not len(word_indices):
                continue
            laid = lay(self.layout, [[i for ids in pieces[start:end] for i in ids]])
            positions = laid.starts[0] + firsts[word_indices] - firsts[start]
            arrays = {"positions": positions, "targets": targets[word_indices]}
            yield record(row, is_cut, tokens=laid.tokens, token_types=laid.types, **arrays)

    def like(self) -> Record:
        """Arrays of the dtypes of a record; shape (0,) stands for any length."""
        return record_like("tokens", "token_types", "positions", "targets")
