"""Base class of tasks: from a row of a file to texts and a target, and from predictions to scores and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import field_validator

from jaxpt import metrics
from jaxpt.config import LanguageCode, Overrides, TaskConfig, metric_paths, unaffected
from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tables.dialect import Delimiter, Encoding
from jaxpt.errors import UserError
from jaxpt.metrics import Targets
from jaxpt.metrics.text_tasks import TASKS, generic_inputs, text_task

Answer = dict[str, Any]
"""What `jaxpt predict` writes of a row, ready for JSON."""


class LocatedRow(NamedTuple):
    """A row and its place."""

    row: Row
    where: str
    """File and line, for messages."""
    origin: tuple[int, int]
    """(file, row)."""
    row_number: int | None = None
    """Its number among all rows of its files, from 0: its id where no column has one. None: not known."""


class Task(TaskConfig):
    """Base of all tasks. A module defines exactly one subclass."""

    name: str | None = None
    """Name of the task, such as `mrpc`: the prefix of text-to-text inputs, and of a submission's file."""
    id: str | None = None
    """Column of the rows' ids; by default the first that there is of `id`, `idx`, `index`, `ind`, `pairID` and
    `sent_id`, else the number of the row, from 0."""
    header: tuple[str, ...] | None = None
    """Names of the columns of files that do not name them: TSV and CSV without a header line, CoNLL."""
    quoted: bool | None = None
    """Fields of TSV and CSV files may stand in quotation marks; by default those of CSV."""
    delimiter: Delimiter | None = None
    """What separates the fields of TSV and CSV files; by default a tab, and of CSV what its first rows show: a comma,
    `;`, a tab or `|`."""
    encoding: Encoding | None = None
    """The encoding of TSV and CSV files (`latin-1`, `utf-16`, …); by default found: UTF-8, UTF-16 with a byte order
    mark, or else Windows-1252."""
    comments: bool = False
    """Lines of CoNLL files that start with # before a sentence are comments; in CoNLL-U they always are."""
    metrics: tuple[str, ...] | None = None
    """Metrics on the validation and test set, see `jaxpt.metrics`, or dotted paths of functions such as
    `my_lab.metrics.kappa`; the first one chooses the best checkpoint."""
    metric_options: Annotated[Overrides, unaffected("records", "program")] = ()
    """Options of metrics, such as {bleu: {tokenize: intl}}; jaxpt/data/tasks/README.md has a table of them."""

    @field_validator("metrics")
    @classmethod
    def _import_metrics(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            metric_paths.register(names or ())
        except UserError as error:
            raise ValueError(str(error)) from None
        return names

    @property
    def scored(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return self.metrics or self.metrics_of(self.name)

    def check_metrics(self) -> None:
        """Raises UserError for a metric that this kind has not or cannot import, or two that give one value."""
        for metric in self.metrics or ():
            if metric not in self.more_metrics:
                metrics.check_targets(metric, self.metric_targets, f"a task of kind {self.kind}", "task.metrics")
        metrics.check_value_names({metric: metrics.describe(metric) for metric in self.scored}, "task.metrics")
        metrics.check_options(self.metric_options, self.scored, "task.metric_options")

    metric_targets: ClassVar[Targets | None] = None
    """What metrics of this kind of task score; None: it has no metrics to choose from."""
    more_metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics of other targets that it takes as well."""

    @property
    def shown(self) -> tuple[str, ...]:
        """Names of the labels, of a task that has labels."""
        return getattr(self, "labels", None) or ()

    @property
    def outputs(self) -> int:
        """Outputs of the head."""
        return len(self.shown)

    def columns(self) -> tuple[str, ...]:
        """The columns that a row must have to be answered."""
        raise NotImplementedError

    def content(self, row: Row, where: str) -> tuple[str, ...]:
        """The texts by which equal rows are recognised.

        Args:
          row: the columns of a row.
          where: file and line, for messages.
        """
        raise NotImplementedError

    def vocabulary_texts(self, row: Row, where: str) -> tuple[str, ...]:
        """The texts of a row that a vocabulary is trained on."""
        return self.content(row, where)

    def held_out_by(self, row: Row, where: str) -> tuple[str, ...]:
        """The texts by whose hash rows are held out: rows that have the same ones are in the same split."""
        return self.content(row, where)

    quantiles: ClassVar[int] = 0
    """Strata of a split, where `stratum` gives numbers."""

    def stratum(self, row: Row, where: str) -> Any:
        """What a split keeps in proportion: a label, or a number."""
        return ""

    def labels_in(self, row: Row, where: str) -> list[str]:
        """The labels of a row, of a task that has labels."""
        return []

    def before_labels(self, rows: Iterable[tuple[Row, str]]) -> Task:
        """The task that reads the labels of its training set, where that needs a look at all rows first.

        Args:
          rows: of the training set, each with its place; possibly not looked at.
        """
        return self

    def options(self, metric: str) -> dict[str, Any]:
        """The options of a metric that this task gives."""
        return metrics.options_of(self.metric_options, metric)

    def computed(self, metric: str, targets: Sequence[Any]) -> str | None:
        """How a metric is computed, to be shown beside it: the label or average that it is of, a scorer's signature.

        Args:
          metric: one of `scored`.
          targets: those that are scored.

        Returns:
          None if the name of the metric says all.

        Raises:
          UserError: what the metric needs is not installed.
        """
        return None

    def baseline_names(self) -> dict[str, str]:
        """{value: name} of the values whose `majority` is no constant."""
        return {}

    def score(self, predictions: Sequence[Any], targets: Sequence[Any], metric: str) -> dict[str, float]:
        """A metric of predictions.

        Args:
          predictions: as `decide` gives them.
          targets: as `target` gives them, of the same rows.
          metric: one of `scored`.

        Returns:
          {name: value}.
        """
        return metrics.score(metric, predictions, targets, **self.options(metric))

    def with_language_of(self, targets: Sequence[Any]) -> Task:
        """The task that scores parts of these targets as it scores all: in one language, which is found by all.

        Args:
          targets: texts, of a metric whose options depend on their language.
        """
        return self

    def majority(
        self, metric: str, trained: Sequence[LocatedRow], rows: Sequence[LocatedRow], targets: Sequence[Any]
    ) -> dict[str, float] | None:
        """A metric of the constant prediction that is best on the training set (`jaxpt.metrics.majority`).

        Args:
          metric: one of `scored`.
          trained: the rows of the training set.
          rows: the rows that are scored.
          targets: their targets.
        """
        known = [self.target(row.row, row.where) for row in trained]
        return metrics.majority(metric, known, targets, **self.options(metric))

    def target(self, row: Row, where: str) -> Any:
        """The target of a row."""
        raise NotImplementedError

    def loss(self, outputs: Sequence[np.ndarray], target: Any) -> float:
        """The loss of a row: that of training, without label smoothing and class weights.

        Args:
          outputs: the head's, of each of the row's records.
          target: as `target` gives it.
        """
        raise NotImplementedError

    def named(self, value: Any, row: Row, where: str) -> Any:
        """A target or a prediction of a row as people read it, ready for JSON."""
        return value

    def parsed(self, value: Any) -> Any:
        """The inverse of `named`, from JSON: what `score` takes.

        Raises:
          NotImplementedError: the task needs more than what is named.
        """
        return value

    def text_of(self, row: Row, where: str) -> str:
        """What a row is recognised by in a list."""
        return " | ".join(self.content(row, where))

    def difference(self, target: Any, prediction: Any, row: Row, where: str) -> str:
        """What was predicted of a row instead of what: one text."""
        target, prediction = (self.named(value, row, where) for value in (target, prediction))
        return f"{_said(target)} → {_said(prediction)}"

    def confusions(self, predictions: Sequence[Any], targets: Sequence[Any]) -> list[str]:
        """Lines that say which label is taken for which; [] of a task without labels."""
        return []

    def grouped(self, rows: Sequence[LocatedRow]) -> tuple[list[LocatedRow], list[Any]]:
        """The rows that are scored, and the target of each."""
        return list(rows), [self.target(row.row, row.where) for row in rows]

    def row_target(self, target: Any) -> Any:
        """The target of a row by itself, as `target` gives it, from one that `grouped` gives."""
        return target

    def with_measured(self, metrics: Mapping[str, float]) -> Task:
        """The task with what is chosen on the validation set, such as a threshold.

        Args:
          metrics: measured there: {"<evaluator>/<metric>": value}.
        """
        return self

    def calibration(self, outputs: Sequence[Sequence[np.ndarray]], targets: Sequence[Any]) -> dict[str, float]:
        """What is fitted on the validation set and stored with its metrics, for `with_measured`: {name: value}.

        Args:
          outputs: the head's, of each row those of its records.
          targets: of each row.
        """
        return {}

    def confidence(self, outputs: Sequence[np.ndarray]) -> float | None:
        """The probability of what is predicted of a row; None of a task without one."""
        return None

    def reliability(self, outputs: Sequence[Sequence[np.ndarray]], targets: Sequence[Any]) -> dict[str, Any]:
        """How far probabilities of labels can be trusted, where `confidence` does not say it: values ready for JSON.

        Args:
          outputs: the head's, of each row those of its records.
          targets: of each row.
        """
        return {}

    # ---- text to text -----------------------------------------------------------------------------------------------

    def input_text(self, row: Row, where: str) -> str:
        """The input of a row as text: that of T5's code for a task that it knows, else `{task} {column}: {text} …`."""
        if self.name in TASKS:
            return text_task(self.name).inputs(with_lists(row.values, f"{where}: "))
        texts = {name: tables.text(row, name, where, as_text=True) for name in self.columns()}
        return generic_inputs(self.name or self.kind, texts)

    def target_text(self, row: Row, where: str) -> str:
        """The target of a row as text."""
        raise UserError(f"objective.kind: text_to_text does not fit task.kind: {self.kind}")

    def target_texts(self, row: Row, where: str) -> tuple[str, ...]:
        """The targets of a row of the training set: an example for each."""
        return (self.target_text(row, where),)

    def parse(self, text: str, row: Row, where: str) -> Any:
        """The prediction, comparable with `target`, that a generated text is."""
        raise NotImplementedError

    def answer_text(self, text: str, row: Row, where: str) -> Answer:
        """The prediction of a row for people, from a generated text."""
        return {"text": text}

    def candidates(self) -> tuple[str, ...]:
        """All texts that can be a target, where these are few."""
        return ()

    def row_id(self, row: LocatedRow) -> Any:
        """The id of a row: its column's value, or its number from 0, as in the files of `jaxpt predict`."""
        return tables.row_id(row.row, self.id, default=row.row_number)


def _said(value: Any) -> str:
    """A named target or prediction as text."""
    if value is None or value in ("", []):
        return "(none)"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(value) if isinstance(value, list) else str(value)


class ComparedTexts(Task):
    """Base of tasks whose predictions are texts that are compared with references."""

    language: Annotated[LanguageCode | None, unaffected("records", "program")] = None
    """Code of the targets' language (`zh`, `de`), which chooses how metrics split them into words (BLEU, TER, ROUGE) or
    normalize them (SQuAD); by default found by their letters: Latin ones count as English."""

    def reference_language(self) -> str | None:
        """The code of the targets' language, where it is known."""
        return self.language

    def options(self, metric: str) -> dict[str, Any]:
        language = self.reference_language()
        by_language = metrics.find(metric).by_language
        return {**({"language": language} if language and by_language else {}), **super().options(metric)}

    def with_language_of(self, targets: Sequence[Any]) -> Task:
        return self if self.reference_language() else self.model_copy(update={"language": metrics.language_of(targets)})

    def computed(self, metric: str, targets: Sequence[Any]) -> str | None:
        resolved = metrics.resolve(metric, targets, **self.options(metric))
        return metrics.find(metric).signature(metrics.reference_count(targets), **resolved)


def with_lists(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The columns of TFDS for T5's code, where those of lists may be text (`tables.parse_list`).

    Args:
      values: of a row.
      prefix: of messages.
    """
    lists = {name: values[name] for name in ("answers", "candidates", "entities") if name in values}
    options = {"numbers": False, "objects": True}
    return {**values, **{n: tables.parse_list(x, f"{prefix}column {n!r}", **options) for n, x in lists.items()}}


def names_of(columns: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of columns, as a tuple."""
    return (columns,) if isinstance(columns, str) else columns or ()
