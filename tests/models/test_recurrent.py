"""The LSTM: its formula and gradients token by token, clipping, padding, texts of a row, its state, both directions."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models.recurrent import LSTM, State

pytestmark = pytest.mark.gpu

B, L, D, H, P = 3, 7, 4, 6, 5
IDS = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 2, 0, 0], [0, 0, 1, 1, 0, 2, 2]], np.int32)
SETTINGS = {"forget_bias": 1.0, "cell_clip": 0.3, "projection_clip": 0.2}


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def lstm(projection=P, **settings):
    """(module, parameters, inputs, state)."""
    module = LSTM(H, jnp.float32, projection=projection, **settings)
    x = drawn(0, B, L, D)
    shapes = jax.eval_shape(lambda: nn.unbox(module.init(jax.random.key(0), x, IDS)["params"]))
    leaves, tree = jax.tree.flatten(shapes)
    params = tree.unflatten([drawn(n, *leaf.shape) / 2 for n, leaf in enumerate(leaves, 1)])
    return module, params, x, State(drawn(8, B, projection or H) / 9, drawn(9, B, H) / 9)


def by_hand(params, x, state, ids, clip=(0.3, 0.2), bias=1.0):
    """Token by token and row by row."""
    outputs = jnp.zeros((B, L, state.output_BxP.shape[1]))
    ends = []
    for row in range(B):
        h, c, seen = state.output_BxP[row], state.cell_BxH[row], None
        for t in range(L):
            if ids[row, t] == 0:
                continue
            if seen is not None and seen != ids[row, t]:
                h, c = jnp.zeros_like(h), jnp.zeros_like(c)
            seen = ids[row, t]
            gates = x[row, t] @ params["input"]["kernel"] + params["input"]["bias"] + h @ params["recurrent_kernel"]
            i, f, g, o = jnp.split(gates, 4)
            c = jnp.clip(jax.nn.sigmoid(f + bias) * c + jax.nn.sigmoid(i) * jnp.tanh(g), -clip[0], clip[0])
            h = jnp.clip((jax.nn.sigmoid(o) * jnp.tanh(c)) @ params["projection_kernel"], -clip[1], clip[1])
            outputs = outputs.at[row, t].set(h)
        ends.append((h, c))
    return outputs, State(*(jnp.stack(x) for x in zip(*ends)))


def test_outputs_state_and_gradients_are_those_of_the_formula():
    """Some cells and outputs are at their bounds, where they have no gradient."""
    module, params, x, state = lstm(**SETTINGS)
    of_output = drawn(5, B, L, P) * (IDS > 0)[..., None]

    def total(run, params, x, state):
        y, (h, c) = run(params, x, state)
        return (y * of_output).sum() + (h * 0.7).sum() + (c * 0.3).sum(), (y, h, c)

    def ours(params, x, state):
        return module.apply({"params": params}, x, IDS, state)

    def theirs(params, x, state):
        return by_hand(params, x, state, IDS)

    found, wanted = (
        jax.jit(jax.value_and_grad(functools.partial(total, run), (0, 1, 2), has_aux=True))(params, x, state)
        for run in (ours, theirs)
    )
    (_, (y, h, c)), (_, (wanted_y, *ends)) = found[0], wanted[0]
    np.testing.assert_allclose(y * (IDS > 0)[..., None], wanted_y, rtol=1e-5, atol=1e-6)
    assert (np.abs(c) == np.float32(0.3)).any() and (np.abs(y) == np.float32(0.2)).any()
    for one, other in zip(jax.tree.leaves((found[1], h, c)), jax.tree.leaves((wanted[1], ends)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_text_in_two_halves_and_from_its_end():
    module, params, x, state = lstm(projection=None)
    backward = LSTM(H, jnp.float32, reverse=True)

    @jax.jit
    def run(x, state):
        def of(module, *given):
            return module.apply({"params": params}, *given)

        ids = (IDS == 1)[:2]  # padding at the end, where the backward LSTM begins
        x, state = x[:2], jax.tree.map(lambda s: s[:2], state)
        first = of(module, x[:, :4], ids[:, :4], state)
        return (of(module, x, ids, state), first, of(module, x[:, 4:], ids[:, 4:], first[1]),
                of(backward, x[:, ::-1], ids[:, ::-1], state))  # fmt: skip

    whole, first, second, turned = run(x, state)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    close(np.concatenate([first[0], second[0]], 1)[0], whole[0][0])
    jax.tree.map(close, second[1], whole[1])
    jax.tree.map(close, (turned[0][:, ::-1], turned[1]), whole)


def test_bfloat16_has_a_cell_of_float32_and_weight_dropout_is_one_mask():
    _, params, x, state = lstm()
    params = jax.tree.map(jnp.asarray, params)
    module = LSTM(H, jnp.bfloat16, projection=P, weight_dropout=0.5)

    @jax.jit
    def run(key):
        return module.apply({"params": params}, x, IDS, state, rngs={"dropout": key})

    y, end = run(jax.random.key(0))
    assert y.dtype == jnp.bfloat16 and end.cell_BxH.dtype == end.output_BxP.dtype == jnp.float32
    x = np.repeat(x[:1], B, 0)  # the same text in all rows: one mask for all of them
    rows = module.apply({"params": params}, x, None, None, rngs={"dropout": jax.random.key(1)})[0]
    np.testing.assert_array_equal(rows[0], rows[2])
    assert not np.array_equal(rows, module.apply({"params": params}, x)[0])
