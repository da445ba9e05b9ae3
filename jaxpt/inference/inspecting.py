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
from jaxpt.inference.prediction_files import to_likeliest
from jaxpt.inference.predictor import RunPredictor
from jaxpt.models.base import compute_dtype

if TYPE_CHECKING:
    from jaxpt.inference.loaded import Loaded


def call(
    model: Loaded, inputs: Any, targets: Any, decoder_inputs: Any, layer: Layer | None, attentions: bool
) -> Forward | list[Forward]:
    """One forward pass; see `Loaded.__call__`.

    Args:
      model: the model.
      inputs: a text, or several; or ids.
      targets: of an encoder-decoder, for each input a text or ids.
      decoder_inputs: of an encoder-decoder, in place of `targets`: for each input the ids that its decoder reads.
      layer: whose hidden states are returned.
      attentions: also return the attention weights.

    Returns:
      What was computed of the text; of several a list.

    Raises:
      UserError: inputs of another type or too long, no such layer, or a model without attention.
    """
    inputs = inputs.tolist() if isinstance(inputs, np.ndarray | jax.Array) else inputs
    if not isinstance(inputs, str | Sequence):
        raise UserError(f"inputs: expected a text, ids, or a list of these, got {shown(inputs)}")
    is_single = isinstance(inputs, str) or (len(inputs) > 0 and isinstance(inputs[0], int | np.integer))
    texts = [inputs] if is_single else inputs
    ids = [_ids(model, text, f"inputs[{number}]") for number, text in enumerate(texts)]
    decoder_rows = _decoder_rows(model, len(texts), is_single, targets, decoder_inputs)
    with model.current():
        rows = model.reader.lay(model.network, ids)
        if any(rows.is_cut):
            number = rows.is_cut.index(True)
            raise _too_long(model, len(ids[number]), f"inputs[{number}]")
        outputs = forward(model.network, model.params, rows, layer, attentions, decoder_rows)
    outputs = [_with_tokens(model, output) for output in outputs]
    return outputs[0] if is_single else outputs


def _with_tokens(model: Loaded, output: Forward) -> Forward:
    """A result with the names of its tokens."""
    decoder = output.decoder
    if decoder is not None:
        decoder = dataclasses.replace(decoder, tokens=model.tokenizer.tokens(decoder.ids))
    return dataclasses.replace(output, tokens=model.tokenizer.tokens(output.ids), decoder=decoder)


def _decoder_rows(
    model: Loaded, count: int, is_single: bool, targets: Any, decoder_inputs: Any
) -> Sequence[Sequence[int]]:
    """What the decoder of an encoder-decoder reads for each input: by default its start tokens alone."""
    name, texts = ("targets", targets) if decoder_inputs is None else ("decoder_inputs", decoder_inputs)
    if model.family != "encoder_decoder":
        if texts is not None:
            raise UserError(f"{name}: are for encoder-decoders; {model.network.config.kind} has one stack")
        return ()
    if targets is not None and decoder_inputs is not None:
        raise UserError("targets and decoder_inputs: give one of them; targets follow the decoder's start tokens")
    texts = texts.tolist() if isinstance(texts, np.ndarray | jax.Array) else texts
    each = [()] * count if texts is None else [texts] if is_single else texts
    if isinstance(each, str) or not isinstance(each, Sequence) or len(each) != count:
        raise UserError(f"{name}: expected one for each of {count} inputs, got {shown(each)}")
    start = model.reader.decoder_start() if decoder_inputs is None else []
    if targets is not None:  # a file names the start token alone; after it `generate` has BART write BOS
        start = [*start[:1], *model.reader.format().decoder_start[1:]]
    rows = [
        [*start, *(_ids(model, text, f"{name}[{number}]") if texts is not None else ())]
        for number, text in enumerate(each)
    ]
    limit = model.network.config.position_limit
    for number, row in enumerate(rows):
        if limit is not None and len(row) > limit:
            raise _too_long(model, len(row), f"{name}[{number}]")
    return rows


def _too_long(model: Loaded, length: int, where: str) -> UserError:
    limit = model.network.config.position_limit
    return UserError(f"{where}: {length} tokens, the model's length is {limit} with its special tokens; cut the text")


def _ids(model: Loaded, text: Any, where: str) -> list[int]:
    """The ids of a text, or ids as they are."""
    if isinstance(text, str):
        return model.tokenizer.encode(text, special=True)
    ids = text.tolist() if isinstance(text, np.ndarray | jax.Array) else text
    if not isinstance(ids, Sequence) or not all(isinstance(i, int | np.integer) for i in ids):
        raise UserError(f"{where}: expected a text or a list of ids, got {shown(text)}")
    if not len(ids):
        raise UserError(f"{where}: is empty, expected at least one id")
    return [int(i) for i in ids]


def predict(predictor: RunPredictor, inputs: Sequence[Any], top_k: int | None = None) -> list[dict[str, Any]]:
    """A fine-tuned run's answers.

    Args:
      predictor: of the run.
      inputs: for each row its text, a tuple of its columns, or a dict by column.
      top_k: the likeliest labels whose probabilities are returned; None: all.

    Returns:
      For each row its answer.

    Raises:
      UserError: a row is not as it must be, or `top_k` is no positive number.
    """
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise UserError(f"top_k: expected a number of labels from 1 on, or None for all, got {shown(top_k)}")
    if isinstance(inputs, str) or not isinstance(inputs, Sequence):
        raise UserError(f"inputs: expected a list with an entry for each row, got {shown(inputs)}")
    if not inputs:
        raise UserError("inputs: has no texts, expected at least one row")
    task = predictor.config.task
    rows = [
        LocatedRow(Row(number, columns_of(task, row, f"row {number}")), f"row {number}", (0, number))
        for number, row in enumerate(inputs)
    ]
    return [to_likeliest(answer, top_k) for answer in predictor(rows)]


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
        raise UserError(f"{where}: expected a {kind} or a dict of columns, got {shown(row)}")
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
