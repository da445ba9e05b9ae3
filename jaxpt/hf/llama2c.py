"""Checkpoints of llama2.c: a header of seven integers, then float32 tensors.

Format: https://github.com/karpathy/llama2.c (export.py, version 0)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxpt.errors import UserError
from jaxpt.hf import files, mapping
from jaxpt.models import stored
from jaxpt.models.llama import LlamaConfig
from jaxpt.models.network import Network
from jaxpt.runtime.disk import check_file

BLOCK = "decoder/segment_0/block_0"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An open file; tensors are read lazily."""

    network: Network
    tensors: dict[str, np.memmap]
    """{jaxpt path: [layers,] out, in}"""

    @property
    def found(self) -> mapping.Found:
        """Nothing is missing or unexpected: the format has no names."""
        return mapping.Found({}, (), (), ())

    def dtypes(self) -> dict[str, np.dtype]:
        """{jaxpt path: float32}."""
        return dict.fromkeys(self.tensors, np.dtype(np.float32))

    def pieces(self) -> Iterator[stored.Piece]:
        """(jaxpt path, layer or None, array in the storage shape), one at a time."""
        expected = stored.stored_params(self.network)
        for path, tensor in self.tensors.items():
            layers: list[int | None] = list(range(len(tensor))) if path.startswith(f"model/{BLOCK}") else [None]
            for layer in layers:
                x = stored.finite(path, np.array(tensor if layer is None else tensor[layer]))
                if path.endswith(("query/kernel", "key/kernel")):
                    x = _halves(x, self.network.config.width)
                x = x.T if path.endswith("/kernel") else x
                shape = expected[path].shape[layer is not None :]
                yield path, layer, np.pad(x, [(0, s - n) for s, n in zip(shape, x.shape, strict=True)])


def open_file(path: str | Path) -> Checkpoint:
    """Reads the header and maps the tensors.

    Args:
      path: a `.bin` of llama2.c, version 0.

    Returns:
      The open file.

    Raises:
      UserError: the file has another format.
    """
    path = Path(path)
    if words := files.describe_foreign(path):
        raise UserError(f"{path}: {words}")
    header = np.fromfile(check_file(path), np.int32, 7)
    wrong = UserError(f"{path}: not a checkpoint of llama2.c, version 0 (a header of 7 integers, then float32 weights)")
    if len(header) < 7:
        raise wrong
    dim, mlp_dim, layers, heads, kv_heads, vocab, length = map(int, header)
    if min(dim, mlp_dim, layers, heads, kv_heads, abs(vocab), length) < 1 or dim % heads or heads % kv_heads:
        raise wrong
    tied, vocab, width = vocab > 0, abs(vocab), dim // heads
    shapes = {
        "token_embed/table": (vocab, dim),
        f"{BLOCK}/attention_norm/scale": (layers, dim),
        f"{BLOCK}/attention/query/kernel": (layers, dim, dim),
        f"{BLOCK}/attention/key/kernel": (layers, kv_heads * width, dim),
        f"{BLOCK}/attention/value/kernel": (layers, kv_heads * width, dim),
        f"{BLOCK}/attention/output/kernel": (layers, dim, dim),
        f"{BLOCK}/feed_forward_norm/scale": (layers, dim),
        f"{BLOCK}/feed_forward/gate/kernel": (layers, mlp_dim, dim),
        f"{BLOCK}/feed_forward/down/kernel": (layers, dim, mlp_dim),
        f"{BLOCK}/feed_forward/up/kernel": (layers, mlp_dim, dim),
        "final_norm/scale": (dim,),
        "rotation": (2, length, width // 2),  # cosines and sines, which jaxpt computes
    } | ({} if tied else {"head/kernel": (vocab, dim)})
    total = sum(math.prod(shape) for shape in shapes.values())
    if path.stat().st_size != 4 * (7 + total):
        raise wrong
    config = LlamaConfig(
        vocab_size=vocab, layers=layers, embed_dim=dim, heads=heads, kv_heads=kv_heads, mlp_dim=mlp_dim,
        max_positions=length, tie_embeddings=tied,
    )  # fmt: skip
    tensors, offset = {}, 4 * 7
    for name, shape in shapes.items():
        tensors[name] = np.memmap(path, np.float32, "r", offset, shape)
        offset += tensors[name].nbytes
    del tensors["rotation"]
    return Checkpoint(Network(config.build()), {f"model/{path}": x for path, x in tensors.items()})


def _halves(x_OxD: np.ndarray, width: int) -> np.ndarray:
    """Reorders rotary pairs: rows 2i and 2i + 1 of a head become rows i and i + K/2."""
    out, dim = x_OxD.shape
    return x_OxD.reshape(out // width, width // 2, 2, dim).swapaxes(1, 2).reshape(out, dim)
