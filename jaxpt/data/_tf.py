"""TensorFlow and SeqIO as jaxpt imports them: on the CPU alone, and silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jaxpt.data.tables.quiet_tensorflow import quietly, tensorflow

tf = tensorflow()
with quietly():
    import seqio
    from absl import logging

    logging.set_verbosity(logging.ERROR)  # SeqIO's warnings are about how its own trainer shuffles

__all__ = ["from_generator", "seqio", "tf"]


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
