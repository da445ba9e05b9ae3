"""Checkpoints of other programs as Hugging Face's tensors: names and shapes at once, each array when it is asked for.

flax     flax_model.msgpack of transformers   t5x        T5X: T5 1.0, 1.1, LM-adapted, mT5
maxtext  Llama of MaxText                     arrays     what they share: arrays that are not yet read
msgpack_files  files of flax.serialization    stores     arrays of TensorStore and Orbax

Each format maps its names to Hugging Face's, so that the tables of `jaxpt.hf.families` do the rest.
"""

from __future__ import annotations

from pathlib import Path

from jaxpt.hf.formats import flax, maxtext, t5x
from jaxpt.hf.formats.arrays import Checkpoint

FORMATS = (flax, t5x, maxtext)
"""Modules with `reads(path)` and `open(path)`."""


def is_foreign(path: Path) -> bool:
    """True for a directory of T5X or MaxText, which transformers does not read."""
    return any(form.reads(path) for form in FORMATS if form is not flax)


def open(path: Path) -> Checkpoint | None:
    """Opens a directory in one of the forms; None for any other.

    Raises:
      UserError: it is damaged, half-written, or has another model.
    """
    form = next((form for form in FORMATS if form.reads(path)), None)
    return None if form is None else form.open(path)
