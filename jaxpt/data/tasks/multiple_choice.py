"""One of several answers to a context, each read together with it (SWAG, HellaSwag, PIQA, ARC, COPA, RACE, ReCoRD).

As text to text a row that T5's code has no format for has UnifiedQA's (https://arxiv.org/abs/2005.00700), in its own
case: `question \\n (A) first choice (B) second choice \\n context`, and the choice's text is the target.
"""

from __future__ import annotations

import collections
import string
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from jaxpt import metrics
from jaxpt.config import Overrides
from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tables.rows import label_of
from jaxpt.data.tasks.base import Answer, LocatedRow, Task, names_of
from jaxpt.errors import UserError
from jaxpt.metrics import Targets
from jaxpt.metrics.answers import normalize
from jaxpt.metrics.text_tasks import TASKS


class Choices(NamedTuple):
    """The choices of a row."""

    texts: tuple[str, ...]
    names: tuple[str, ...]
    """What the row itself calls them (ARC: A, B, …); () where it has no names."""


class RightChoices(NamedTuple):
    """The target of a row of which several choices may be right."""

    texts: tuple[str, ...]
    """All choices."""
    right: tuple[str, ...]


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
    question_words: Overrides = ()
    """{value of the question's column: the text that stands for it} (COPA: `cause: What was the cause of this?`)."""
    placeholder: str | None = None
    """Text in the question that each choice replaces (ReCoRD: @placeholder); the question is then the choice's text."""
    choices: str | tuple[str, ...] = "choices"
    """Column of a list of choices, or one column each. The list may be of objects {"text", "label"}, or be an object
    of two lists of these names, as ARC has it."""
    label: str = "label"
    """Column of the right choice: its name in the row, its number, a letter (A is the first), or its text, in this
    order; or a list of texts of choices, of which training takes the first."""
    first_number: Literal[0, 1] = 0
    """Number of the first choice, in the label column."""
    most_choices: Annotated[int, Field(ge=2)] | None = None
    """Maximum number of choices of a row; by default those of the training set. The run saves it."""

    objective: ClassVar[str] = "multiple_choice"
    head: ClassVar[str] = "choice"
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    metric_targets: ClassVar[Targets | None] = "choice"

    @model_validator(mode="after")
    def _consistent(self) -> MultipleChoiceTask:
        for key in ("question_words", "placeholder"):
            if getattr(self, key) and self.question is None:
                raise ValueError(f"{key}: wants question, the column that it is about")
        return self

    def columns(self) -> tuple[str, ...]:
        return (self.text, *names_of(self.question), *names_of(self.choices))

    def content(self, row: Row, where: str) -> tuple[str, ...]:
        return (*self._context(row, where), *self.choices_in(row, where).texts)

    def choices_in(self, row: Row, where: str) -> Choices:
        """The choices of a row.

        Raises:
          UserError: the column holds no list of texts, fewer than two, an empty one, or more than `most_choices`.
        """
        if isinstance(self.choices, tuple):
            choices = Choices(tuple(tables.text(row, name, f"{where} (task.choices)") for name in self.choices), ())
        else:
            choices = _listed(
                tables.column(row, self.choices, where), f"{where}: column {self.choices!r} (task.choices)"
            )
        if len(choices.texts) < 2:
            raise UserError(f"{where}: task.choices: wants two choices or more, got {len(choices.texts)}")
        if "" in (texts := [text.strip() for text in choices.texts]):
            raise UserError(f"{where}: task.choices: choice {texts.index('') + 1} is empty")
        if self.most_choices is not None and len(texts) > self.most_choices:
            limit = f"task.most_choices is {self.most_choices}"
            raise UserError(f"{where}: {len(texts)} choices; {limit}: set task.most_choices={len(texts)}")
        return choices

    def pairs(self, row: Row, where: str) -> list[tuple[str, str]]:
        """The two texts of each choice, context and choice, as a model reads them."""
        context, *question = self._context(row, where)
        texts = self.choices_in(row, where).texts
        if self.placeholder is not None:
            return [(context, question[0].replace(self.placeholder, text)) for text in texts]
        if self.question_in == "context":
            context, question = " ".join([context, *question]), []
        return [(context, " ".join([*question, text])) for text in texts]

    def _context(self, row: Row, where: str) -> tuple[str, ...]:
        """The context, and the question where there is one."""
        named = [("task.text", self.text)] + ([] if self.question is None else [("task.question", self.question)])
        context, *question = (tables.text(row, name, f"{where} ({key})") for key, name in named)
        words = dict(self.question_words)
        if question and words and question[0] not in words:
            raise UserError(f"{where}: question {question[0]!r} is none of task.question_words: {', '.join(words)}")
        return (context, *(words.get(text, text) for text in question))

    def target(self, row: Row, where: str) -> int:
        """The index of the right choice, from 0."""
        texts, names = self.choices_in(row, where)
        value = self._label(row, texts, where)
        if isinstance(value, list):
            if (right := next((text for text in value if text in texts), None)) is not None:
                return texts.index(right)
            value = ", ".join(map(str, value))
        label = label_of(Row(row.number, {self.label: value}), self.label, where)
        if label in names:
            return names.index(label)
        index = -1
        if label.isdecimal():
            index = int(label) - self.first_number
        elif len(label) == 1 and label.upper() in string.ascii_uppercase:
            index = string.ascii_uppercase.index(label.upper())
        if not 0 <= index < len(texts) and label in texts:
            index = texts.index(label)
        if not 0 <= index < len(texts):
            named = f", one of {', '.join(names)}" if names else ""
            first, last = self.first_number, self.first_number + len(texts) - 1
            raise UserError(
                f"{where}: label {label!r} (task.label) is none of {len(texts)} choices; "
                f"wants {first} to {last}, A to {string.ascii_uppercase[len(texts) - 1]}{named}, or a choice's text"
            )
        return index

    def grouped(self, rows: Sequence[LocatedRow]) -> tuple[list[LocatedRow], list[Any]]:
        """The rows that are scored, and the target of each: with the metric record `RightChoices`."""
        if "record" not in self.scored:
            return super().grouped(rows)
        return list(rows), [self._right(row.row, row.where) for row in rows]

    def _label(self, row: Row, texts: Sequence[str], where: str) -> Any:
        """The label column; text that is a list as a list, unless it is a choice."""
        value = tables.column(row, self.label, where)
        return value if value in texts else tables.parse_list(value, f"{where}: column {self.label!r} (task.label)")

    def _right(self, row: Row, where: str) -> RightChoices:
        texts = self.choices_in(row, where).texts
        value = self._label(row, texts, where)
        return RightChoices(texts, tuple(value) if isinstance(value, list) else (texts[self.target(row, where)],))

    def row_target(self, target: RightChoices | int) -> int:
        """The index of the first choice that is right."""
        if not isinstance(target, RightChoices):
            return target
        return next(index for index, text in enumerate(target.texts) if text in target.right)

    def score(self, predictions: Sequence[int], targets: Sequence[Any], metric: str) -> dict[str, float]:
        """A metric; with record any right choice counts."""
        if "record" not in self.scored:
            return super().score(predictions, targets, metric)
        chosen = ["" if p < 0 else target.texts[p] for p, target in zip(predictions, targets, strict=True)]
        if metric == "record":
            return metrics.score(metric, chosen, [target.right for target in targets])
        right = [text in target.right for text, target in zip(chosen, targets)]
        return metrics.score(metric, right, [True] * len(right))

    def majority(
        self, metric: str, trained: Sequence[LocatedRow], rows: Sequence[LocatedRow], targets: Sequence[Any]
    ) -> dict[str, float] | None:
        """None with the metric record: the place of a choice means nothing there."""
        return None if "record" in self.scored else super().majority(metric, trained, rows, targets)

    def input_text(self, row: Row, where: str) -> str:
        if self.name in TASKS:
            return super().input_text(row, where)
        context, *question = self._context(row, where)
        choices = (f"({letter}) {text}" for letter, text in zip(string.ascii_uppercase, self._texts(row, where)))
        return " \\n ".join([*question, " ".join(choices), context] if question else [context, " ".join(choices)])

    def target_text(self, row: Row, where: str) -> str:
        return self._texts(row, where)[self.target(row, where)]

    def parse(self, text: str, row: Row, where: str) -> int:
        """The index of the choice that has most words in common with a text; −1 without any (UnifiedQA's rule)."""
        texts = self._texts(row, where)
        if text in texts:
            return texts.index(text)
        word_counts = collections.Counter(normalize(text).split())
        common = [(word_counts & collections.Counter(normalize(choice).split())).total() for choice in texts]
        return common.index(max(common)) if self.name not in TASKS and any(common) else -1

    def answer_text(self, text: str, row: Row, where: str) -> Answer:
        """The text, and the number of its choice; None if it is none."""
        index = self.parse(text, row, where)
        return {"text": text, "label": None if index < 0 else self.first_number + index}

    def _texts(self, row: Row, where: str) -> tuple[str, ...]:
        """The choices as generated text: T5's words for them (COPA: choice1), or their own."""
        texts = self.choices_in(row, where).texts
        words = TASKS[self.name].labels if self.name in TASKS else ()
        return words if len(words) == len(texts) else texts

    def decide(self, outputs: Sequence[np.ndarray]) -> int:
        """The predicted index, from the outputs of the row's record: [1, choices]."""
        return int(outputs[0][0].argmax())

    def answer(self, outputs: Sequence[np.ndarray], row: Row, where: str) -> Answer:
        """The predicted choice: its name in the row, or its number as the label column counts; its text; and the
        probability of each choice, by its name or number."""
        texts, names = self.choices_in(row, where)
        chosen = self.decide(outputs)
        labels = names or tuple(range(self.first_number, self.first_number + len(texts)))
        p = np.exp(-metrics.negative_log_softmax(outputs[0][0])).tolist()
        return {"label": labels[chosen], "text": texts[chosen], "probabilities": dict(zip(map(str, labels), p))}

    def loss(self, outputs: Sequence[np.ndarray], target: int) -> float:
        """−log softmax(outputs)[right choice]."""
        return float(metrics.negative_log_softmax(outputs[0][0])[target])

    def named(self, value: int, row: Row, where: str) -> str | None:
        """The text of a choice; None of text that is none."""
        return None if value < 0 else self.choices_in(row, where).texts[value]

    def parsed(self, value: str | None) -> str | None:
        """The text of a choice, which accuracy compares as it does numbers."""
        if "record" in self.scored:
            raise NotImplementedError("the other right choices of a row are not named")
        return value

    def text_of(self, row: Row, where: str) -> str:
        return " | ".join(self._context(row, where))

    def confusions(self, predictions: Sequence[int], targets: Sequence[int]) -> list[str]:
        numbers = range(self.first_number, self.first_number + self.most_choices)
        return metrics.confusions(predictions, targets, [str(number) for number in numbers])


def _listed(value: Any, where: str) -> Choices:
    """A list of texts, a list of {"text", "label"}, or {"text": texts, "label": names}; each also as text."""
    names: Any = []
    value = tables.parse_list(value, where, objects=True)
    if isinstance(value, dict):
        value, names = value.get("text"), value.get("label") or []
    elif isinstance(value, list) and value and all(isinstance(choice, dict) for choice in value):
        names = [choice["label"] for choice in value if "label" in choice]
        value = [choice.get("text") for choice in value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UserError(f'{where} wants a list of texts, or {{"text": [...], "label": [...]}}')
    if names and len(names) != len(value):
        raise UserError(f"{where} has {len(value)} texts and {len(names)} labels; wants equally many")
    return Choices(tuple(value), tuple(tables.label(name).strip() for name in names))
