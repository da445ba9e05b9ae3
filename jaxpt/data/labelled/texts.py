"""Texts and pairs of texts with a target each, as records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jaxpt.data import tables
from jaxpt.data.labelled.layout import Record, TextLayout, Truncate, cut, lay, record, record_like
from jaxpt.data.labelled.windows import windows
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.texts import TextsTask
from jaxpt.data.tokenizers.base import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextsEncoder:
    """From rows to records of a `TextsTask`."""

    task: TextsTask
    layout: TextLayout
    length: int
    """Maximum number of tokens in a record."""
    truncate: Truncate = "longest_first"
    both_orders: bool = False
    """A record of a pair is a b and b a, end to end, with the pooled token of each."""
    stride: int | None = None
    """A long text is several records, windows: tokens from one window's start to the next. None: it is cut."""
    reverse: bool = False
    """Each record has its texts from the last token to the first; special tokens stay where they are."""

    def __call__(
        self, rows: Iterable[LocatedRow], tokenizer: Tokenizer, has_targets: bool, train: bool
    ) -> Iterator[Record]:
        """Encodes rows, in their order.

        Args:
          rows: the rows.
          tokenizer: the run's.
          has_targets: False: the rows need no label column, targets are 0.
          train: the training set: of symmetric pairs both orders are made, each a record.

        Yields:
          {"tokens", "token_types" int32 [n], "positions" int32 [1 or 2]: the pooled token, "target": [] or [outputs],
          "truncated" int32 [], "origin" int64 [2]}.

        Raises:
          UserError: names the row.
        """
        no_target = self.like()["target"]
        for chunk in tables.chunks(rows):
            texts = [self.task.texts(row.row, row.where) for row in chunk]
            flat = iter(tokenizer.encode_batch([text for of_row in texts for text in of_row]))
            for row, of_row in zip(chunk, texts):
                ids = [next(flat) for _ in of_row]
                target = no_target
                if has_targets:
                    target = np.array(self.task.target(row.row, row.where), no_target.dtype)
                if self.both_orders:
                    yield _joined(self._record(ids, row), self._record(ids[::-1], row)) | {"target": target}
                    continue
                for order in self._orders(ids, train):
                    yield self._record(order, row) | {"target": target}

    def _orders(self, ids: Sequence[Sequence[int]], train: bool) -> list[Sequence[Sequence[int]]]:
        """What becomes a record each: both orders of a symmetric pair, the windows of a text, or the texts."""
        if len(ids) == 2:
            return [ids, ids[::-1]] if train and self.task.is_symmetric else [ids]
        if self.stride is None:
            return [ids]
        (text,) = ids
        spans = windows([1] * len(text), self.layout.room(self.length, 1), self.stride)
        return [[text[start:end]] for start, end in spans]

    def _record(self, ids: Sequence[Sequence[int]], row: LocatedRow) -> Record:
        # What a backward model reads first are the ends.
        truncate = "longest_first" if self.reverse and self.truncate == "left" else self.truncate
        cut_ids, is_cut = cut(ids, self.layout.room(self.length, len(ids)), truncate, row.where)
        laid = lay(self.layout, [text[::-1] for text in cut_ids[::-1]] if self.reverse else cut_ids)
        pooled = 0 if self.layout.pooled == "first" else len(laid.tokens) - 1
        return record(row, is_cut, tokens=laid.tokens, token_types=laid.types, positions=[pooled])

    def like(self) -> Record:
        """Arrays of the dtypes of a record; shape (0,) stands for any length."""
        target = np.zeros(self.task.target_shape, self.task.target_dtype)
        return record_like("tokens", "token_types", "positions", target=target)


def _joined(first: Record, second: Record) -> Record:
    """Two records of a row as one."""
    ends = [first["positions"], second["positions"] + np.int32(len(first["tokens"]))]
    both = {name: np.concatenate([first[name], second[name]]) for name in ("tokens", "token_types")}
    return first | both | {"positions": np.concatenate(ends)}
