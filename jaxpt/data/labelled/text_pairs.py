"""Inputs and targets as text, as records of token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from jaxpt.data import tables
from jaxpt.data.labelled.layout import Record, Truncate, record, record_like
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
    """Maximum number of tokens of the inputs; of a decoder, of inputs and targets."""
    targets_length: int
    """Maximum number of tokens of the targets."""
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
        for chunk in tables.chunks(rows):
            inputs = [self.task.input_text(row.row, row.where) for row in chunk]
            target_texts = self.task.target_texts if train else lambda *row: (self.task.target_text(*row),)
            targets = [target_texts(row.row, row.where) if has_targets else ("",) for row in chunk]
            ids = iter(tokenizer.encode_batch([*inputs, *(text for of_row in targets for text in of_row)]))
            sources = [next(ids) for _ in inputs]
            for row, source, of_row in zip(chunk, sources, targets):
                for _ in of_row:
                    target = [*next(ids), *self.after]
                    yield self._record(source, separator, target if has_targets else [], row)

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
        is_cut = len(source) > room or len(target) > target_room
        if self.is_decoder:
            return record(row, is_cut, tokens=[*prompt, *target_ids], prefix=len(prompt))
        return record(row, is_cut, inputs=prompt, targets=[*self.before, *target_ids] if target_ids else [])

    def like(self) -> Record:
        """Arrays of the dtypes of a record; shape (0,) stands for any length."""
        if self.is_decoder:
            return record_like("tokens", prefix=np.zeros((), np.int32))
        return record_like("inputs", "targets")


def separator_ids(tokenizer: Tokenizer, separator: str) -> list[int]:
    """Ids of the text between a decoder's inputs and targets.

    Raises:
      UserError: the tokenizer drops it, as many do with a newline.
    """
    ids = tokenizer.encode(separator)
    if separator and not ids:
        raise UserError(f"objective.separator: {separator!r}: has no token in this vocabulary; try ' =>'")
    return ids
