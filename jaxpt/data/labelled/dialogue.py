"""Dialogues as records: token ids by a chat template, and which of them the assistant says."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxpt.data import chat_template
from jaxpt.data.chat_template import ChatTemplate
from jaxpt.data.labelled.layout import Record, record, record_like
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.dialogue import DialogueTask, Message
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError

Trim = Literal["oldest_turns", "end", "drop", "error"]


@dataclasses.dataclass(frozen=True)
class DialogueEncoder:
    """From rows to records of a `DialogueTask`."""

    task: DialogueTask
    length: int
    """Maximum number of tokens in a record: one more than the model reads, as the last one is a target alone."""
    trim: Trim = "oldest_turns"
    without_answer: Literal["error", "skip"] = "error"

    def __call__(
        self, rows: Iterable[LocatedRow], tokenizer: Tokenizer, has_targets: bool, train: bool
    ) -> Iterator[Record]:
        """Encodes rows, in their order.

        Args:
          rows: the rows.
          tokenizer: the run's, with its chat template.
          has_targets: without effect.
          train: without effect.

        Yields:
          {"tokens" int32 [n], "answers" int32 [n]: 1 at the tokens of answers, "truncated" int32 []: 1 if the dialogue
          was too long, "origin" int64 [2]}; no tokens of a row that is left out.

        Raises:
          UserError: names the row.
        """
        template = chat_template.of_tokenizer(tokenizer)
        for row in rows:
            messages = self.task.dialogue(row.row, row.where)
            if any(message["role"] == "assistant" for message in messages):
                tools = self.task.tools(row.row, row.where)
                encode = functools.partial(
                    encoded, template=template, tokenizer=tokenizer, where=row.where, tools=tools
                )  # fmt: skip
                ids, answers, is_cut = self._fitted(messages, encode, row.where)
            elif self.without_answer == "skip":
                ids, answers, is_cut = [], [], False
            else:
                raise UserError(f"{row.where}: no message of the assistant; set objective.without_answer=skip")
            yield record(row, is_cut, tokens=ids, answers=answers)

    def _fitted(
        self, messages: list[Message], encode: Callable[..., tuple[list[int], list[int]]], where: str
    ) -> tuple[list[int], list[int], bool]:
        """Token ids, 1 at those of answers, and whether something was cut; [] if no answer fits."""
        ids, answers = encode(messages)
        size = len(ids)
        if size <= self.length:
            return ids, answers, False
        if self.trim == "error":
            raise UserError(
                f"{where}: {size} tokens, data.length leaves room for {self.length}; raise data.length, or set "
                "objective.trim to oldest_turns, end or drop"
            )
        if self.trim == "drop":
            return [], [], True
        head, turns = split_turns(messages)
        while self.trim == "oldest_turns" and len(turns) > 1 and len(ids) > self.length:
            turns = turns[1:]
            if not any(message["role"] == "assistant" for turn in turns for message in turn):
                return [], [], True
            ids, answers = encode([*head, *(m for turn in turns for m in turn)])
        ids, answers = ids[: self.length], answers[: self.length]
        return (ids, answers, True) if any(answers[1:]) else ([], [], True)

    def like(self) -> Record:
        """Arrays of the dtypes of a record; shape (0,) stands for any length."""
        return record_like("tokens", "answers")


def encoded(
    messages: Sequence[Message], template: ChatTemplate, tokenizer: Tokenizer, where: str,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Token ids of a dialogue, and 1 at those of answers.

    A token that is partly an answer's counts as one: a space before it may be in its first token.

    Args:
      messages: the dialogue.
      template: renders it.
      tokenizer: special tokens of the text are read as such.
      where: file and line, for messages.
      tools: JSON schemas for the template.

    Raises:
      UserError: the template fails, marks no answer, or does not read tools or reasoning that are there.
    """
    try:
        template = template.select(messages, tools)
        text, spans = template.answers(messages, tools=tools)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    ids, offsets = tokenizer.encode_rendered(text)
    starts, ends = offsets.T
    answers = np.zeros(len(ids), np.int32)
    for start, end in spans:
        answers |= (starts < end) & (ends > start)
    if not answers.any():
        raise UserError(f"{where}: {template.name}: renders no token of the assistant's answers")
    return ids, answers.tolist()


def split_turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """A dialogue as what stands before it and its turns, each from a user's message on.

    Example:
      >>> roles = ("system", "user", "assistant", "user", "assistant")
      >>> head, turns = split_turns([{"role": role, "content": "…"} for role in roles])
      >>> len(head), [len(turn) for turn in turns]
      (1, [2, 2])
    """
    count = next((n for n, m in enumerate(messages) if m["role"] not in ("system", "developer")), len(messages))
    turns: list[list[Message]] = []
    for message in messages[count:]:
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return list(messages[:count]), turns
