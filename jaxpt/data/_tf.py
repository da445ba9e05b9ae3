"""TensorFlow and SeqIO as jaxpt imports them: on the CPU alone, and silent."""

from __future__ import annotations

from jaxpt.tables.quiet_tensorflow import quietly, tensorflow

tf = tensorflow()
with quietly():
    import seqio
    from absl import logging

    logging.set_verbosity(logging.ERROR)  # SeqIO's warnings are about how its own trainer shuffles

__all__ = ["seqio", "tf"]
