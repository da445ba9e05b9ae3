"""Texts and pairs of texts with a target each, as records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxpt.data.labelled.layout import TextLayout, Truncate, cut, lay
from jaxpt.data.tasks.base import LocatedRow, TextsTask
from jaxpt.data.tokenizers.base import Tokenizer

Record = dict[str, np.ndarray]
_CHUNK = 256  # rows whose texts are tokenized together


@dataclasses.dataclass(frozen=True)
class TextsEncoder:
    """From rows to records of a `TextsTask`."""

    task: TextsTask
    layout: TextLayout
    length: int
    """Most tokens in a record."""
    truncate: Truncate = "longest_first"
    both_orders: bool = False
    """A record of a pair is a b and b a, end to end, with the pooled token of each."""

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
        for chunk in chunks(rows):
            texts = [self.task.texts(row.row, row.where) for row in chunk]
            flat = iter(tokenizer.encode_batch([text for of_row in texts for text in of_row]))
            for row, of_row in zip(chunk, texts):
                ids = [next(flat) for _ in of_row]
                target = self._target(row) if has_targets else np.zeros_like(self.like()["target"])
                if self.both_orders:
                    yield _joined(self._record(ids, row), self._record(ids[::-1], row)) | {"target": target}
                    continue
                for order in [ids, ids[::-1]] if train and self.task.is_symmetric and len(ids) == 2 else [ids]:
                    yield self._record(order, row) | {"target": target}

    def _record(self, ids: Sequence[Sequence[int]], row: LocatedRow) -> Record:
        cut_ids, is_cut = cut(ids, self.layout.room(self.length, len(ids)), self.truncate, row.where)
        laid = lay(self.layout, cut_ids)
        pooled = 0 if self.layout.pooled == "first" else len(laid.tokens) - 1
        return {
            "tokens": np.array(laid.tokens, np.int32),
            "token_types": np.array(laid.types, np.int32),
            "positions": np.array([pooled], np.int32),
            "truncated": np.int32(is_cut),
            "origin": np.array(row.origin, np.int64),
        }

    def _target(self, row: LocatedRow) -> np.ndarray:
        return np.asarray(self.task.encoded(self.task.target(row.row, row.where)))

    def like(self) -> dict[str, Any]:
        """Arrays of the dtypes of a record; shape (0,) stands for any length."""
        shapes = {"classification": (np.int32, ()), "regression": (np.float32, ())}
        dtype, shape = shapes.get(self.task.kind, (np.float32, (self.task.outputs,)))
        ragged = dict.fromkeys(("tokens", "token_types", "positions"), np.zeros(0, np.int32))
        return ragged | {
            "target": np.zeros(shape, dtype), "truncated": np.zeros((), np.int32), "origin": np.zeros(2, np.int64),
        }  # fmt: skip


def _joined(first: Record, second: Record) -> Record:
    """Two records of a row as one."""
    ends = [first["positions"], second["positions"] + np.int32(len(first["tokens"]))]
    both = {name: np.concatenate([first[name], second[name]]) for name in ("tokens", "token_types")}
    return first | both | {"positions": np.concatenate(ends)}


def chunks(rows: Iterable[LocatedRow]) -> Iterator[list[LocatedRow]]:
    """Rows in groups whose texts are tokenized together."""
    chunk: list[LocatedRow] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
