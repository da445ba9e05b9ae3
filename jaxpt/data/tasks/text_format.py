"""A task of T5's code by its name: inputs, targets and the way back are `jaxpt.metrics.text_tasks` (ReCoRD, WSC, …)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from jaxpt import metrics
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import ComparedTexts, LocatedRow, with_lists
from jaxpt.errors import UserError
from jaxpt.metrics import Targets
from jaxpt.metrics.text_tasks import TASKS, TextTask, text_task

_OF_LABELS, _OF_NUMBERS = ("accuracy",), ("pearson", "spearman")


class TextFormatTask(ComparedTexts):
    """A task as text to text alone, in rows with TFDS's columns; SuperGLUE's JSON lines are read as such.

    A row may be several examples of the training set (each answer of ReCoRD), or none (WSC: a wrong referent).

    Example:
      >>> task = TextFormatTask(name="wsc_simple", metrics=("accuracy",))
      >>> values = {"text": "Ann asked Tom if he came .", "span1_text": "Tom", "span2_text": "he", "span2_index": 4}
      >>> row = Row(1, {**values, "label": True})
      >>> task.input_text(row, "line 1"), task.target_texts(row, "line 1")
      ('wsc: Ann asked Tom if *he* came .', ('Tom',))
      >>> task.parse("the Tom", row, "line 1"), task.target(row, "line 1")
      (1, 1)
    """

    kind: Literal["text_format"] = "text_format"
    name: str
    """Name of the format: `record`, `wsc_simple`, `wnli_simple`, `dpr`, `squad`, `translate_en_de`, …"""

    objective: ClassVar[str] = "text_to_text"
    default_metrics: ClassVar[tuple[str, ...]] = ("exact_match",)
    metric_targets: ClassVar[Targets | None] = "text"
    more_metrics: ClassVar[tuple[str, ...]] = (*_OF_LABELS, *_OF_NUMBERS)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            text_task(name)
        except UserError as error:
            raise ValueError(str(error)) from None
        return name

    @classmethod
    def metrics_of(cls, name: Any) -> tuple[str, ...]:
        """Of a format whose predictions are class ids the accuracy, of numbers correlations."""
        format = TASKS.get(str(name))  # None of translations
        is_label = format is not None and bool(format.labels or format.names)
        return _OF_LABELS if is_label else _OF_NUMBERS if name == "stsb" else cls.default_metrics

    def check_metrics(self) -> None:
        super().check_metrics()
        default = self.metrics_of(self.name)
        known = metrics.of_targets("text") if default == self.default_metrics else default
        if wrong := next((metric for metric in self.metrics or () if "." not in metric and metric not in known), None):
            kind = {_OF_LABELS: "class ids", _OF_NUMBERS: "numbers"}.get(default, "texts")
            reason = f"predictions of task.name: {self.name} are {kind}; one of: {', '.join(known)}"
            raise UserError(f"task.metrics: {wrong}: {reason}")

    def reference_language(self) -> str | None:
        """Of a translation that of its name."""
        is_translation = self.name.startswith("translate_")
        return self.language or (self.name.rpartition("_")[2] if is_translation else None)

    def columns(self) -> tuple[str, ...]:
        return ()

    def input_text(self, row: Row, where: str) -> str:
        return self._located(row, where, lambda format, values: format.inputs(values))

    def content(self, row: Row, where: str) -> tuple[str, ...]:
        return (self.input_text(row, where),)

    def vocabulary_texts(self, row: Row, where: str) -> tuple[str, ...]:
        """Input and targets, which may be in other languages."""
        return (self.input_text(row, where), *self.target_texts(row, where))

    def target(self, row: Row, where: str) -> Any:
        return self._located(row, where, lambda format, values: format.gold(values))

    def target_texts(self, row: Row, where: str) -> tuple[str, ...]:
        return self._located(row, where, lambda format, values: format.targets(values))

    def target_text(self, row: Row, where: str) -> str:
        """The first target; of a row that training leaves out what it would be if it were right."""
        right = Row(row.number, {**row.values, "label": 1})
        return next(iter(self.target_texts(row, where) or self.target_texts(right, where)), "")

    def parse(self, text: str, row: Row, where: str) -> Any:
        return text_task(self.name).parse(text, row.values)

    def difference(self, target: Any, prediction: Any, row: Row, where: str) -> str:
        """Class ids as words."""
        format = text_task(self.name)
        words = [*(format.labels or format.names), None]  # −1 is none
        named = [words[value] if isinstance(value, int) and len(words) > 1 else value for value in (target, prediction)]
        return super().difference(*named, row, where)

    def majority(
        self, metric: str, trained: Sequence[LocatedRow], rows: Sequence[LocatedRow], targets: Sequence[Any]
    ) -> dict[str, float] | None:
        """Of labels alone."""
        return super().majority(metric, trained, rows, targets) if metric in _OF_LABELS else None

    def _located(self, row: Row, where: str, convert: Callable[[TextTask, dict[str, Any]], Any]) -> Any:
        """What `convert` makes of the format and a row; raises UserError, with the row's place, where it cannot."""
        try:
            return convert(text_task(self.name), with_lists(row.values))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        except (TypeError, AttributeError, LookupError, ValueError) as error:
            empty = [name for name, value in row.values.items() if value is None]
            reason = f"column {empty[0]!r} is empty" if empty else f"{type(error).__name__}: {error}"
            raise UserError(f"{where}: does not fit task.name: {self.name} ({reason})") from None
