"""What `jaxpt.load`'s model does when it is called, predicts or is shown: texts, ids and rows around `decode`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxpt.data.tables.rows import Row
from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.decode.embed import Layer
from jaxpt.decode.forward import Forward, forward
from jaxpt.errors import UserError, shown
from jaxpt.inference.predictor import RunPredictor
from jaxpt.models.base import compute_dtype

if TYPE_CHECKING:
    from jaxpt.inference.loaded import Loaded


def call(model: Loaded, inputs: Any, layer: Layer | None, attentions: bool) -> Forward | list[Forward]:
    """One forward pass; see `Loaded.__call__`.

    Args:
      model: the model.
      inputs: a text, or several; or ids.
      layer: whose hidden states are returned.
      attentions: also return the attention weights.

    Returns:
      What was computed of the text; of several a list.

    Raises:
      UserError: inputs of another type, no such layer, or a model without attention.
    """
    inputs = inputs.tolist() if isinstance(inputs, np.ndarray | jax.Array) else inputs
    if not isinstance(inputs, str | Sequence):
        raise UserError(f"inputs: wants a text, ids, or a list of these, got {shown(inputs)}")
    is_single = isinstance(inputs, str) or (len(inputs) > 0 and isinstance(inputs[0], int | np.integer))
    texts = [inputs] if is_single else inputs
    with model.current():
        rows = model.reader.lay(model.network, [_ids(model, text) for text in texts])
        outputs = forward(model.network, model.params, rows, layer, attentions)
    outputs = [dataclasses.replace(output, tokens=model.tokenizer.tokens(output.ids)) for output in outputs]
    return outputs[0] if is_single else outputs


def _ids(model: Loaded, text: Any) -> list[int]:
    """The ids of a text, or ids as they are."""
    if isinstance(text, str):
        return model.tokenizer.encode(text, special=True)
    ids = text.tolist() if isinstance(text, np.ndarray | jax.Array) else text
    if not isinstance(ids, Sequence) or not all(isinstance(i, int | np.integer) for i in ids):
        raise UserError(f"inputs: wants texts or lists of ids, got {shown(text)}")
    return [int(i) for i in ids]


def predict(predictor: RunPredictor, inputs: Sequence[Any]) -> list[dict[str, Any]]:
    """A fine-tuned run's answers.

    Args:
      predictor: of the run.
      inputs: for each row its text, a tuple of its columns, or a dict by column.

    Returns:
      For each row its answer.

    Raises:
      UserError: a row is not as it must be.
    """
    if isinstance(inputs, str) or not isinstance(inputs, Sequence):
        raise UserError(f"inputs: wants a list with an entry for each row, got {shown(inputs)}")
    task = predictor.config.task
    rows = [
        LocatedRow(Row(number, columns_of(task, row, f"row {number}")), f"row {number}", (0, number))
        for number, row in enumerate(inputs)
    ]
    return list(predictor(rows))


def columns_of(task: Task, row: Any, where: str) -> dict[str, Any]:
    """The columns of a row.

    Args:
      task: the run's task.
      row: a text, a tuple of columns in the task's order, or a dict by column. A text of a task on words is split.
      where: for messages.

    Raises:
      UserError: another type, or another number of columns.
    """
    if isinstance(row, Mapping):
        return dict(row)
    names = task.columns()
    values = row if isinstance(row, tuple) else (row,)
    if task.kind == "tagging":
        values = tuple(value.split() if isinstance(value, str) else value for value in values)
    if len(values) != len(names):
        kind = "text" if len(names) == 1 else f"tuple ({', '.join(names)})"
        raise UserError(f"{where}: wants a {kind} or a dict of columns, got {shown(row)}")
    return dict(zip(names, values))


def describe(model: Loaded) -> str:
    """A model in a few lines: what it is, how large, what it was trained for, and where its parameters are."""
    config, tokenizer = model.network.config, model.tokenizer
    layers = f"{config.layers} layers, " if isinstance(getattr(config, "layers", None), int) else ""
    heads = f", heads: {', '.join(model.network.heads)}" if model.network.heads else ""
    device = next(iter(jax.tree.leaves(model.params)[0].devices()))
    return "\n".join(
        (
            f"jaxpt.load({str(model.path)!r})",
            f"  model      {config.kind} ({config.family}): {layers}{config.embed_dim} wide, "
            f"{model.network.count_params():,} parameters{heads}",
            f"  objective  {model.objective.kind}",
            f"  tokenizer  {tokenizer.kind}: {tokenizer.vocabulary.size:,} ids",
            f"  computes   in {np.dtype(compute_dtype(config)).name} on {device.device_kind}",
        )
    )
