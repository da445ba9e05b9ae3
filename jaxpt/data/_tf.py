"""TensorFlow and SeqIO as jaxpt imports them: on the CPU alone, and silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxpt.data.tables.quiet_tensorflow import TRACING, quietly, tensorflow

tf = tensorflow()
with quietly():
    import seqio
    from absl import logging

    logging.set_verbosity(logging.ERROR)  # SeqIO's warnings are about how its own trainer shuffles

__all__ = ["TRACING", "from_generator", "numpy_call", "seqio", "tf"]


def from_generator(
    elements: Callable[[], Iterator[Any]], signature: Any, fail: Callable[[Exception], None]
) -> tf.data.Dataset:
    """`tf.data.Dataset.from_generator` without TensorFlow's page of traceback where a generator raises.

    Args:
      elements: makes the generator.
      signature: of an element, as TensorFlow wants it.
      fail: is given what the generator raised; the dataset ends there. Who reads it has to ask for the failure then.

    Returns:
      The dataset.
    """

    def quiet() -> Iterator[Any]:
        try:
            yield from elements()
        except Exception as error:
            fail(error)

    return tf.data.Dataset.from_generator(quiet, output_signature=signature)


def numpy_call(function: Callable[..., Any], inputs: Sequence[tf.Tensor], types: Sequence[tf.TensorSpec]) -> list[Any]:
    """`tf.numpy_function` with the shapes of what it gives.

    Args:
      function: of NumPy arrays; a function of its inputs alone, where there are any.
      inputs: its arguments.
      types: shapes and types of what it returns.
    """
    outputs = tf.nest.flatten(tf.numpy_function(function, inputs, [spec.dtype for spec in types], stateful=not inputs))
    return [tf.ensure_shape(x, spec.shape) for x, spec in zip(outputs, types)]
