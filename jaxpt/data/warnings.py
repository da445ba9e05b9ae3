"""Warnings before the first step about data from which a run would learn nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxpt.config import ObjectiveConfig
from jaxpt.data.spec import DataSpec
from jaxpt.data.stream.loader import Stream
from jaxpt.errors import UserError

_LOOKED_AT = 256  # rows of each task, from all that is made of it
_FEWEST = 32  # of fewer texts or labels nothing is said
_UNTAUGHT = 0.5  # share of texts
_ONE_CLASS = 0.9  # share of labels
_ALONE = 0.99  # rows per record


def warnings(objective: ObjectiveConfig, spec: DataSpec, stream: Stream, size: int) -> list[str]:
    """Looks at some rows of each task.

    Args:
      objective: of the run.
      spec: what it says of its data.
      stream: of the training split.
      size: of the vocabulary.

    Returns:
      Lines: what is wrong, and what to do about it.

    Raises:
      UserError: tokens that the vocabulary does not have, which a model would take for others in silence; no target.
    """
    lines: list[str] = []
    for task in stream.tasks:
        batch = Stream([task], stream.features, _LOOKED_AT).sample(_LOOKED_AT)
        check_ids(batch, size)
        check_weights(batch, task.name)
        of_task = of_batch(spec, batch)
        if task.packs is not None:
            of_task += of_packing(objective, len(task.store), len(task))
        lines += [f"warning: {task.name}: {line}" if len(stream.tasks) > 1 else f"warning: {line}" for line in of_task]
    return lines


def check_ids(batch: Mapping[str, np.ndarray], size: int) -> None:
    """Raises UserError where a feature `…_tokens` has an id that is none of a vocabulary of `size`."""
    for name, ids in batch.items():
        if name.endswith("_tokens") and (wrong := ids[(ids < 0) | (ids >= size)]).size:
            raise UserError(f"{name}: the preprocessors give the id {wrong[0]}, the vocabulary has {size}")


def check_weights(batch: Mapping[str, np.ndarray], name: str) -> None:
    """Raises UserError where all features `…_weights` of a batch are 0: the loss would be 0 at every step.

    Args:
      batch: rows of a task.
      name: of the task.
    """
    weights = {feature: values for feature, values in batch.items() if feature.endswith("_weights")}
    if not weights or any(values.any() for values in weights.values()):
        return
    tokens = [values for feature, values in batch.items() if feature.endswith("_input_tokens")]
    reason = "" if any(ids.any() for ids in tokens) else "the preprocessors make empty records: "
    raise UserError(
        f"data: {name}/train: {reason}{' and '.join(weights)} are 0 in all {len(next(iter(weights.values()))):,} rows "
        "looked at, so there is nothing to train on"
    )


def of_batch(spec: DataSpec, batch: Mapping[str, np.ndarray]) -> list[str]:
    """What is wrong with most texts of a batch, and labels of which nearly all are one.

    Args:
      spec: says what may be wrong with a text (`untrainable_examples`).
      batch: its features; `…_labels` with `…_weights` are those of a classification.

    Returns:
      A line for each.
    """
    lines = []
    for problem, is_so in spec.untrainable_examples(batch).items():
        if len(is_so) >= _FEWEST and is_so.mean() > _UNTAUGHT:
            lines.append(f"{is_so.mean():.1%} of the texts looked at teach nothing: {problem}")
    for name in (feature.removesuffix("_labels") for feature in batch if feature.endswith("_labels")):
        labels = batch[f"{name}_labels"][batch[f"{name}_weights"] > 0]
        if len(labels) < _FEWEST:
            continue
        values, counts = np.unique(labels, return_counts=True)
        if (share := counts.max() / len(labels)) > _ONE_CLASS:
            lines.append(
                f"{share:.1%} of the labels of {name} looked at are {values[counts.argmax()]}: a constant is as good "
                "as a model; documents of one sentence, and sentences as long as data.length, give such pairs: let "
                "documents have several (in text files data.documents=blank_line parts them by blank lines), raise "
                f"data.length, or set objective.{name}=false"
            )
    return lines


def of_packing(objective: ObjectiveConfig, records: int, rows: int) -> list[str]:
    """Where no row, or hardly one, holds two records.

    Args:
      objective: of the run.
      records: to be packed.
      rows: that hold them.

    Returns:
      A line, or none.
    """
    if rows < _ALONE * records:
        return []
    reason = "each record fills its row; leave it out"
    if getattr(objective, "join_documents", False):
        reason = "they are cut from documents laid end to end and are full; set objective.join_documents=false"
    return [f"data.packing has no effect: {records:,} records in {rows:,} rows: {reason}"]
