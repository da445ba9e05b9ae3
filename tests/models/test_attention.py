"""Attention against a plain loop, and what masks must keep apart."""

import doctest

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import attention
from jaxpt.models.attention import attend
from jaxpt.models.mask import Mask

pytestmark = pytest.mark.gpu

B, L, S, H, K = 2, 5, 7, 3, 4


def qkv():
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal((B, length, H, K)), jnp.float32) for length in (L, S, S)]


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
    bias = np.random.default_rng(1).standard_normal((H, L, S)).astype(np.float32)
    queries, keys = np.array([[1, 1, 1, 2, 2]] * B), np.array([[1, 1, 2, 2, 2, 0, 0], [1, 2, 1, 1, 2, 1, 0]])
    allowed = (queries[:, :, None] == keys[:, None, :]) & (keys != 0)[:, None, :]
    if causal:
        queries = np.array([[1] * 5, [1, 1, 1, 1, 1]])
        keys = np.array([[1] * 7, [1, 1, 1, 0, 1, 1, 0]])
        allowed = (keys != 0)[:, None, :] & (np.arange(L)[:, None] >= np.arange(S))
    got = jax.jit(lambda *x: attend(*x, Mask(queries, keys, causal=causal), bias, scale=0.7))(q, k, v)
    want = reference(*map(np.asarray, (q, k, v, allowed, bias)), 0.7)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_scale_is_one_over_root_of_head_width_by_default():
    own, given = jax.jit(lambda *x: [attend(*x, Mask(), **o) for o in ({}, {"scale": K**-0.5})])(*qkv())
    np.testing.assert_allclose(own, given, atol=1e-6)
    want = reference(*map(np.asarray, qkv()), np.ones((B, L, S)), np.zeros((H, L, S)), K**-0.5)
    np.testing.assert_allclose(own, want, atol=1e-5)


def test_without_ids_all_is_one_segment():
    ones = np.ones((B, S), np.int32)
    masks = Mask(), Mask(key_segments_BxS=ones), Mask(ones[:, :L], ones)
    plain, *others = jax.jit(lambda *x: [attend(*x, mask) for mask in masks])(*qkv())
    for other in others:
        np.testing.assert_array_equal(plain, other)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_query_that_may_look_nowhere_gives_no_nan(dtype):
    q, k, v = (x.astype(dtype) for x in qkv())
    mask = Mask(np.zeros((B, L), np.int32), np.zeros((B, S), np.int32))

    def total(q, k, v):
        return attend(q, k, v, mask).astype(jnp.float32).sum()

    value, gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(q, k, v)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in (value, *gradients))


def test_dropout_leaves_the_mean():
    q, k, v = qkv()

    @jax.jit
    def run(key):
        drop = jax.vmap(lambda key: attend(q, k, v, Mask(), dropout=0.3, dropout_key=key))
        return drop(jax.random.split(key, 1000)), attend(q, k, v, Mask())

    drawn, plain = map(np.asarray, run(jax.random.key(3)))
    assert drawn.std(0).min() > 0
    np.testing.assert_allclose(drawn.mean(0), plain, atol=0.1)


class Sowing(nn.Module):
    """Attention of given queries and keys, which sows its weights."""

    @nn.compact
    def __call__(self, q, k, v, mask, bias):
        attention.sow_weights(self, q, k, mask, bias, scale=0.7)
        return attend(q, k, v, mask, bias, scale=0.7)


def test_weights_are_sown_on_request_alone():
    """They are what the values are weighted with; a program that does not ask for them does not compute them."""
    q, k, v = qkv()
    bias = np.random.default_rng(1).standard_normal((H, L, S)).astype(np.float32)
    mask = Mask(np.array([[1, 1, 1, 2, 2]] * B), np.array([[1, 1, 2, 2, 2, 0, 0]] * B))
    y, sown = Sowing().apply({}, q, k, v, mask, bias, mutable=["intermediates"])
    (weights_BxLxHxS,) = sown["intermediates"][attention.WEIGHTS]
    np.testing.assert_allclose(weights_BxLxHxS.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(jnp.einsum("blhs,bshk->blhk", weights_BxLxHxS, v), y, atol=1e-5)
    plain = jax.make_jaxpr(lambda *x: attend(*x, mask, bias, scale=0.7))(q, k, v)
    silent = jax.make_jaxpr(lambda *x: Sowing().apply({}, *x, mask, bias))(q, k, v)
    assert str(plain) == str(silent)
