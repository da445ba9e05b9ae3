"""Inputs and targets as text, as records of token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxpt.data.labelled.layout import Truncate
from jaxpt.data.labelled.texts import Record, chunks
from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError


@dataclasses.dataclass(frozen=True)
class TextPairsEncoder:
    """From rows to records of inputs and targets.

    encoder-decoder   before inputs after           →  before targets after
    decoder           before inputs separator targets after

    What is too long is cut at its end: inputs before what follows them, targets with their end, so that a model does
    not learn to end there (as T5's). A decoder's inputs always leave room for `targets_length` tokens: the prompt of a
    row is the same with and without its target.
    """

    task: Task
    inputs_length: int
    """Most tokens of the inputs; of a decoder, of inputs and targets."""
    targets_length: int
    """Most tokens of the targets."""
    before: tuple[int, ...] = ()
    """Ids before the inputs, and of an encoder-decoder before the targets."""
    after: tuple[int, ...] = ()
    """Ids after the targets, and of an encoder-decoder after the inputs."""
    is_decoder: bool = False
    """The targets follow the inputs in one sequence of `inputs_length` tokens."""
    separator: str = ""
    """Text between the two, of a decoder; its ids are its own, whatever stands before it."""
    truncate: Truncate = "longest_first"
    """"error": nothing is cut."""

    def __call__(
        self, rows: Iterable[LocatedRow], tokenizer: Tokenizer, has_targets: bool, train: bool
    ) -> Iterator[Record]:
        """Encodes rows, in their order.

        Args:
          rows: the rows.
          tokenizer: the run's.
          has_targets: False: the rows need no target column; targets are empty.
          train: the training set: a row has an example for each of its targets.

        Yields:
          {"inputs", "targets" int32 [n], "truncated" int32 [], "origin" int64 [2]}; of a decoder {"tokens" int32 [n],
          "prefix" int32 []: tokens before the first target, …}.

        Raises:
          UserError: names the row that is too long, or the separator that has no token.
        """
        separator = separator_ids(tokenizer, self.separator)
        for chunk in chunks(rows):
            inputs = [self.task.input_text(row.row, row.where) for row in chunk]
            targets = [self._targets(row, train) if has_targets else ("",) for row in chunk]
            ids = iter(tokenizer.encode_batch([*inputs, *(text for of_row in targets for text in of_row)]))
            sources = [next(ids) for _ in inputs]
            for row, source, of_row in zip(chunk, sources, targets):
                for _ in of_row:
                    target = [*next(ids), *self.after]
                    yield self._record(source, separator, target if has_targets else [], row)

    def _targets(self, row: LocatedRow, train: bool) -> tuple[str, ...]:
        if train:
            return self.task.target_texts(row.row, row.where)
        return (self.task.target_text(row.row, row.where),)

    def _record(self, source: list[int], separator: list[int], target: list[int], row: LocatedRow) -> Record:
        """The record of a row, from its ids."""
        end = separator if self.is_decoder else self.after
        room = self.inputs_length - len(self.before) - len(end) - (self.targets_length if self.is_decoder else 0)
        target_room = self.targets_length - (0 if self.is_decoder else len(self.before))
        if room < 1 or target_room < 1:
            key = "data.length" if room < 1 else "objective.targets_length"
            raise UserError(f"{key}: too small, it leaves no room for text beside the special tokens")
        for name, key, ids, max_length in (
            ("inputs", "data.length", source, room), ("targets", "objective.targets_length", target, target_room),
        ):  # fmt: skip
            if len(ids) > max_length and self.truncate == "error":
                raise UserError(
                    f"{row.where}: the {name} have {len(ids)} tokens, there is room for {max_length}; raise {key}, or "
                    "set objective.truncate=longest_first"
                )
        prompt, target_ids = [*self.before, *source[:room], *end], target[:target_room]
        shared: dict[str, Any] = {
            "truncated": np.int32(len(source) > room or len(target) > target_room),
            "origin": np.array(row.origin, np.int64),
        }
        if self.is_decoder:
            return {"tokens": np.array([*prompt, *target_ids], np.int32), "prefix": np.int32(len(prompt)), **shared}
        targets = [*self.before, *target_ids] if target_ids else []
        return {"inputs": np.array(prompt, np.int32), "targets": np.array(targets, np.int32), **shared}

    def like(self) -> dict[str, Any]:
        """Arrays of the dtypes of a record; shape (0,) stands for any length."""
        names = ("tokens",) if self.is_decoder else ("inputs", "targets")
        scalars = ("prefix", "truncated") if self.is_decoder else ("truncated",)
        return {
            **dict.fromkeys(names, np.zeros(0, np.int32)), **dict.fromkeys(scalars, np.zeros((), np.int32)),
            "origin": np.zeros(2, np.int64),
        }  # fmt: skip


def separator_ids(tokenizer: Tokenizer, separator: str) -> list[int]:
    """Ids of the text between a decoder's inputs and targets.

    Raises:
      UserError: the tokenizer drops it, as many do with a newline.
    """
    ids = tokenizer.encode(separator)
    if separator and not ids:
        raise UserError(
            f"objective.separator: {separator!r}: has no token in this vocabulary, so inputs would have no end; choose "
            "another text, such as ' =>'"
        )
    return ids
