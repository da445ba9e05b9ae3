"""Inputs and targets as text, as records of token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxpt.data.labelled.layout import Truncate
from jaxpt.data.labelled.texts import Record, chunks
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError
from jaxpt.tasks.base import LocatedRow, Task


@dataclasses.dataclass(frozen=True)
class TextPairsEncoder:
    """From rows to records of inputs and targets."""

    task: Task
    inputs_length: int
    """Most tokens of the inputs."""
    targets_length: int
    """Most tokens of the targets."""
    before: tuple[int, ...] = ()
    """Ids before the inputs, and of an encoder-decoder before the targets."""
    after: tuple[int, ...] = ()
    """Ids after the targets, and of an encoder-decoder after the inputs."""
    is_decoder: bool = False
    """The targets follow the inputs in one sequence of `inputs_length` tokens."""
    separator: str = ""
    """Text between the two, of a decoder."""
    truncate: Truncate = "longest_first"
    """"error": inputs are not cut."""

    def __call__(
        self, rows: Iterable[LocatedRow], tokenizer: Tokenizer, has_targets: bool, train: bool
    ) -> Iterator[Record]:
        """Encodes rows, in their order.

        Args:
          rows: the rows.
          tokenizer: the run's.
          has_targets: False: the rows need no target column; targets are empty.
          train: not used.

        Yields:
          {"inputs", "targets" int32 [n], "truncated" int32 [], "origin" int64 [2]}; of a decoder {"tokens" int32 [n],
          "prefix" int32 []: tokens before the first target, …}.

        Raises:
          UserError: names the row.
        """
        for chunk in chunks(rows):
            inputs = [self.task.input_text(row.row, row.where) + self.separator for row in chunk]
            targets = [self.task.target_text(row.row, row.where) if has_targets else "" for row in chunk]
            ids = tokenizer.encode_batch([*inputs, *targets])
            for row, source, target in zip(chunk, ids[: len(chunk)], ids[len(chunk) :]):
                yield self._record(source, [*target, *self.after] if has_targets else [], row)

    def _record(self, source: list[int], target: list[int], row: LocatedRow) -> Record:
        room = self.targets_length - (0 if self.is_decoder else len(self.before))
        kept = target[:room]
        if self.is_decoder:
            length = self.inputs_length - max(len(kept), self.targets_length if not kept else 0) - len(self.before)
        else:
            length = self.inputs_length - len(self.before) - len(self.after)
        if length < 1:
            raise UserError(f"{row.where}: data.length: {self.inputs_length} leaves no room for the inputs")
        if len(source) > length and self.truncate == "error":
            raise UserError(
                f"{row.where}: the inputs have {len(source)} tokens, there is room for {length}; raise data.length, or "
                "set objective.truncate=longest_first"
            )
        shared: dict[str, Any] = {
            "truncated": np.int32(len(source) > length or len(target) > room),
            "origin": np.array(row.origin, np.int64),
        }
        source = [*self.before, *source[:length]]
        if self.is_decoder:
            return {"tokens": np.array([*source, *kept], np.int32), "prefix": np.int32(len(source)), **shared}
        kept = [*self.before, *kept] if kept else []
        return {
            "inputs": np.array([*source, *self.after], np.int32), "targets": np.array(kept, np.int32), **shared,
        }  # fmt: skip

    def like(self) -> dict[str, Any]:
        """Arrays of the dtypes of a record; shape (0,) stands for any length."""
        names = ("tokens",) if self.is_decoder else ("inputs", "targets")
        scalars = ("prefix", "truncated") if self.is_decoder else ("truncated",)
        return {
            **dict.fromkeys(names, np.zeros(0, np.int32)), **dict.fromkeys(scalars, np.zeros((), np.int32)),
            "origin": np.zeros(2, np.int64),
        }  # fmt: skip
