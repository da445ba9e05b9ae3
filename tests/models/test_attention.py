"""Attention against a plain loop, and what masks must keep apart."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import attention
from jaxpt.models.attention import attend
from jaxpt.models.mask import Mask

B, L, S, H, K = 2, 5, 7, 3, 4


def qkv(seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (B, length, H, K)) for key, length in zip(keys, (L, S, S))]


def reference(q, k, v, allowed, bias, scale):
    """The definition, one query at a time."""
    out = np.zeros(q.shape)
    for b in range(B):
        for h in range(H):
            for i in range(L):
                seen = [j for j in range(S) if allowed[b, i, j]]
                scores = np.array([scale * q[b, i, h] @ k[b, j, h] + bias[h, i, j] for j in seen])
                weights = np.exp(scores - scores.max())
                out[b, i, h] = (weights / weights.sum()) @ v[b, seen, h]
    return out


def test_examples():
    assert doctest.testmod(attention).failed == 0


@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_definition(causal):
    q, k, v = qkv()
    bias = jax.random.normal(jax.random.key(1), (H, L, S))
    queries, keys = jnp.array([[1, 1, 1, 2, 2]] * B), jnp.array([[1, 1, 2, 2, 2, 0, 0], [1, 2, 1, 1, 2, 1, 0]])
    allowed = (queries[:, :, None] == keys[:, None, :]) & (keys != 0)[:, None, :]
    if causal:
        queries = jnp.array([[1] * 5, [1, 1, 1, 1, 1]])
        keys = jnp.array([[1] * 7, [1, 1, 1, 0, 1, 1, 0]])
        allowed = (keys != 0)[:, None, :] & (np.arange(L)[:, None] >= np.arange(S))
    got = attend(q, k, v, Mask(queries, keys, causal=causal), bias, scale=0.7)
    want = reference(*map(np.asarray, (q, k, v, allowed, bias)), 0.7)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_scale_is_one_over_root_of_head_width_by_default():
    q, k, v = qkv()
    np.testing.assert_allclose(attend(q, k, v, Mask()), attend(q, k, v, Mask(), scale=K**-0.5), atol=1e-6)


def test_without_ids_all_is_one_segment():
    ones = jnp.ones((B, S), jnp.int32)
    q, k, v = qkv()
    np.testing.assert_array_equal(attend(q, k, v, Mask()), attend(q, k, v, Mask(key_segments_BxS=ones)))
    np.testing.assert_array_equal(attend(q, k, v, Mask()), attend(q, k, v, Mask(ones[:, :L], ones)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_query_that_may_look_nowhere_gives_no_nan(dtype):
    q, k, v = (x.astype(dtype) for x in qkv())
    mask = Mask(jnp.zeros((B, L), jnp.int32), jnp.zeros((B, S), jnp.int32))

    def total(q, k, v):
        return attend(q, k, v, mask).astype(jnp.float32).sum()

    value, gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(q, k, v)
    assert all(bool(jnp.isfinite(x).all()) for x in (value, *gradients))


def test_dropout_leaves_the_mean():
    q, k, v = qkv()
    keys = jax.random.split(jax.random.key(3), 1000)
    drawn = jax.jit(jax.vmap(lambda key: attend(q, k, v, Mask(), dropout=0.3, dropout_key=key)))(keys)
    assert float(drawn.std(0).min()) > 0
    np.testing.assert_allclose(drawn.mean(0), attend(q, k, v, Mask()), atol=0.1)
