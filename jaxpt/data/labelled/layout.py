"""Where texts and special tokens stand in an example, how texts that are too long are cut, and the record of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxpt.data.tasks.base import LocatedRow
from jaxpt.errors import UserError

Record = dict[str, Any]
"""What an encoder makes of a row: arrays by name."""

Truncate = Literal["longest_first", "first", "second", "halves", "left", "error"]


@dataclasses.dataclass(frozen=True)
class TextLayout:
    """The special tokens around one text or two, and their token types."""

    before: tuple[int, ...] = ()
    """Ids before the first text."""
    between: tuple[int, ...] = ()
    """Ids after the first text, where there are two."""
    after: tuple[int, ...] = ()
    """Ids at the end."""
    second_type: int = 0
    """Token type of the second text and of what follows it; the first text has 0."""
    last_type: int | None = None
    """Token type of the last token, if it has one of its own (XLNet's <cls>: 2)."""
    pooled: Literal["first", "last"] = "first"
    """The token whose state stands for the whole."""

    def room(self, length: int, texts: int) -> int:
        """Tokens that `texts` texts may have together in an example of `length` tokens."""
        return length - len(self.before) - len(self.after) - (texts - 1) * len(self.between)


class Laid(NamedTuple):
    """An example: ids and token types, and where each text begins in it."""

    tokens: list[int]
    types: list[int]
    starts: tuple[int, ...]


def lay(layout: TextLayout, texts: Sequence[Sequence[int]]) -> Laid:
    """Puts special tokens around one text or two.

    Args:
      layout: the model's.
      texts: token ids of each text, already short enough.

    Returns:
      Ids, token types, and the place of each text's first token.

    Example:
      >>> lay(TextLayout(before=(2,), between=(3,), after=(3,), second_type=1), [[7, 8], [9]])
      Laid(tokens=[2, 7, 8, 3, 9, 3], types=[0, 0, 0, 0, 1, 1], starts=(1, 4))
    """
    tokens, types, starts = [*layout.before], [0] * len(layout.before), []
    for number, ids in enumerate(texts):
        end = layout.between if number < len(texts) - 1 else layout.after
        starts.append(len(tokens))
        tokens += [*ids, *end]
        types += [layout.second_type if number else 0] * (len(ids) + len(end))
    if layout.last_type is not None:
        types[-1] = layout.last_type
    return Laid(tokens, types, tuple(starts))


def cut(texts: Sequence[Sequence[int]], room: int, truncate: Truncate, where: str) -> tuple[list[Sequence[int]], bool]:
    """Cuts texts at their ends, or with `left` at their beginnings, to `room` tokens together.

    `longest_first` takes one token after the other off the longer text, off the second if they are equally long, as
    BERT's code and transformers do; `first` and `second` cut that text alone; `halves` cuts each of two texts to
    (room − 1) // 2 tokens, also where the other one is short, as GPT-1's code does. `left` takes as many tokens as
    `longest_first`, the first ones.

    Args:
      texts: token ids of one text or two.
      room: most tokens together.
      truncate: which one is cut; "error": none.
      where: file and line, for messages.

    Returns:
      (texts, True if something was cut).

    Raises:
      UserError: with "error" a text is too long; or the text that is cut has too few tokens.

    Example:
      >>> cut([[1, 2, 3, 4], [5, 6]], 4, "longest_first", "line 1")
      ([[1, 2], [5, 6]], True)
      >>> cut([[1, 2, 3, 4], [5, 6]], 4, "left", "line 1")
      ([[3, 4], [5, 6]], True)
    """
    lengths = [len(ids) for ids in texts]
    excess = sum(lengths) - room
    if truncate == "halves" and len(texts) == 2:
        half = (room - 1) // 2
        return [ids[:half] for ids in texts], max(lengths) > half
    if excess <= 0:
        return list(texts), False
    if truncate == "error":
        raise UserError(
            f"{where}: {sum(lengths)} tokens, data.length leaves room for {room}; raise data.length, or set "
            "objective.truncate to longest_first, first or second"
        )
    if len(texts) == 1:
        new_lengths = [room]
    elif truncate in ("longest_first", "left"):
        new_lengths = _longest_first(lengths, room)
    else:
        cut_index = 0 if truncate == "first" else 1
        new_lengths = [n - excess if number == cut_index else n for number, n in enumerate(lengths)]
    if min(new_lengths) < 0:
        raise UserError(
            f"{where}: objective.truncate: {truncate}: {excess} tokens are too many, that text has "
            f"{lengths[truncate != 'first']}; raise data.length or use longest_first"
        )
    if truncate == "left":
        return [ids[len(ids) - n :] for ids, n in zip(texts, new_lengths)], True
    return [ids[:n] for ids, n in zip(texts, new_lengths)], True


def _longest_first(lengths: Sequence[int], room: int) -> list[int]:
    """Tokens that two texts keep."""
    short = min(lengths)
    if 2 * short <= room:
        return [n if n == short else room - short for n in lengths]
    return [room - room // 2, room // 2]


def record(row: LocatedRow, truncated: int, **arrays: Any) -> Record:
    """The record of a row: `arrays` as int32, beside its place and how much of it was cut."""
    ids = {name: np.asarray(values, np.int32) for name, values in arrays.items()}
    return ids | {"truncated": np.int32(truncated), "origin": np.array(row.origin, np.int64)}


def record_like(*sequences: str, **others: np.ndarray) -> Record:
    """Arrays of the dtypes of records, of `sequences` int32; shape (0,) stands for any length."""
    zeros = dict.fromkeys(sequences, np.zeros(0, np.int32)) | others
    return zeros | {"truncated": np.zeros((), np.int32), "origin": np.zeros(2, np.int64)}
