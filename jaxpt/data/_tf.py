"""TensorFlow and SeqIO as jaxpt imports them: on the CPU alone, and silent.

TensorFlow prepares data. It must take neither an accelerator nor its memory, and has nothing to say to the user.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """TensorFlow's C++ side writes before any of its log settings is read; only the descriptor itself silences it."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # oneDNN prints that it cannot do integers: we have nothing else
with _no_stderr():
    import seqio
    import tensorflow as tf
    from absl import logging

    for _kind in ("GPU", "TPU"):
        tf.config.set_visible_devices([], _kind)
    logging.set_verbosity(logging.ERROR)  # SeqIO's warnings are about how its own trainer shuffles

__all__ = ["seqio", "tf"]
