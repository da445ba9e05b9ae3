"""Activations, norms, embeddings and the padding of vocabularies."""

import doctest
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import layers

pytestmark = pytest.mark.gpu

INIT = nn.initializers.normal(1.0)


def test_examples():
    assert doctest.testmod(layers).failed == 0


def test_gelu_by_the_error_function_and_by_tanh():
    x = np.linspace(-5, 5, 101)
    erf = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])
    tanh = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert np.abs(erf - tanh).max() > 1e-4
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu"](x), erf, atol=1e-6)
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu_tanh"](x), tanh, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_norms(dtype):
    x = jnp.asarray(3 + 5 * np.random.default_rng(0).standard_normal((4, 64)), dtype)
    exact = np.asarray(x, np.float64)
    centred = exact - exact.mean(-1, keepdims=True)
    wanted = {
        layers.LayerNorm: centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1),
        layers.RMSNorm: exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 0.1),
    }
    found = jax.jit(lambda x: [norm(0.1, dtype).init_with_output(jax.random.key(1), x)[0] for norm in wanted])(x)
    for y, want in zip(found, wanted.values(), strict=True):
        assert y.dtype == dtype
        np.testing.assert_allclose(np.asarray(y, np.float64), want, atol=1e-5 if dtype == jnp.float32 else 2e-2)


def test_embedding_gradient_is_summed_in_float32():
    # 4,096 ones in bfloat16 stop at 256.
    module, tokens = layers.Embed(10, 8, INIT, jnp.bfloat16), np.zeros((1, 4096), np.int32)
    table = jnp.zeros((128, 8))
    run = jax.jit(jax.grad(lambda x: module.apply({"params": {"table": x}}, tokens).astype(jnp.float32).sum()))
    np.testing.assert_array_equal(run(table)[0], 4096)


def test_small_embedding_is_a_lookup():
    module, ids = layers.SmallEmbed(3, 8, INIT, jnp.float32), np.array([[0, 2, 1, 1]])
    y, variables = jax.jit(module.init_with_output)(jax.random.key(0), ids)
    np.testing.assert_allclose(y, np.asarray(nn.unbox(variables)["params"]["table"])[ids], atol=1e-6)


def test_gated_feed_forward():
    module = layers.FeedForward(6, "gelu_tanh", INIT, INIT, jnp.float32, gated=True, use_bias=False)
    x = np.random.default_rng(0).standard_normal((1, 2, 4)).astype(np.float32)
    y, variables = jax.jit(module.init_with_output)(jax.random.key(1), x)
    w = {name: np.asarray(part["kernel"]) for name, part in nn.unbox(variables)["params"].items()}
    want = (np.asarray(jax.nn.gelu(x @ w["gate"])) * (x @ w["up"])) @ w["down"]
    np.testing.assert_allclose(y, want, rtol=1e-5)


def test_dropout_keeps_the_mean_and_wants_a_key():
    module, x = layers.Dropout(0.25), np.ones((100, 100), np.float32)
    np.testing.assert_array_equal(module.apply({}, x), x)

    @jax.jit
    def drop(key):
        return [layers.Dropout(rate).apply({}, jnp.asarray(x), rngs={"dropout": key}) for rate in (0.25, 1.0)]

    dropped, all_of_it = map(np.asarray, drop(jax.random.key(0)))
    assert set(np.unique(dropped)) == {0, np.float32(1 / 0.75)} and abs(dropped.mean() - 1) < 0.03
    assert not all_of_it.any()


INIT = nn.initializers.lecun_normal()
KEPT = {
    # How many arrays like the input: of a gated unit x, the gate, what it multiplies, and the hidden states.
    "layer_norm": (layers.LayerNorm(1e-6, jnp.bfloat16), 1),
    "rms_norm": (layers.RMSNorm(1e-6, jnp.bfloat16), 1),
    "gelu": (layers.FeedForward(64, "gelu", INIT, INIT, jnp.bfloat16), 3),
    "gated_silu": (layers.FeedForward(64, "silu", INIT, INIT, jnp.bfloat16, gated=True), 4),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_backward_pass_keeps_what_products_want_alone(name):
    """Of bfloat16 states no copy in float32, and nothing between two products but their inputs."""
    module, most = KEPT[name]
    x = jax.ShapeDtypeStruct((4, 8, 64), jnp.bfloat16)
    params = nn.unbox(jax.eval_shape(module.init, jax.random.key(1), x))
    pullback = jax.eval_shape(lambda params, x: jax.vjp(module.apply, params, x)[1], params, x)
    kept = [leaf for leaf in jax.tree.leaves(pullback) if leaf.shape == x.shape]
    assert 1 <= len(kept) <= most and all(leaf.dtype == jnp.bfloat16 for leaf in kept)
