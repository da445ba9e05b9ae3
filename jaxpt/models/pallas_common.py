"""What the attention kernels written in Pallas have in common: what is known at compilation, and dropout.

Dropout keeps weights by a hash: the same in both passes, in every tiling and on every device.

Shapes: L query length · S key length
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Form:
    """Heads, mask and dropout of a kernel's arguments."""

    heads: int
    causal: bool = False
    window: int | None = None
    """A query sees keys at a distance below this."""
    dropout: float = 0.0
    """Rate on the attention weights."""
    interpret: bool = False
    """Run by JAX, on any device."""
    strided: bool = True
    """The TPU can turn each row of a register one lane further than the row above (v4 cannot)."""


def kept(seed: jax.Array, query: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    """True at the weights that are kept.

    Args:
      seed: int32, random bits of a row and a head.
      query: int32, indices of queries in the row.
      key: int32, indices of keys, broadcastable with those of queries.
      rate: share of the weights that is dropped.

    Returns:
      bool, of the indices' common shape.

    Example:
      >>> kept(jnp.int32(7), jnp.arange(2)[:, None], jnp.arange(6)[None], 0.5).astype(int)
      Array([[1, 1, 1, 1, 1, 0],
             [1, 1, 0, 0, 0, 1]], dtype=int32)
    """
    bits = hashed((query << 16 | key) ^ seed)
    return jax.lax.shift_right_logical(bits, 8) >= round(rate * (1 << 24))


def hashed(x: jax.Array) -> jax.Array:
    """32 bits that look random, of 32 bits: an int32 array of x's shape.

    Two multiplications between shifted differences, after https://github.com/skeeto/hash-prospector (its constants).
    """
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = (x ^ jax.lax.shift_right_logical(x, shift)) * jnp.int32(factor)
    return x ^ jax.lax.shift_right_logical(x, 15)
