"""flax_model.msgpack of `transformers` up to version 4: Flax's names beside Hugging Face's config.json.

A parameter has the name of PyTorch's with another last word: a kernel is PyTorch's weight with its axes reversed, and
the scale of a norm and an embedding are weights. Written by `save_pretrained` of the Flax classes
(transformers 4.57, modeling_flax_utils.py and modeling_flax_pytorch_utils.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from jaxpt.errors import UserError
from jaxpt.hf import files
from jaxpt.hf.formats import msgpack_files
from jaxpt.hf.formats.arrays import Array, Checkpoint, Tensors, flat

NAME = "flax_model.msgpack"
INDEX = f"{NAME}.index.json"
_LAST = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def reads(path: Path) -> bool:
    """True if a directory has config.json and weights of Flax, and none of PyTorch."""
    theirs = [name for stem in files.STEMS for name in (stem, f"{stem}.index.json")]
    has = [os.path.lexists(path / name) for name in theirs]
    return (path / "config.json").is_file() and not any(has) and any((path / x).is_file() for x in (NAME, INDEX))


def open(path: Path) -> Checkpoint:
    """Opens a directory.

    Raises:
      UserError: a file is missing, damaged, or has something else than arrays.
    """
    tensors: dict[str, Array] = {}
    one = path / NAME
    for file in [one] if one.is_file() else [path / name for name in files.shards(path / INDEX, ".msgpack")]:
        for name, x in flat(msgpack_files.read(file), lambda node: False):
            if not isinstance(x, Array):
                raise UserError(f"{file}: {name} is no array; expected the parameters of a model of transformers")
            *modules, last = name.split("/")
            renamed = ".".join((*modules, _LAST.get(last, last)))
            if renamed in tensors:
                raise UserError(f"{file}: contains {name}, which another file of {path} contains too")
            tensors[renamed] = x.transposed() if last == "kernel" else x
    return Checkpoint(Tensors(tensors))
