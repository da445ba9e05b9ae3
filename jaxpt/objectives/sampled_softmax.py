"""Cross-entropy over the target and a sample of the vocabulary, for vocabularies too large to be projected to.

    loss = −log softmax over {target} ∪ S of (z_v − log E_v) at the target,    z = x · Wᵀ + b

S are n different ids; those that are the target are left out for it ("accidental hits"). Ids are sorted by frequency,
and id k is drawn with p_k = log((k + 2) / (k + 1)) / log(V + 1), about Zipf's law, until n different ones were drawn.
E_k is how often k is expected among them: 1 − (1 − p_k)^t after t draws. TensorFlow counts the draws of each sample;
here t is the number after which n different ones are expected, and S is the n largest of log p_k + Gumbel noise, which
has the same distribution. With n ≥ V the loss is the full softmax's. Papers: https://arxiv.org/abs/1412.2007,
https://arxiv.org/abs/1907.06558 (Gumbel noise: https://arxiv.org/abs/1903.06059)

Shapes: B batch · T targets of a row · D width · V vocabulary · S sampled ids
"""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.models.output import Projection


@functools.lru_cache(8)
def log_uniform(vocab_size: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of a draw of each id, and log of how often it is expected in a sample.

    Args:
      vocab_size: V.
      samples: different ids of a sample, fewer than V.

    Returns:
      (log p [V], log E [V]), float32.

    Example:
      >>> log_p, log_expected = log_uniform(4, 2)
      >>> [round(float(x), 2) for x in (np.exp(log_p).sum(), np.exp(log_expected).sum())]
      [1.0, 2.0]
    """
    id_V = np.arange(vocab_size, dtype=np.float64)
    log_p_V = np.log(np.log1p(1 / (id_V + 1)) / np.log(vocab_size + 1))
    not_drawn_V = np.log1p(-np.exp(log_p_V))
    low, high = 0.0, 1.0
    while -np.expm1(high * not_drawn_V).sum() < samples:
        high *= 2
    for _ in range(60):  # bisection: the expectation grows with the number of draws
        draws = (low + high) / 2
        low, high = (draws, high) if -np.expm1(draws * not_drawn_V).sum() < samples else (low, draws)
    return log_p_V.astype(np.float32), np.log(-np.expm1(high * not_drawn_V)).astype(np.float32)


def sampled_loss(
    hidden_BxTxD: jax.Array,
    projection: Projection,
    targets_BxT: jax.Array,
    weights_BxT: jax.Array,
    key: jax.Array,
    samples: int,
) -> jax.Array:
    """Σ of the weighted cross-entropy over the targets and one sample for all of them.

    Args:
      hidden_BxTxD: hidden states.
      projection: from hidden states to logits, with a table [Vp, D] (`tied`).
      targets_BxT: ids below V.
      weights_BxT: 0 excludes a position.
      key: of the sample.
      samples: S.

    Returns:
      float32 scalar, in nats.
    """
    size = projection.vocab_size or projection.columns
    if samples >= size:
        sampled_S, log_expected_V = jnp.arange(size), jnp.zeros(size, jnp.float32)
    else:
        log_p_V, log_expected_V = map(jnp.asarray, log_uniform(size, samples))
        _, sampled_S = jax.lax.top_k(log_p_V + jax.random.gumbel(key, (size,)), samples)
    # Gathered once: rows of a sharded table would be looked up on every device that has some.
    table = nn.with_logical_constraint(projection.kernel, ("vocab", None))
    dtype = projection.kernel.dtype if projection.dtype is None else projection.dtype
    bias = jnp.zeros(projection.columns) if projection.bias is None else projection.bias

    def corrected(products: jax.Array, ids: jax.Array) -> jax.Array:
        return products + (bias[ids] - log_expected_V[ids])

    x_BxTxD = hidden_BxTxD.astype(dtype)
    of_targets_BxTxD, of_samples_SxD = table[targets_BxT].astype(dtype), table[sampled_S].astype(dtype)
    gold_BxT = jnp.einsum("BTD,BTD->BT", x_BxTxD, of_targets_BxTxD, preferred_element_type=jnp.float32)
    gold_BxT = corrected(gold_BxT, targets_BxT)
    others_BxTxS = jnp.einsum("BTD,SD->BTS", x_BxTxD, of_samples_SxD, preferred_element_type=jnp.float32)
    is_hit_BxTxS = targets_BxT[..., None] == sampled_S
    others_BxTxS = jnp.where(is_hit_BxTxS, -jnp.inf, corrected(others_BxTxS, sampled_S))
    log_z_BxT = jnp.logaddexp(gold_BxT, jax.nn.logsumexp(others_BxTxS, axis=-1))
    return ((log_z_BxT - gold_BxT) * weights_BxT).sum()
