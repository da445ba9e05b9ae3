"""The metrics of a registered SeqIO Task, computed by SeqIO's own Evaluator on targets that it postprocesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxpt.config import DataConfig
from jaxpt.data._tf import seqio
from jaxpt.data.sources.foreign import find_task
from jaxpt.data.tables.tfds import first_line
from jaxpt.errors import UserError

_Outputs = seqio.metrics.ModelOutputType


class Example(NamedTuple):
    """What the Task gives."""

    inputs: list[int]
    targets: list[int]


class _AsTheyAre(seqio.PassThroughFeatureConverter):
    """Leaves examples as the Task makes them."""

    TASK_FEATURES: Mapping[str, Any] = {}
    pack = False


class TaskMetrics:
    """A Task's metrics on one of its splits.

    Attributes:
      examples: those of the split, in SeqIO's order.
      wants_predictions: some metric compares generated text.
      wants_scores: some metric looks at the log-likelihood of the targets.
    """

    def __init__(
        self, data: DataConfig, targets_length: int, split: str | None = None, examples: int | None = None
    ) -> None:
        """Reads the split.

        Args:
          data: `modules`, `task`, `task_cache`, and `length` of the inputs.
          targets_length: most tokens of the targets that the model is given; metrics see the whole text.
          split: the Task's name of it; by default the one that is held out from training.
          examples: only the first so many.

        Raises:
          UserError: the Task has no such split, no metrics, or metrics that want more than text and scores.
        """
        task, held = find_task(data)
        split = split or held
        if split is None or split not in task.splits:
            raise UserError(
                f"evals: seqio_task: data.task: {data.task} has no {split or 'validation'} split; it has "
                f"{', '.join(task.splits)}"
            )
        output_types = {metric.model_output_type for metric in task.metric_objs}
        if not output_types:
            raise UserError(f"evals: seqio_task: data.task: {data.task} has no metric_fns; remove the evaluator")
        if other := output_types - {_Outputs.PREDICTION, _Outputs.SCORE}:
            raise UserError(
                f"evals: seqio_task: data.task: {data.task} has a metric on {other.pop().name.lower()}; those on "
                "(targets, predictions) and (targets, scores) are computed"
            )
        self.wants_predictions, self.wants_scores = _Outputs.PREDICTION in output_types, _Outputs.SCORE in output_types
        self._task = task
        try:
            self._evaluator = seqio.Evaluator(
                task.name,
                _AsTheyAre(),
                eval_split=split,
                use_cached=data.task_cache is not None,
                sequence_length={"inputs": data.length, "targets": targets_length},
                num_examples=examples,
                async_compute_metrics=False,
            )
        except Exception as error:  # whatever anyone's preprocessors raise
            raise UserError(f"data.task: {data.task}: its preprocessors fail: {first_line(error)}") from None
        self.examples = [
            Example(ex["inputs"].tolist(), ex["targets"].tolist())
            for ex in self._evaluator.cached_task_datasets[task.name].as_numpy_iterator()
        ]
        if not self.examples:
            raise UserError(f"evals: seqio_task: data.task: {data.task} gives no examples for {split}")

    def measure(self, predictions: Sequence[Sequence[int]], scores: Sequence[float], eos: int) -> dict[str, float]:
        """The Task's metrics.

        Args:
          predictions: ids of each example, in their order; not looked at unless `wants_predictions`.
          scores: log-likelihood of each example's targets; not looked at unless `wants_scores`.
          eos: fills shorter predictions up; SeqIO decodes to the first one.

        Returns:
          {metric: value}; values that are no numbers are left out.

        Raises:
          UserError: a metric fails.
        """
        width = max(map(len, predictions), default=0) + 1
        filled = [np.array([*ids, *[eos] * (width - len(ids))], np.int32) for ids in predictions]
        try:
            all_metrics, _ = self._evaluator.evaluate(
                compute_metrics=True,
                predict_fn=lambda dataset: list(enumerate(filled)),
                score_fn=lambda dataset: list(enumerate(scores)),
            )
        except Exception as error:  # whatever anyone's metrics raise
            raise UserError(f"data.task: {self._task.name}: its metrics fail: {first_line(error)}") from None
        values = {name: getattr(x, "value", x) for name, x in all_metrics.result()[self._task.name].items()}
        return {name: float(x) for name, x in values.items() if np.ndim(x) == 0 and np.issubdtype(type(x), np.number)}
