"""Base of tasks over a text, or a pair of texts, whose head has outputs for the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from jaxpt.config import unaffected
from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import Answer, Task, names_of
from jaxpt.metrics.text_tasks import TASKS


class TextsTask(Task):
    """Base of tasks over a text, or a pair of texts."""

    text: str | tuple[str, ...] = "text"
    """Column of the text, or of the first of two; several columns are joined by spaces."""
    pair: str | tuple[str, ...] | None = None
    """Column of the second text, or several."""
    label: str = "label"
    """Column of the label."""
    windows: Annotated[Literal["mean", "max"] | None, unaffected("program")] = None
    """A text beyond `data.length` is read in overlapping windows (`objective.stride`), each a training example with the
    label of its text. The outputs of a text are the mean of its windows', or of each output the largest. By default the
    text is cut."""
    is_symmetric: bool = False
    """The order of a pair means nothing: training sees both orders (ELECTRA); with `objective.extract` the head sees
    both at once (GPT-1)."""

    objective: ClassVar[str] = "classification"
    head: ClassVar[str] = "classes"

    target_dtype: ClassVar[type] = np.float32

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if self.windows is not None and self.pair is not None:
            raise ValueError("windows: are of a single text, and pair names a second one; drop one of both keys")
        return self

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of a target as the loss wants it."""
        return ()

    def columns(self) -> tuple[str, ...]:
        return (*names_of(self.text), *names_of(self.pair))

    def texts(self, row: Row, where: str) -> tuple[str, ...]:
        """The text, or both."""
        named = [("task.text", names_of(self.text)), ("task.pair", names_of(self.pair))]
        return tuple(" ".join(_text(row, name, where, key) for name in names) for key, names in named if names)

    def input_text(self, row: Row, where: str) -> str:
        """That of any task; columns may have other names than those of TFDS, which T5's code knows."""
        known = TASKS[self.name].columns if self.name in TASKS else ()
        texts = self.texts(row, where)
        if len(known) == len(texts) == len(self.columns()):
            row = Row(row.number, {**row.values, **dict(zip(known, texts))})
        return super().input_text(row, where)

    def content(self, row: Row, where: str) -> tuple[str, ...]:
        return self.texts(row, where)

    def pooled(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """The outputs of a row, [outputs], from those of its windows.

        Args:
          outputs: the head's, of each of the row's records: [1, outputs].

        Example:
          >>> windows = [np.array([[1.0, 4.0]]), np.array([[3.0, 2.0]])]
          >>> [TextsTask(kind="x", windows=pooling).pooled(windows).tolist() for pooling in ("mean", "max")]
          [[2.0, 3.0], [3.0, 4.0]]
        """
        windows = np.stack([of_record[0] for of_record in outputs])
        return windows.max(0) if self.windows == "max" else windows.mean(0)

    def decide(self, outputs: Sequence[np.ndarray]) -> Any:
        """The prediction of a row, comparable with `target`.

        Args:
          outputs: as of `pooled`.
        """
        return self.decide_one(self.pooled(outputs))

    def decide_one(self, logits: np.ndarray) -> Any:
        """`decide` from the head's outputs: [outputs]."""
        raise NotImplementedError

    def answer(self, outputs: Sequence[np.ndarray]) -> Answer:
        """The prediction of a row for people, from the same."""
        return self.answer_one(self.pooled(outputs))

    def answer_one(self, logits: np.ndarray) -> Answer:
        """`answer` from the head's outputs: [outputs]."""
        raise NotImplementedError


def _text(row: Row, name: str, where: str, key: str) -> str:
    """The text of a column that `key` of the recipe names."""
    value = row.values.get(name)
    return value if isinstance(value, str) else tables.text(row, name, f"{where} ({key})")
