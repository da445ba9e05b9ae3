"""The run-time half of a pipeline as one graph: records and their keys → rows of features."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxpt.data._tf import seqio, tf
from jaxpt.data.preprocessors.batched import Batch, derived
from jaxpt.data.store import Ragged
from jaxpt.data.tasks import Features, arguments, resolve
from jaxpt.errors import UserError
from jaxpt.objectives.base import Call

Step = Callable[[Batch, tf.Tensor, tf.Tensor | None], Batch]
Present = Callable[[dict[str, Ragged | np.ndarray], np.ndarray, np.ndarray | None], dict[str, np.ndarray]]


def compiled(
    calls: tuple[Call, ...],
    vocabulary: seqio.Vocabulary,
    spec: Mapping[str, tf.TensorSpec],
    features: Features,
    packed: bool = False,
) -> Present:
    """Compiles the calls.

    Args:
      calls: preprocessors, one record to one: under `batched.one_to_one`, or under `seqio.map_over_dataset`.
      vocabulary: given to a parameter named `vocabulary`.
      spec: shape and type of a record's features.
      features: {name: (shape, dtype)}: what has to come out.
      packed: rows are made of several records.

    Returns:
      (records as a store gives them, keys uint64 [records], where rows begin among the records int64 [rows + 1] or
      None) → {feature: array [rows, ...]}. What becomes of a record depends on it and its key alone.

    Raises:
      UserError: a preprocessor that does not map one to one, or cannot pack.
      ValueError: other features than declared.
    """
    steps = [_step(call, vocabulary) for call in calls]
    if packed and not any(getattr(resolve(call.name), "packs", False) for call in calls):
        raise UserError(f"data.packing: {calls[-1].name} makes a row of one record; it takes no parameter `packs`")
    ragged = {name for name, s in spec.items() if s.shape.rank == 1 and s.shape[0] is None}

    def make(rows: dict[str, Any], keys: tf.Tensor, packs: tf.Tensor) -> Batch:
        batch = {
            name: tf.RaggedTensor.from_row_lengths(*value, validate=False) if name in ragged else value
            for name, value in rows.items()
        }
        for number, step in enumerate(steps):
            batch = step(batch, derived(keys, number), packs if packed else None)
        _check(batch, features)
        return {name: batch[name] for name in features}

    def row(name: str) -> Any:
        values = tf.TensorSpec([None, *([] if name in ragged else spec[name].shape)], spec[name].dtype)
        return Ragged(values, tf.TensorSpec([None], tf.int64)) if name in ragged else values

    graph = tf.function(
        make,
        input_signature=[
            {name: row(name) for name in spec},
            tf.TensorSpec([None], tf.uint64),
            tf.TensorSpec([None], tf.int64),
        ],
        autograph=False,
    )
    graph.get_concrete_function()  # a mistake in a preprocessor shows here, not at the first step
    none = np.zeros(1, np.int64)

    def present(
        records: dict[str, Ragged | np.ndarray], keys: np.ndarray, packs: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        made = graph(records, keys, none if packs is None else packs)
        return {name: value.numpy() for name, value in made.items()}

    return present


def _step(call: Call, vocabulary: seqio.Vocabulary) -> Step:
    """A call as a function of a batch."""
    outer = resolve(call.name)
    function = getattr(outer, "batched", None)
    bound = arguments(outer, call, vocabulary)
    if function is not None:
        parameters = inspect.signature(function).parameters

        def step(batch: Batch, keys: tf.Tensor, packs: tf.Tensor | None) -> Batch:
            given = {"keys": keys, "packs": packs}
            return function(batch, **bound, **{name: x for name, x in given.items() if name in parameters})

        return step
    function = getattr(outer, "__wrapped__", None)
    if function is None:
        raise UserError(f"preprocessor {call.name!r} maps records one to one: decorate it with seqio.map_over_dataset")
    seeds = inspect.getclosurevars(outer).nonlocals.get("num_seeds")
    return _lifted(functools.partial(function, **bound), seeds)


def _lifted(function: Callable[..., dict[str, tf.Tensor]], seeds: int | None) -> Step:
    """A function of one record as one of a batch, record by record: anyone's own SeqIO preprocessor."""

    def one(arguments: tuple[dict[str, tf.Tensor], tf.Tensor]) -> dict[str, tf.Tensor]:
        record, key = arguments
        rng = tf.stack([tf.bitcast(key, tf.int64), tf.constant(0, tf.int64)])
        if seeds is None:
            return function(record)
        if seeds == 1:
            return function(record, seed=rng)
        return function(record, seeds=tf.unstack(tf.random.experimental.stateless_split(rng, seeds)))

    def step(batch: Batch, keys: tf.Tensor, packs: tf.Tensor | None) -> Batch:
        inputs = {name: tf.TensorSpec(x.shape[1:], x.dtype) for name, x in batch.items()}
        outputs = tf.function(one).get_concrete_function((inputs, tf.TensorSpec([], tf.uint64))).structured_outputs
        signature = {
            name: tf.RaggedTensorSpec([None], x.dtype, 0)
            if x.shape.rank == 1 and x.shape[0] is None
            else tf.TensorSpec(x.shape, x.dtype)
            for name, x in outputs.items()
        }
        return tf.map_fn(one, (batch, keys), fn_output_signature=signature, parallel_iterations=4)

    return step


def _check(made: Batch, features: Features) -> None:
    """Compares what the preprocessors give with what the objective declares; names the first feature that differs."""
    for name, (shape, dtype) in features.items():
        if name not in made:
            raise ValueError(f"objective.features declares {name}, its preprocessors give {', '.join(sorted(made))}")
        got = (tuple(made[name].shape[1:]), made[name].dtype.name)
        if got != (tuple(shape), dtype):
            raise ValueError(
                f"objective.features declares {name} as {dtype}{list(shape)}, "
                f"its preprocessors give {got[1]}{list(got[0])}"
            )
