"""Adapters: small modules that every block has a place for, after attention and after the feed-forward.

`model.adapter` says which; each kind is one module of this package, or of anyone's, with one subclass of
`AdapterConfig`. Without one a block has neither parameters nor operations more. Low-rank adapters need no place in a
block: see `jaxpt.train.lora`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError
from jaxpt.models.base import compute_dtype


def after(config: ModelConfig, name: str) -> Callable[[jax.Array], jax.Array]:
    """The adapter after a part of a block, to be called within the block's own `__call__`.

    Args:
      config: of the model.
      name: of the part: "attention", "cross_attention" or "feed_forward".

    Returns:
      A module `NAME_adapter` of what is added to the residual stream, [B, L, D] → [B, L, D]; without an adapter a
      function that gives back its argument.

    Raises:
      UserError: when it is called, if what it returns has not the shape of its input.
    """
    if config.adapter is None:
        return lambda y_BxLxD: y_BxLxD
    adapter = config.adapter.build(compute_dtype(config), f"{name}_adapter")

    def adapted(y_BxLxD: jax.Array) -> jax.Array:
        output = adapter(y_BxLxD)
        shape = getattr(output, "shape", None)
        if shape != y_BxLxD.shape:
            actual = type(output).__name__ if shape is None else f"an array {list(shape)}"
            raise UserError(
                f"model.adapter: {config.adapter.kind} must return an array {list(y_BxLxD.shape)}, as its input is; "
                f"it returns {actual}"
            )
        return output

    return adapted
