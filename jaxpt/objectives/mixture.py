"""Several tasks with a head each on one model (MT-DNN).

    batch   rows of all tasks, mixed (`data.mixture`); a row has examples of one task
    loss    Σ over the tasks of the losses of their examples, as the task's own objective has them
            / number of examples of all tasks in the batch

The tags of a sentence share the weight of one example: a task counts as much as it has examples in the stream. The
model reads all rows in the same way; what a task's own objective reads of a batch besides is under the task's name
(`sst2/labels`), with weight 0 in the rows of other tasks.
Paper: https://arxiv.org/abs/1901.11504
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Literal

import jax
import numpy as np
from pydantic import Field, ValidationError, model_validator
from pydantic.json_schema import SkipJsonSchema

from jaxpt.config import ModelConfig, ObjectiveConfig, Overrides, TaskConfig, resolve
from jaxpt.config.explain import explain
from jaxpt.config.kinds import is_unread, nearest, strictly
from jaxpt.data.calls import Vocabulary
from jaxpt.data.spec import Arrays, DataSpec, MakeRows
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import pooler
from jaxpt.models.network import Head
from jaxpt.models.output import Output
from jaxpt.objectives.base import Baseline, Batch, LossOutputs
from jaxpt.objectives.labelled import HeadObjective, Labelled

HEADS = ("classification", "question_answering", "tagging")
"""Objectives whose heads can stand side by side: a row is one text."""


class Mixture(Labelled):
    """Hyperparameters of heads of several tasks."""

    kind: Literal["mixture"] = "mixture"
    features: SkipJsonSchema[None] = Field(None, exclude=True)
    """None: all tasks read the states of one model that is trained."""
    tasks: Overrides = ()
    """Settings of a single task's head, under the task's name: `cola: {dropout: 0.05}`, `mrpc: {class_weights:
    balanced}`. They are those of the objective of the task's kind. `dropout`, `truncate` and `examples` here are of all
    tasks."""

    @model_validator(mode="after")
    def _consistent(self) -> Mixture:
        if self.task.kind != "mixture":
            raise ValueError(f"kind: mixture is for task.kind: mixture, not {self.task.kind}")
        for key, _ in self.tasks:
            if not any(key.startswith(f"{name}.") for name in self.task.task_names):
                name = key.partition(".")[0]
                raise ValueError(
                    f"tasks: {name}: task.tasks has no settings of this name{nearest(name, self.task.task_names)}"
                )
        if is_unread(self.task):
            return self
        try:
            parts = self.parts
        except UserError as error:
            raise ValueError(str(error)) from None
        for name, part in parts.items():
            for key in ("r_drop", "features", "extract", "lm_loss"):
                if getattr(part, key, None):
                    raise ValueError(f"tasks: {name}: {key} is for single tasks")
        return self

    @property
    def parts(self) -> dict[str, HeadObjective]:
        """The objective of each task, by its name."""
        return {task.name: self.for_task(task) for task in self.task.tasks}

    def for_task(self, task: TaskConfig) -> HeadObjective:
        """The objective of one task, which reads and learns its own head.

        Raises:
          UserError: a task of this kind has no head here, or a setting is wrong.
        """
        if task.objective not in HEADS:
            raise UserError(
                f"tasks: {task.name}: a task of kind {task.kind} has no head in a mixture; objective.kind: "
                "text_to_text learns any tasks together"
            )
        return _part(self, task)

    def data_spec(self, length: int) -> DataSpec:
        """Those of the first task, with the labels of all; each task has transforms of its own."""
        specs, labels, features = {}, {}, dict[str, Any]()
        for name, part in self.parts.items():
            specs[name], labels[name] = part.data_spec(length), part.label_features(length)
            features |= {key: spec for key, spec in specs[name].features.items() if key not in labels[name]}
            features |= {f"{name}/{key}": spec for key, spec in labels[name].items()}

        def wrap(name: str, make_rows: MakeRows) -> MakeRows:
            def rows(*arguments: Any) -> dict[str, np.ndarray]:
                arrays = make_rows(*arguments)
                arrays["label_weights"] = shared_weights(arrays, self.side)
                prefixed = {f"{name}/{key}" if key in labels[name] else key: x for key, x in arrays.items()}
                count = len(next(iter(prefixed.values())))
                return {
                    key: prefixed[key] if key in prefixed else np.zeros((count, *shape), dtype)
                    for key, (shape, dtype) in features.items()
                }

            return rows

        return dataclasses.replace(next(iter(specs.values())), features=features, wrap_for_mixture=wrap)

    def heads(self, model: ModelConfig) -> dict[str, Head]:
        heads: dict[str, Head] = {}
        for part in self.parts.values():
            heads |= part.heads(model)
        if "pooler" in heads:  # shared by all tasks, as is its dropout
            rate = getattr(model, "dropout", 0.0) if self.dropout is None else self.dropout
            heads |= pooler.declare(model, heads["pooler"].module.options, rate)
        return heads

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        parts = self.parts.items()
        return {self.kind: sum(part.weights(of_part(batch, name))[part.kind] for name, part in parts)}

    def output(self, model: Bound, batch: Batch) -> Output:
        """As each task's own objective has it: all read the same states."""
        first = next(iter(self.parts.values()))
        return first.output(model, batch)

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        total, metrics = 0.0, dict[str, Any]()
        for name, part in self.parts.items():
            task_batch = of_part(batch, name)
            sums, task_metrics = part.loss_from_hidden(model, hidden, task_batch)
            total += sums[part.kind]
            if "eval_mask" in batch:  # evaluation takes the tasks one after the other
                metrics |= {key: (x + metrics.get(key, (0, 0))[0], w + metrics.get(key, (0, 0))[1])
                            for key, (x, w) in task_metrics.items()}  # fmt: skip
            else:
                task_metrics = {"loss": (sums[part.kind], part.weights(task_batch)[part.kind]), **task_metrics}
                metrics |= {f"{name}/{key}": pair for key, pair in task_metrics.items()}
        return {self.kind: total}, jax.lax.stop_gradient(metrics)

    @property
    def baseline(self) -> Baseline:
        """The best constant prediction of each task."""

        def eval_mask(batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
            weights = [batch[f"{name}/label_weights"] for name in self.parts]
            return np.concatenate([x.reshape(len(x), -1) for x in weights], axis=1)

        units = {part.baseline.unit: None for part in self.parts.values()}  # in their order
        return Baseline("constant", "labels", eval_mask, self._constant_loss, unit=" and ".join(units))

    def _constant_loss(self, validation: Iterable[Arrays]) -> float:
        batches, total, count = list(validation), 0.0, 0.0
        for name, part in self.parts.items():
            task_batches = [of_part(batch, name) for batch in batches]
            if weight := sum(float(batch["eval_mask"].sum()) for batch in task_batches):
                total += part.baseline.loss([x for x in task_batches if x["eval_mask"].any()]) * weight
            count += weight
        return total / count

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        self.check_settings(model, length)
        self.check_tasks(model, length, vocabulary)

    def check_settings(self, model: ModelConfig, length: int) -> None:
        self.check_settings_of_tasks(model, length)
        stacks = {name: model.task_head(part.task.head).stack for name, part in self.parts.items()}
        if len(set(stacks.values())) > 1:
            task_stacks = ", ".join(f"{name} the {stack}'s" for name, stack in stacks.items())
            raise UserError(f"task.tasks: heads of model.kind: {model.kind} read different states: {task_stacks}; "
                            "train them in runs of their own")  # fmt: skip


@functools.lru_cache(256)
def _part(mixture: Mixture, task: TaskConfig) -> HeadObjective:
    """`for_task`, made once: losses and batches ask for it again and again."""
    cls = resolve(task.objective, "jaxpt.objectives", ObjectiveConfig)
    fields = {name: getattr(mixture, name) for name in ("dropout", "truncate", "examples") if name in cls.model_fields}
    prefix = f"{task.name}."
    fields |= {key.removeprefix(prefix): setting for key, setting in mixture.tasks if key.startswith(prefix)}
    plain = {"task": task.model_dump(mode="json"), "text_layout": mixture.text_layout, "part": task.name, **fields}
    try:
        return strictly(cls, plain)
    except ValidationError as error:
        raise UserError(f"tasks: {task.name}: {explain(error, plain, cls)[1]}") from None


def of_part(batch: Any, name: str) -> Any:
    """The batch as the objective of task `name` reads it."""
    task_arrays = {key.removeprefix(f"{name}/"): x for key, x in batch.items() if key.startswith(f"{name}/")}
    shared = {key: x for key, x in batch.items() if "/" not in key and key != "eval_mask"}
    return {**shared, **task_arrays, **({"eval_mask": task_arrays["label_weights"]} if "eval_mask" in batch else {})}


def shared_weights(batch: Arrays, side: str) -> np.ndarray:
    """Weights of labels such that those of one example have the sum 1: float32 [B, N].

    Args:
      batch: features of one task; each example is a segment.
      side: the part of the model that reads the texts.

    Example:
      >>> batch = {"encoder_segment_ids": np.array([[1, 1, 2]]), "label_positions": np.array([[0, 1, 2, 0]])}
      >>> shared_weights(batch | {"label_weights": np.array([[1.0, 1.0, 1.0, 0.0]])}, "encoder").tolist()
      [[0.5, 0.5, 1.0, 0.0]]
    """
    weights, positions = batch["label_weights"], batch["label_positions"]
    if weights.shape != positions.shape or not weights.size:
        return weights  # one label of each example
    segments = np.take_along_axis(batch[f"{side}_segment_ids"], positions, axis=1)
    example = segments + np.arange(len(segments))[:, None] * (segments.max() + 1)
    counts = np.bincount(example.ravel(), weights.ravel() > 0)[example]
    return (weights / np.maximum(counts, 1)).astype(np.float32)
