"""One of several answers to a context, each read together with it (SWAG, HellaSwag, PIQA, ARC, COPA, RACE)."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from jaxpt import scores, tables
from jaxpt.errors import UserError
from jaxpt.tables import Row
from jaxpt.tasks.base import Answer, Task


class Choices(NamedTuple):
    """The choices of a row."""

    texts: tuple[str, ...]
    names: tuple[str, ...]
    """What the row itself calls them (ARC: A, B, …); () where it has no names."""


class MultipleChoiceTask(Task):
    """A task with several choices per row, of which one is right.

    Example:
      >>> task = MultipleChoiceTask(text="ctx", choices="endings")
      >>> row = Row(1, {"ctx": "She opens the box.", "endings": ["It rains.", "It is empty."], "label": "B"})
      >>> task.pairs(row, "line 1")
      [('She opens the box.', 'It rains.'), ('She opens the box.', 'It is empty.')]
      >>> task.target(row, "line 1")
      1
    """

    kind: Literal["multiple_choice"] = "multiple_choice"
    text: str = "text"
    """Column of the context, the first text of each pair."""
    question: str | None = None
    """Column of a question, or of the beginning of every choice (SWAG's sent2)."""
    question_in: Literal["choice", "context"] = "choice"
    """Where the question stands: before each choice (SWAG, RACE) or after the context (GPT-1's RACE)."""
    choices: str | tuple[str, ...] = "choices"
    """Column of a list of choices, or one column each. The list may be of objects {"text", "label"}, or be an object
    of two lists of these names, as ARC has it."""
    label: str = "label"
    """Column of the right choice: its number, a letter (A is the first), its name in the row, or its text."""
    first_number: Literal[0, 1] = 0
    """Number of the first choice, in the label column."""
    most_choices: Annotated[int, Field(ge=2)] | None = None
    """Most choices of a row; by default those of the training set. The run saves it."""

    objective: ClassVar[str] = "multiple_choice"
    head: ClassVar[str] = "choice"
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    allowed_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def columns(self) -> tuple[str, ...]:
        listed = (self.choices,) if isinstance(self.choices, str) else self.choices
        return (self.text, *((self.question,) if self.question else ()), *listed)

    def content(self, row: Row, where: str) -> tuple[str, ...]:
        return (*self._context(row, where), *self.choices_in(row, where).texts)

    def choices_in(self, row: Row, where: str) -> Choices:
        """The choices of a row.

        Raises:
          UserError: the column holds no list of texts, fewer than two, an empty one, or more than `most_choices`.
        """
        if isinstance(self.choices, tuple):
            found = Choices(tuple(tables.text(row, name, f"{where} (task.choices)") for name in self.choices), ())
        else:
            found = _listed(tables.column(row, self.choices, where), f"{where}: column {self.choices!r} (task.choices)")
        if len(found.texts) < 2:
            raise UserError(f"{where}: task.choices: wants two choices or more, got {len(found.texts)}")
        if "" in (texts := [text.strip() for text in found.texts]):
            raise UserError(f"{where}: task.choices: choice {texts.index('') + 1} is empty")
        if self.most_choices is not None and len(texts) > self.most_choices:
            most = f"task.most_choices is {self.most_choices}"
            raise UserError(f"{where}: {len(texts)} choices; {most}: set task.most_choices={len(texts)}")
        return found

    def pairs(self, row: Row, where: str) -> list[tuple[str, str]]:
        """The two texts of each choice, context and choice, as a model reads them."""
        context, *question = self._context(row, where)
        if self.question_in == "context":
            context, question = " ".join([context, *question]), []
        return [(context, " ".join([*question, text])) for text in self.choices_in(row, where).texts]

    def _context(self, row: Row, where: str) -> tuple[str, ...]:
        """The context, and the question where there is one."""
        named = [("task.text", self.text)] + ([] if self.question is None else [("task.question", self.question)])
        return tuple(tables.text(row, name, f"{where} ({key})") for key, name in named)

    def target(self, row: Row, where: str) -> int:
        """The index of the right choice, from 0."""
        texts, names = self.choices_in(row, where)
        label = tables.label(tables.column(row, self.label, where)).strip()
        if not label:
            raise UserError(f"{where}: column {self.label!r} (task.label) is empty; wants a label")
        if label in names:
            return names.index(label)
        if label.isdecimal():
            index = int(label) - self.first_number
        elif len(label) == 1 and label.upper() in string.ascii_uppercase:
            index = string.ascii_uppercase.index(label.upper())
        else:
            index = texts.index(label) if label in texts else -1
        if not 0 <= index < len(texts):
            named = f", one of {', '.join(names)}" if names else ""
            first, last = self.first_number, self.first_number + len(texts) - 1
            raise UserError(
                f"{where}: label {label!r} (task.label) is none of {len(texts)} choices; "
                f"wants {first} to {last}, A to {string.ascii_uppercase[len(texts) - 1]}{named}, or a choice's text"
            )
        return index

    def decide(self, outputs: Sequence[np.ndarray]) -> int:
        """The predicted index, from the outputs of the row's record: [1, choices]."""
        return int(outputs[0][0].argmax())

    def answer(self, outputs: Sequence[np.ndarray], row: Row, where: str) -> Answer:
        """The predicted choice: its name in the row, or its number as the label column counts; its text; and the
        probability of each choice, by its name or number."""
        texts, names = self.choices_in(row, where)
        chosen = self.decide(outputs)
        labels = names or tuple(range(self.first_number, self.first_number + len(texts)))
        p = np.exp(-scores.negative_log_softmax(outputs[0][0])).tolist()
        return {"label": labels[chosen], "text": texts[chosen], "probabilities": dict(zip(map(str, labels), p))}

    def loss(self, outputs: Sequence[np.ndarray], target: int) -> float:
        """−log softmax(outputs)[right choice]."""
        return float(scores.negative_log_softmax(outputs[0][0])[target])

    def named(self, value: int, row: Row, where: str) -> str:
        """The text of a choice."""
        return self.choices_in(row, where).texts[value]

    def text_of(self, row: Row, where: str) -> str:
        return " | ".join(self._context(row, where))

    def confusions(self, predictions: Sequence[int], targets: Sequence[int]) -> list[str]:
        numbers = range(self.first_number, self.first_number + self.most_choices)
        return scores.confusions(predictions, targets, [str(number) for number in numbers])


def _listed(value: Any, what: str) -> Choices:
    """A list of texts, a list of {"text", "label"}, or {"text": texts, "label": names}."""
    names: Any = []
    if isinstance(value, dict):
        value, names = value.get("text"), value.get("label") or []
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        names = [one["label"] for one in value if "label" in one]
        value = [one.get("text") for one in value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UserError(f'{what} wants a list of texts, or {{"text": [...], "label": [...]}}')
    if names and len(names) != len(value):
        raise UserError(f"{what} has {len(value)} texts and {len(names)} labels; wants equally many")
    return Choices(tuple(value), tuple(tables.label(name).strip() for name in names))
