"""Several choices of a row, each laid out with its context, as one record.

Shapes: C most choices of a row · W length of a record's longest choice
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxpt.data import tables
from jaxpt.data.labelled.layout import Record, TextLayout, Truncate, cut, lay, record, record_like
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.multiple_choice import MultipleChoiceTask
from jaxpt.data.tokenizers.base import Tokenizer


@dataclasses.dataclass(frozen=True)
class ChoicesEncoder:
    """From rows to records of a `MultipleChoiceTask`."""

    task: MultipleChoiceTask
    layout: TextLayout
    length: int
    """Maximum number of tokens of a choice with its context."""
    truncate: Truncate = "longest_first"

    def __call__(
        self, rows: Iterable[LocatedRow], tokenizer: Tokenizer, has_targets: bool, train: bool
    ) -> Iterator[Record]:
        """Encodes rows, in their order.

        Args:
          rows: the rows.
          tokenizer: the run's.
          has_targets: False: the rows need no label column, targets are 0.
          train: without effect.

        Yields:
          {"tokens", "token_types" int32 [C·W]: each choice with its context, padded with 0 to the longest,
          "sizes" int32 [C]: tokens of each, 0 where the row has fewer choices, "target" int32 [], "truncated" int32
          []: how many choices were cut, "origin" int64 [2]}.

        Raises:
          UserError: names the row.
        """
        for chunk in tables.chunks(rows):
            pairs = [self.task.pairs(row.row, row.where) for row in chunk]
            # A context is tokenized once for all of its choices.
            texts = list(dict.fromkeys(text for of_row in pairs for pair in of_row for text in pair))
            ids = dict(zip(texts, tokenizer.encode_batch(texts)))
            for row, of_row in zip(chunk, pairs):
                target = self.task.target(row.row, row.where) if has_targets else 0
                yield self._record([[ids[text] for text in pair] for pair in of_row], target, row)

    def _record(self, pairs: Sequence[Sequence[Sequence[int]]], target: int, row: LocatedRow) -> Record:
        cuts = [cut(pair, self.layout.room(self.length, 2), self.truncate, row.where) for pair in pairs]
        laid = [lay(self.layout, texts) for texts, _ in cuts]
        tokens = np.zeros((self.task.most_choices, max(len(choice.tokens) for choice in laid)), np.int32)
        types, sizes = np.zeros_like(tokens), np.zeros(len(tokens), np.int32)
        for number, choice in enumerate(laid):
            sizes[number] = size = len(choice.tokens)
            tokens[number, :size], types[number, :size] = choice.tokens, choice.types
        num_cut = sum(is_cut for _, is_cut in cuts)
        return record(row, num_cut, tokens=tokens.ravel(), token_types=types.ravel(), sizes=sizes, target=target)

    def like(self) -> Record:
        """Arrays of the dtypes of a record; shape (0,) stands for any length."""
        like = record_like("tokens", "token_types", sizes=np.zeros(self.task.most_choices, np.int32))
        return like | {"target": np.zeros((), np.int32)}  # in this order, which the stores of older runs have


def rows_of_choices(
    batch: dict[str, Any],
    length: int,
    examples: int,
    choices: int,
    side: str,
    pooled: str,
    start: int | None = None,
    packs: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Features of examples with several choices: C lines end to end, line k of the k-th choices.

    A row of several examples has in each line one choice of each, one after the other, at the same places in all lines.
    So attention is that of C texts of length L, never of one of length C·L, packed or not.

    Args:
      batch: records with "tokens" and "token_types" `Ragged` int32, "sizes" int32 [R, C], "target" int32 [R].
      length: most tokens of the features; C·L is rounded down to a multiple of C.
      examples: N, most examples in a row.
      choices: C.
      side: "encoder" or "decoder": the part of the model that reads the texts.
      pooled: "first" or "last": the token whose state stands for a choice.
      start: of an encoder-decoder, the id that its decoder starts from; it reads the same tokens, shifted right.
      packs: which records a row is made of; None: one each.

    Returns:
      <side>_{input_tokens,segment_ids,positions} [B, C·L], encoder_token_types, with `start` also those of the
      decoder; choice_positions int32 [B, N, C] in their lines, choice_weights float32 [B, N, C], 0 where a row has
      fewer choices; labels int32 [B, N], label_weights float32 [B, N].

    Raises:
      ValueError: more tokens or examples than fit.
    """
    tokens, sizes_RxC = batch["tokens"], batch["sizes"]
    lines = _Lines(tokens.lengths // choices, sizes_RxC, length // choices, packs)
    if lines.longest > lines.line or lines.most > examples:
        raise ValueError(f"choices of an example are longer than {lines.line} tokens, or more than {examples} in a row")
    real_N, first_M = lines.real_N, lines.place_M == 0
    shared = {"segment_ids": lines.rows(lines.number_R[lines.record_M] + 1), "positions": lines.rows(lines.place_M)}
    features = {f"{side}_{name}": x for name, x in shared.items()}
    features[f"{side}_input_tokens"] = lines.rows(tokens.values[real_N])
    if side == "encoder":
        features["encoder_token_types"] = lines.rows(batch["token_types"].values[real_N])
    if start is not None:
        shifted_M = np.concatenate([[start], tokens.values[real_N]])[:-1]
        shifted_M[first_M] = start
        features |= {f"decoder_{name}": x for name, x in shared.items()} | {
            "decoder_input_tokens": lines.rows(shifted_M)
        }

    pooled_RxC = np.maximum(sizes_RxC - 1, 0) if pooled == "last" else np.zeros_like(sizes_RxC)
    return features | {
        "choice_positions": lines.of_examples(lines.offset_R[:, None] + pooled_RxC, examples, np.int32),
        "choice_weights": lines.of_examples(sizes_RxC > 0, examples, np.float32),
        "labels": lines.of_examples(batch["target"], examples, np.int32),
        "label_weights": lines.of_examples(np.ones(len(sizes_RxC)), examples, np.float32),
    }


class _Lines:
    """Where the choices of records stand in the lines of rows."""

    def __init__(self, widths_R: np.ndarray, sizes_RxC: np.ndarray, line: int, packs: np.ndarray | None) -> None:
        """For records whose longest choice has `widths_R` tokens, in lines of `line` tokens."""
        packs = np.arange(len(widths_R) + 1) if packs is None else packs
        of_row, ends_R1 = np.diff(packs), np.concatenate([[0], np.cumsum(widths_R)])
        self.line, self.choices, self._count = line, sizes_RxC.shape[1], len(of_row)
        self.row_R = np.repeat(np.arange(len(of_row)), of_row)
        self.number_R = np.arange(len(widths_R)) - np.repeat(packs[:-1], of_row)
        self.offset_R = ends_R1[:-1] - np.repeat(ends_R1[packs[:-1]], of_row)
        self.longest, self.most = (self.offset_R + widths_R).max(initial=0), of_row.max(initial=0)

        # Of each token, padding inside of records included: its record, its choice, and its place in this choice.
        record_N = np.repeat(np.arange(len(widths_R)), widths_R * self.choices)
        within_N = np.arange(len(record_N)) - np.repeat(ends_R1[:-1], widths_R * self.choices) * self.choices
        choice_N, place_N = np.divmod(within_N, widths_R[record_N])
        self.real_N = place_N < sizes_RxC[record_N, choice_N]
        self.record_M, self.place_M = record_N[self.real_N], place_N[self.real_N]
        line_M = self.row_R[self.record_M] * self.choices + choice_N[self.real_N]
        self._at_M = line_M * line + self.offset_R[self.record_M] + self.place_M

    def rows(self, values_M: np.ndarray) -> np.ndarray:
        """Values of the real tokens as rows, zeros elsewhere: int32 [B, C·L]."""
        rows = np.zeros((self._count, self.choices * self.line), np.int32)
        rows.reshape(-1)[self._at_M] = values_M
        return rows

    def of_examples(self, values_R: np.ndarray, examples: int, dtype: type) -> np.ndarray:
        """Values of records as rows: [B, N, ...]."""
        rows = np.zeros((self._count, examples, *values_R.shape[1:]), dtype)
        rows[self.row_R, self.number_R] = values_R
        return rows
