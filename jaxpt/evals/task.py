"""A task's metrics on the validation or test set, beside those of the best constant prediction."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax

from jaxpt.config import Config, NonNegativeInt, execution
from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.errors import UserError
from jaxpt.evals import predictors
from jaxpt.evals.simple_models import beside
from jaxpt.evals.task_scores import all_metrics, constant_baseline
from jaxpt.models.heads import features
from jaxpt.objectives.classification import Classification
from jaxpt.runtime.progress import track
from jaxpt.train.evaluators import Details, Evaluate, Evaluator, Result
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.base import Data


Tell = Callable[[Any, Mapping[str, float]], Details]
"""(parameters, metrics of the validation set) → what is told of the rows; see `Result.details`."""
WORST = 5
"""Rows that are shown."""
_KEPT_ROWS = 20
"""Rows that are kept with their texts, for `jaxpt report`."""
_MOST_LETTERS = 1000
"""Of a text that is kept."""
MOST_LABELS = 500
"""More are no classes."""
_WIDTH = 160  # characters of a line


class TaskMetrics(Evaluator):
    """The task's metrics; the first of them chooses the best checkpoint. Of a mixture each task's, and their average,
    which chooses it."""

    kind: Literal["task"] = "task"
    split: Literal["validation", "test"] = "validation"
    """Which rows are scored; of the validation set the first `train.eval_examples`."""
    simple_models: NonNegativeInt = execution(20_000)
    """At the end of a run simple models are trained on the same rows, in seconds, and the best one is compared with the
    model; where the training set has more rows than these (of 250 characters), or 0, none is."""

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        from jaxpt.data.parts import each_task, named

        tasks: dict[str, _OneTask] = {}
        for name, config in each_task(setup.config).items():
            if self.split == "test" and name and not config.data.has_test:
                continue
            others = [task.predictor for task in tasks.values()]
            with named(name):
                tasks[name] = _OneTask(dataclasses.replace(setup, config=config), data, self, others)

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            outputs: dict[str, list[Any]] = {}
            for name, task in tasks.items():
                of_task = task.outputs(params, stop)
                if of_task is None:
                    return None
                outputs[name] = of_task
            return scored(outputs, features.report_lines(params), earlier)

        def scored(outputs: Mapping[str, list[Any]], of_features: list[str], earlier: Mapping[str, float]) -> Result:
            metrics: dict[str, float] = {}
            report_lines: list[str] = []
            tells: dict[str, Tell] = {}
            majority: dict[str, float] = {}
            computed: dict[str, str] = {}
            for name, task in tasks.items():
                task_metrics, tells[name] = task.score(outputs[name], of_part(earlier, name) if name else earlier)
                report_lines += task.lines(f"{self.called}/{name}" if name else self.called, task_metrics)
                computed |= _prefixed(name, task.computed)
                metrics |= _prefixed(name, task_metrics)
                majority |= _prefixed(name, task.majority)
            if "" not in tasks and len(tasks) == len(setup.config.task.tasks):
                average = setup.config.task.average(metrics)
                report_lines += lines(self.called, average) if average else []
                metrics = {**average, **metrics}
            details, again = functools.partial(_details, tells), functools.partial(scored, outputs, of_features)
            return Result(metrics, (*report_lines, *of_features), details, majority, computed, again)

        return evaluate


class _OneTask:
    """A task's rows, encoded, and what they are compared with."""

    def __init__(self, setup: Setup, data: Data, settings: TaskMetrics, others: Sequence[Any]) -> None:
        """Of a recipe as if the task were all; `others`: the predictors of other tasks of the run."""
        from jaxpt.data.labelled import examples

        config = self._config = setup.config
        split = self._split = settings.split
        rows, targets = config.task.grouped(examples.split_rows(config, split))
        limit = config.train.eval_examples if split == "validation" else None
        rows, self._targets = rows[:limit], targets[:limit]
        self._found, self._by_row = examples.examples(config, data.tokenizer, rows), examples.by_row
        trained = examples.split_rows(config, "train")
        of_metrics = ((metric, config.task.computed(metric, self._targets)) for metric in config.task.scored)
        self.computed = {metric: how for metric, how in of_metrics if how is not None}
        self.majority = constant_baseline(config.task, trained, rows, self._targets)
        self._has_simple_models = beside.is_within(config, trained, settings.simple_models)
        self._labels = {
            name: label_counts(config.task, split_rows) for name, split_rows in (("train", trained), (split, rows))
        }
        self.predictor = predictors.build(setup, data.tokenizer, others)
        self.predictor.compile(self._found.records)

    def lines(self, name: str, metrics: Mapping[str, float]) -> list[str]:
        """What the user is shown of the metrics."""
        metrics = {name: value for name, value in metrics.items() if not name.startswith("threshold_")}
        return lines(name, metrics, self.majority, self._config.task.baseline_names(), self.computed)

    def outputs(self, params: Any, stop: Callable[[], bool]) -> list[Any] | None:
        """The model's outputs of each record; None if stopped."""
        records, task = self._found.records, self._config.task
        with track(f"evaluating {task.name or task.kind}", len(records), "rows"):
            return self.predictor(params, records, stop)

    def score(self, outputs: list[Any], earlier: Mapping[str, float]) -> tuple[dict[str, float], Tell]:
        """The metrics of outputs, and what tells more about the same rows."""
        config = with_measured(self._config, earlier)
        of_rows, rows = self._by_row(self._found, outputs), self._found.rows
        predictions = [config.objective.decide(of_row, row.row, row.where) for of_row, row in zip(of_rows, rows)]

        has_outputs = isinstance(config.objective, Classification)  # and no generated text
        is_fitted = has_outputs and self._split == "validation"
        fitted = self._config.task.calibration(of_rows, self._targets) if is_fitted else {}

        def details(params: Any, measured: Mapping[str, float]) -> Details:
            row_targets = [config.task.row_target(target) for target in self._targets]
            losses = self.predictor.losses(params, self._found.records, of_rows, row_targets)
            task = with_measured(self._config, measured).task
            confidences = [task.confidence(of_row) if has_outputs else None for of_row in of_rows]
            task_details = row_details(task, rows, row_targets, predictions, losses, confidences)
            reliability = task.reliability(of_rows, self._targets) if has_outputs else {}
            common = {"labels": self._labels, **({"reliability": reliability} if reliability else {})}
            parts = tuple(common | part for part in task_details.parts)
            return self._with_simple_model(task_details._replace(parts=parts), predictions, metrics)

        metrics = all_metrics(config.task, predictions, self._targets)
        return {**metrics, **fitted}, details

    def _with_simple_model(
        self, task_details: Details, predictions: Sequence[Any], metrics: Mapping[str, float]
    ) -> Details:
        """Compares the predictions with the best simple model's, in one process."""
        if not self._has_simple_models or jax.process_index() != 0:
            return task_details
        try:
            compared = beside.compare(self._config, self._split, predictions, self._targets, metrics)
        except (UserError, OSError) as error:  # the run is finished: it does not fail by these
            return task_details._replace(lines=(f"no simple model: {error}", *task_details.lines))
        return task_details._replace(lines=(*compared.lines, *task_details.lines), simple_models={"": compared.entry})


def _prefixed(name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics under the name of their task, if it has one."""
    return {f"{name}/{metric}" if name else metric: value for metric, value in metrics.items()}


def _details(tells: Mapping[str, Tell], params: Any, measured: Mapping[str, float]) -> Details:
    """What is told of each task; the rows of a mixture name theirs."""
    lines: list[str] = []
    rows: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    simple_models: dict[str, Any] = {}
    for name, tell in tells.items():
        task_details = tell(params, of_part(measured, name) if name else measured)
        lines += ([f"{name}:"] if name else []) + list(task_details.lines)
        rows += [{"task": name, **row} for row in task_details.rows] if name else task_details.rows
        parts += [{"task": name, **part} for part in task_details.parts]
        if task_details.simple_models:
            simple_models[name] = task_details.simple_models[""]
    return Details(tuple(lines), tuple(rows), tuple(parts), simple_models)


def of_part(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """The metrics of one task of a mixture, by the names that they have where it is the only one.

    Example:
      >>> of_part({"task/average": 0.6, "task/boolq/accuracy": 0.6}, "boolq")
      {'task/accuracy': 0.6}
    """
    return {key.replace(f"/{name}/", "/"): value for key, value in metrics.items() if f"/{name}/" in key}


def with_measured(config: Config, metrics: Mapping[str, float]) -> Config:
    """The configuration whose task has what is chosen on the validation set (`Task.with_measured`)."""
    task = config.task.with_measured(metrics)
    objective = config.objective.model_copy(update={"task": task})
    return config.model_copy(update={"task": task, "objective": objective})


def lines(
    name: str,
    metrics: Mapping[str, float],
    majority: Mapping[str, float] | None = None,
    baseline_names: Mapping[str, str] | None = None,
    computed: Mapping[str, str] | None = None,
) -> list[str]:
    """What the user is shown of metrics.

    Args:
      name: of the evaluator.
      metrics: {value: number}.
      majority: the same of the trivial prediction.
      baseline_names: {value: name of that prediction}, where it is no constant.
      computed: {metric: how it is computed}.

    Example:
      >>> lines("task", {"f1": 0.5}, {"f1": 0.25}, {}, {"f1": "of the label yes"})
      ['task: f1 0.5000 (constant baseline 0.2500)  [f1: of the label yes]']
    """
    majority, baseline_names = majority or {}, baseline_names or {}
    entries = [
        f"{value} {number:.4f}"
        + (f" ({baseline_names.get(value, 'constant baseline')} {majority[value]:.4f})" if value in majority else "")
        for value, number in metrics.items()
    ]
    notes = [f"[{metric}: {how}]" for metric, how in (computed or {}).items()]
    return [f"{name}: {'  '.join([*entries, *notes])}"]


def row_details(
    task: Task,
    rows: Sequence[LocatedRow],
    targets: Sequence[Any],
    predictions: Sequence[Any],
    losses: Sequence[float],
    confidences: Sequence[float | None] | None = None,
) -> Details:
    """The predictions of a split, and what is shown of them.

    Args:
      task: says how targets and predictions are shown.
      rows: the rows.
      targets: of each row.
      predictions: likewise.
      losses: likewise.
      confidences: the probability of each prediction, where it has one.

    Returns:
      Confusion matrix and worst rows; of each row {"id", "target", "prediction", "loss"}, and "probability" where it
      is known.
    """
    records = tuple(
        {
            "id": task.row_id(row),
            "target": task.named(target, row.row, row.where),
            "prediction": task.named(prediction, row.row, row.where),
            "loss": round(loss, 6),
            **({} if confidence is None else {"probability": round(confidence, 6)}),
        }
        for row, target, prediction, loss, confidence in zip(
            rows, targets, predictions, losses, confidences or [None] * len(rows), strict=True
        )
    )
    lines = task.confusions(predictions, targets)
    lines.append(f"largest losses of {len(rows):,} rows:")
    worst = sorted(range(len(rows)), key=lambda number: -losses[number])
    for number in worst[:WORST]:
        row, where = rows[number].row, rows[number].where
        difference = task.difference(targets[number], predictions[number], row, where)
        text = _cut(f"{losses[number]:8.4f}  {records[number]['id']}: {difference}", _WIDTH // 2)
        lines.append(f"{text}  {_cut(task.text_of(row, where), _WIDTH - len(text))}")
    texts = (task.text_of(rows[number].row, rows[number].where)[:_MOST_LETTERS] for number in worst[:_KEPT_ROWS])
    return Details(tuple(lines), records, ({"worst": [records[n] | {"text": text} for n, text in zip(worst, texts)]},))


def label_counts(task: Task, rows: Sequence[LocatedRow]) -> dict[str, int]:
    """How often each label occurs, the most frequent first; {} of a task without labels, or with very many.

    Args:
      task: says which labels a row has.
      rows: all of them have labels.
    """
    counts = Counter(label for row in rows for label in task.labels_in(row.row, row.where))
    return dict(counts.most_common()) if len(counts) <= MOST_LABELS else {}


def _cut(text: str, width: int) -> str:
    """A text in one line of at most `width` characters.

    Example:
      >>> _cut("a film\\nthat is good", 10)
      'a film th…'
    """
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 1]}…"
