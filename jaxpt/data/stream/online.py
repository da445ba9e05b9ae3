"""The online transforms of a pipeline: records and their keys → rows of features."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxpt.data._tf import TRACING, seqio, tf
from jaxpt.data.calls import Call
from jaxpt.data.layout import Ragged
from jaxpt.data.preprocessors.batched import Batch, Records, fold_in
from jaxpt.data.seqio_tasks import arguments, lost_feature, resolve
from jaxpt.data.spec import Features
from jaxpt.errors import UserError, shown

Step = Callable[[Batch, tf.Tensor], Batch]
Counts = Callable[[], np.ndarray]
Online = Callable[[Records, np.ndarray, np.ndarray | None], dict[str, np.ndarray]]


def compile_online(
    calls: tuple[Call, ...],
    vocabulary: seqio.Vocabulary,
    spec: Mapping[str, tf.TensorSpec],
    features: Features,
    packed: bool = False,
    token_counts: Counts | None = None,
) -> Online:
    """Compiles the calls: those that draw as one graph, the last one, where it lays out rows, as NumPy.

    Args:
      calls: preprocessors, one record to one: under `batched.one_to_one` or `batched.one_record`; the last
        may be under `batched.makes_rows`.
      vocabulary: given to a parameter named `vocabulary`.
      spec: shape and type of a record's features.
      features: {name: (shape, dtype)}: what has to come out.
      packed: rows are made of several records.
      token_counts: given to a parameter of this name: how often ids are in the training records.

    Returns:
      (records as a store gives them, keys uint64 [records], where rows begin among the records int64 [rows + 1] or
      None) → {feature: array [rows, ...]}. What becomes of a record depends on it and its key alone.

    Raises:
      UserError: a preprocessor that does not map one to one, or cannot pack; other features than declared; or
        one that draws numbers that a resume would not draw again.
    """
    last, all_calls = resolve(calls[-1].name), calls
    rows = getattr(last, "rows", None)
    if rows is None and packed:
        raise UserError(f"data.packing: {calls[-1].name} makes a row of one record; it takes no parameter `packs`")
    if rows is not None:
        rows = functools.partial(rows, **arguments(last, calls[-1], vocabulary, token_counts=token_counts))
        calls = calls[:-1]
    signature = {
        name: Ragged(tf.TensorSpec([None], s.dtype), tf.TensorSpec([None], tf.int64))
        if s.shape.as_list() == [None]
        else tf.TensorSpec([None, *s.shape], s.dtype)
        for name, s in spec.items()
    }
    drawn = _graph(calls, vocabulary, signature, token_counts) if calls else lambda records, keys: records

    def online(records: Records, keys: np.ndarray, packs: np.ndarray | None) -> dict[str, np.ndarray]:
        batch = drawn(records, keys)
        outputs = batch if rows is None else rows(batch, packs=packs if packed else None)
        num_rows = len(keys) if packs is None or not packed else len(packs) - 1
        for name in features:
            if len(outputs[name]) != num_rows:
                names = ", ".join(call.name for call in all_calls)
                raise UserError(f"preprocessor {names}: gives {len(outputs[name])} rows of {name} for {num_rows}")
        return {name: outputs[name] for name in features}

    # A mistake in a preprocessor shows here, not at the first step.
    none = tf.nest.map_structure(lambda s: np.zeros((0, *s.shape[1:]), s.dtype.as_numpy_dtype), signature)
    batch = drawn(none, np.zeros(0, np.uint64))
    if rows is not None:
        with lost_feature(all_calls[-1], batch):
            batch = rows(batch, packs=np.zeros(1, np.int64) if packed else None)
    _check(batch, features)
    return online


def _graph(
    calls: tuple[Call, ...], vocabulary: seqio.Vocabulary, signature: dict[str, Any], token_counts: Counts | None
) -> Callable[[Records, np.ndarray], Records]:
    """Calls as one graph: (records, keys) → records."""
    steps = [_step(call, vocabulary, token_counts) for call in calls]

    def make(records: dict[str, Any], keys: tf.Tensor) -> dict[str, Any]:
        batch = {
            name: tf.RaggedTensor.from_row_lengths(*x, validate=False) if isinstance(x, Ragged) else x
            for name, x in records.items()
        }
        for number, (call, step) in enumerate(zip(calls, steps)):
            with lost_feature(call, batch):
                batch = step(batch, fold_in(keys, number))
        return {
            name: Ragged(x.values, x.row_lengths()) if isinstance(x, tf.RaggedTensor) else x
            for name, x in batch.items()
        }

    graph = tf.function(make, input_signature=[signature, tf.TensorSpec([None], tf.uint64)], autograph=False)
    with TRACING:
        _check_draws(graph.get_concrete_function().graph.as_graph_def(), calls)
    return lambda records, keys: tf.nest.map_structure(lambda x: x.numpy(), graph(records, keys))


def _check_draws(graph: Any, calls: tuple[Call, ...]) -> None:
    """Raises UserError for a random number that is not a function of the example's seed."""
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    drawn = next((node.op for node in nodes if node.op in _UNSEEDED), None)
    if drawn is not None:
        names = ", ".join(call.name for call in calls)
        raise UserError(
            f"preprocessor {names}: {drawn} draws other numbers in every run; take a `seed` (@one_record(seeds=1)) and "
            "draw with tf.random.stateless_uniform or the like"
        )


_UNSEEDED = {
    "RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal",
    "RandomShuffle", "Multinomial", "RandomGamma", "RandomPoissonV2", "StatefulStandardNormalV2", "StatefulUniform",
}  # fmt: skip
"""TensorFlow's operations whose numbers depend on what was drawn before."""


def _step(call: Call, vocabulary: seqio.Vocabulary, token_counts: Counts | None = None) -> Step:
    """A call as a function of a batch."""
    outer = resolve(call.name)
    function = getattr(outer, "batched", None)
    bound = arguments(outer, call, vocabulary, token_counts=token_counts)
    if function is not None:
        keyed = "keys" in inspect.signature(function).parameters
        return lambda batch, keys: function(batch, **bound, **({"keys": keys} if keyed else {}))
    function = getattr(outer, "record", None)
    if function is None:
        raise UserError(
            f"preprocessor {call.name!r} has to map records one to one, and to say so: decorate it with "
            "@one_record(), or with @one_record(seeds=1) where it takes a `seed`, of jaxpt.data.preprocessors.batched, "
            "in the place of seqio.map_over_dataset"
        )
    return _lifted(functools.partial(function, **bound), outer.seeds)


def _lifted(function: Callable[..., dict[str, tf.Tensor]], seeds: int | None) -> Step:
    """A function of one record as one of a batch, record by record: anyone's own SeqIO preprocessor."""

    def apply(arguments: tuple[dict[str, tf.Tensor], tf.Tensor]) -> dict[str, tf.Tensor]:
        record, key = arguments
        rng = tf.stack([tf.bitcast(key, tf.int64), tf.constant(0, tf.int64)])
        if seeds is None:
            return function(record)
        if seeds == 1:
            return function(record, seed=rng)
        return function(record, seeds=tf.unstack(tf.random.experimental.stateless_split(rng, seeds)))

    def step(batch: Batch, keys: tf.Tensor) -> Batch:
        inputs = {name: tf.TensorSpec(x.shape[1:], x.dtype) for name, x in batch.items()}
        outputs = tf.function(apply).get_concrete_function((inputs, tf.TensorSpec([], tf.uint64))).structured_outputs
        signature = {
            name: tf.RaggedTensorSpec([None], x.dtype, 0)
            if x.shape.rank == 1 and x.shape[0] is None
            else tf.TensorSpec(x.shape, x.dtype)
            for name, x in outputs.items()
        }
        return tf.map_fn(apply, (batch, keys), fn_output_signature=signature, parallel_iterations=4)

    return step


def _check(records: Records, features: Features) -> None:
    """Compares what the preprocessors give with what the objective declares; names the first feature that differs."""
    if not isinstance(features, Mapping):
        raise UserError(
            f"the features of objective.data_spec must be {{name: (shape, dtype)}}, they are {shown(features)}"
        )
    for name, declared in features.items():
        if not isinstance(declared, tuple) or len(declared) != 2 or not isinstance(declared[0], Sequence):
            raise UserError(
                f'the features of objective.data_spec must declare {name} as (shape, "int32" or "float32"), such as '
                f'((128,), "int32"); it is {shown(declared)}'
            )
        shape, dtype = declared
        if name not in records:
            raise UserError(f"objective.data_spec declares {name}, its preprocessors give {', '.join(sorted(records))}")
        x = records[name]
        got = ((None,), x.values.dtype.name) if isinstance(x, Ragged) else (x.shape[1:], x.dtype.name)
        if got != (tuple(shape), dtype):
            raise UserError(
                f"objective.data_spec declares {name} as {dtype}{list(shape)}, "
                f"its preprocessors give {got[1]}{list(got[0])}"
            )
