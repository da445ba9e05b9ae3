"""The softmax of attention with dropout, times the values; the backward pass keeps one array of all scores.

Left to JAX it keeps three: the weights in float32, what dropout leaves of them, and what it chose: 7 bytes for each
score in bfloat16. Here it is 2 bytes: the sign says what was chosen, and the rest follows from the weights themselves.

    signed = p where a weight is kept, −p where it is dropped
    ds     = p · (dp − Σ p · dp), p = |signed|

Shapes: B batch · L query length · S key length · H heads · G key heads · R = H / G · K head width
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxpt.models.mask import MASKED


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def weighted(
    scores_BxHxLxS: jax.Array,
    v_BxGxSxK: jax.Array,
    allowed_BxLxS: jax.Array | None = None,
    keep_BxHxLxS: jax.Array | None = None,
    rate: float = 0.0,
) -> jax.Array:
    """dropout(softmax(scores)) · v.

    Args:
      scores_BxHxLxS: float32.
      v_BxGxSxK: values; H/G adjacent heads share them.
      allowed_BxLxS: bool, True where a query sees a key; None: everywhere.
      keep_BxHxLxS: bool, True at the weights that dropout keeps; None: all.
      rate: share of the weights that is dropped.

    Returns:
      [B, H, L, K] in v's dtype, in which the weights are kept for the backward pass. Of a query that sees no key it is
      the mean of all values.

    Example:
      >>> scores, v = jnp.zeros((1, 1, 1, 4)), jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 4, 1)
      >>> print(weighted(scores, v)[0, 0, 0], weighted(scores, v, keep_BxHxLxS=v.mT > 2, rate=0.5)[0, 0, 0])
      [2.5] [3.5]
    """
    return _forward(scores_BxHxLxS, v_BxGxSxK, allowed_BxLxS, keep_BxHxLxS, rate)[0]


def _forward(
    scores: jax.Array, v: jax.Array, allowed: jax.Array | None, keep: jax.Array | None, rate: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    scores = scores if allowed is None else jnp.where(allowed[:, None], scores, MASKED)
    p = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    weights = p if keep is None else jnp.where(keep, p / (1 - rate), 0)
    y_BxHxLxK = jnp.einsum("BGRLS,BGSK->BGRLK", _grouped(weights, v), v)
    y_BxHxLxK = y_BxHxLxK.reshape(*scores.shape[:3], v.shape[-1])
    return y_BxHxLxK, (p if keep is None else jnp.where(keep, p, -p), v)


def _backward(
    rate: float, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array, None, None]:
    """What a mask hides has a weight of 0, and so no gradient."""
    signed, v = saved
    dy_BxGxRxLxK = _grouped(dy, v)
    weights, dp = signed, jnp.einsum("BGRLK,BGSK->BGRLS", dy_BxGxRxLxK, v, preferred_element_type=jnp.float32)
    dp = dp.reshape(signed.shape)
    if rate:
        weights, dp = (jnp.where(signed > 0, x / (1 - rate), 0) for x in (signed, dp))
    dv = jnp.einsum("BGRLS,BGRLK->BGSK", _grouped(weights, v), dy_BxGxRxLxK)
    p = jnp.abs(signed).astype(jnp.float32)
    return p * (dp - (p * dp).sum(axis=-1, keepdims=True)), dv, None, None


weighted.defvjp(_forward, _backward)


def _grouped(x_BxHx_: jax.Array, v_BxGxSxK: jax.Array) -> jax.Array:
    """[B, G, R, …]: heads by the values that they share."""
    B, G = v_BxGxSxK.shape[:2]
    return x_BxHx_.reshape(B, G, x_BxHx_.shape[1] // G, *x_BxHx_.shape[2:])
