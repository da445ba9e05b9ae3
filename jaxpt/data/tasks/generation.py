"""Text for text: summaries, translation, data to text, closed-book questions."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import ComparedTexts, LocatedRow
from jaxpt.errors import UserError
from jaxpt.metrics import Targets

_FORMATTER = string.Formatter()


class GenerationTask(ComparedTexts):
    """A task whose targets are texts.

    Example:
      >>> task = GenerationTask(inputs="summarize: {article}", targets="highlights")
      >>> row = Row(2, {"article": "It rained all day.", "highlights": "Rain."})
      >>> task.input_text(row, "line 2"), task.references(row, "line 2")
      ('summarize: It rained all day.', ['Rain.'])
    """

    kind: Literal["generation"] = "generation"
    inputs: str = "{inputs}"
    """The input's text, in which `{column}` stands for the text of a column, `{translation.de}` for that of a field."""
    targets: str = "targets"
    """Column of the target: a text, or a list of equally good ones, of which training takes the first."""

    objective: ClassVar[str] = "text_to_text"
    default_metrics: ClassVar[tuple[str, ...]] = ("rouge",)
    metric_targets: ClassVar[Targets | None] = "text"

    @field_validator("inputs")
    @classmethod
    def _has_columns(cls, inputs: str) -> str:
        try:
            fields = [field for field in _FORMATTER.parse(inputs) if field[1] is not None]
            names = [name for _, name, _, _ in fields]
            for _, _, spec, conversion in fields:
                _formatted("", spec, conversion)
        except ValueError as error:
            raise ValueError(f"wants a text with {{column}} in it: {error}") from None
        if not names or not all(names):
            raise ValueError(f"wants a text with {{column}} in it, got {inputs!r}")
        return inputs

    def columns(self) -> tuple[str, ...]:
        return tuple(name for _, name, _, _ in _FORMATTER.parse(self.inputs) if name)

    def input_text(self, row: Row, where: str) -> str:
        """The text that the model reads."""
        parts = []
        for literal, name, spec, conversion in _FORMATTER.parse(self.inputs):
            parts.append(literal)
            if name is not None:  # `str.format` would take a dot or a number in it for something else
                parts.append(_formatted(tables.text(row, name, where, as_text=True), spec, conversion))
        return "".join(parts)

    def references(self, row: Row, where: str) -> list[str]:
        """The texts that are right answers."""
        value: Any = tables.column(row, self.targets, where)
        references = value if isinstance(value, list) else [value]
        if not references or not all(isinstance(reference, str) for reference in references):
            raise UserError(f"{where}: column {self.targets!r} (task.targets) wants a text or a list of texts")
        return references

    def content(self, row: Row, where: str) -> tuple[str, ...]:
        return (self.input_text(row, where),)

    def vocabulary_texts(self, row: Row, where: str) -> tuple[str, ...]:
        """Input and targets, which may be in other languages."""
        return (self.input_text(row, where), *self.references(row, where))

    def target(self, row: Row, where: str) -> list[str]:
        return self.references(row, where)

    def target_text(self, row: Row, where: str) -> str:
        return self.references(row, where)[0]

    def parse(self, text: str, row: Row, where: str) -> str:
        return text

    def grouped(self, rows: Sequence[LocatedRow]) -> tuple[list[LocatedRow], list[Any]]:
        """Rows with the same input are one, with the references of all of them."""
        first: dict[str, LocatedRow] = {}
        references: dict[str, list[str]] = {}
        for row in rows:
            inputs = self.input_text(row.row, row.where)
            first.setdefault(inputs, row)
            known = references.setdefault(inputs, [])
            known += [reference for reference in self.references(row.row, row.where) if reference not in known]
        return list(first.values()), list(references.values())


def _formatted(text: str, spec: str, conversion: str | None) -> str:
    """A column's text as the field of `inputs` wants it, such as {article:.2000} for its first 2,000 characters.

    Raises:
      ValueError: the field is not for texts.
    """
    return format(_FORMATTER.convert_field(text, conversion), spec)
