"""Mixtures of experts: plain loops as oracle, and what a token's experts may depend on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from jaxpt.models import moe
from jaxpt.models.cache import NewCache
from jaxpt.models.decoder_only import DecoderOnlyConfig
from jaxpt.models.layers import ACTIVATIONS
from jaxpt.models.moe import MoE, Routing
from jaxpt.models.network import Network
from tests.models.helpers import EVERY, drawn, packed

pytestmark = pytest.mark.gpu

B, L, D, F, E = 3, 8, 6, 5, 4
INIT = jax.nn.initializers.normal(0.5)


def config(**options):
    sizes = {"vocab_size": 203, "layers": 2, "embed_dim": 24, "heads": 3, "mlp_dim": 40, "dtype": "float32"}
    return DecoderOnlyConfig(**sizes | {"experts": E, "expert_dim": F, "experts_per_token": 2} | options)


def layer(**options):
    return MoE(config(**options), "silu", INIT, INIT, jnp.float32, gated=True)


@functools.cache
def parameters(**options):
    tree = jax.jit(functools.partial(layer(**options).init, has_cache=False))(
        jax.random.key(0), jnp.zeros((1, 1, D)), None
    )["params"]
    return jax.tree.map(lambda box: np.asarray(box.value), tree, is_leaf=lambda x: hasattr(x, "value"))


@functools.cache
def compiled(**options):
    return jax.jit(lambda params, x, real: layer(**options).apply({"params": params}, x, real, False))


def inputs(rows=B, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, L, D)).astype(np.float32)


def by_hand(params, x_D, k, scores, normalized):
    """The experts of one token, in a loop."""
    logits = x_D @ params["router"]["kernel"]
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    p = 1 / (1 + np.exp(-logits)) if scores == "sigmoid" else p
    chosen = np.argsort(-p)[:k]
    weights = p[chosen] / (p[chosen].sum() if normalized else 1)
    gate, up, down = (params[name]["kernel"] for name in ("gate", "up", "down"))
    silu = ACTIVATIONS["silu"]
    return sum(w * ((np.asarray(silu(x_D @ gate[e])) * (x_D @ up[e])) @ down[e]) for e, w in zip(chosen, weights))


@pytest.mark.parametrize(("scores", "normalized"), [("softmax", False), ("sigmoid", True)])
def test_a_token_gets_its_experts(scores, normalized):
    options = {"router": scores, "router_normalized": normalized}
    x = inputs()
    y, _ = compiled(**options)(parameters(), x, np.ones((B, L), bool))
    wanted = [[by_hand(parameters(), token, 2, scores, normalized) for token in row] for row in x]
    np.testing.assert_allclose(y, wanted, atol=1e-5)


def test_without_a_capacity_a_row_does_not_depend_on_the_others():
    x, other = inputs(), inputs(seed=1)
    real = np.ones((B, L), bool)
    real[2, 3:] = False
    y, routing = compiled()(parameters(), x, real)
    other[0] = x[0]
    alone, of_others = compiled()(parameters(), other, np.ones((B, L), bool))
    np.testing.assert_allclose(y[0], alone[0], atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b[0], atol=1e-5), routing, of_others)
    np.testing.assert_array_equal(y[2, 3:], 0)  # padding is sent nowhere
    assert routing.tokens_G.tolist() == [8, 8, 3] and routing.choices_GxE.sum(1).tolist() == [16, 16, 6]


def test_the_order_of_experts_does_not_matter():
    order = np.array([2, 0, 3, 1])
    params = parameters()
    other = {name: {"kernel": params[name]["kernel"][order]} for name in ("gate", "up", "down")}
    other["router"] = {"kernel": params["router"]["kernel"][:, order]}
    y, routing = compiled()(params, inputs(), np.ones((B, L), bool))
    again, permuted = compiled()(other, inputs(), np.ones((B, L), bool))
    np.testing.assert_allclose(y, again, atol=1e-6)
    np.testing.assert_array_equal(routing.choices_GxE[:, order], permuted.choices_GxE)


def test_packed_texts_and_padding_change_nothing():
    network = Network(config().build())
    params = drawn(network)

    @jax.jit
    def run(tokens, segments, positions):
        return network.bind(params).decode(tokens, segment_ids=segments, positions=positions).hidden

    for together, alone in zip(*packed(run, 16)):
        np.testing.assert_allclose(together, alone, atol=2e-5)


@pytest.mark.parametrize(("form", "balanced"), [("switch", 3), ("switch_pooled", 2), ("mixtral", 2)])
def test_balance_at_uniform_routing_and_beyond(form, balanced):
    """`switch` is a sum of 1 over 3 layers; the others are k = 2. All experts but one dead: E times as much."""
    tokens = np.array([[5.0, 0.0, 3.0]] * 3)
    uniform = np.repeat(tokens[..., None], E, -1) / E
    routing = Routing(tokens, 2 * uniform, uniform, tokens, tokens, tokens, tokens)
    c = config(balance=form)
    np.testing.assert_allclose(moe.balance_loss(c, routing) / 8, balanced, rtol=1e-6)
    one = np.zeros(E)
    one[1] = 1
    dead = routing.replace(choices_GxE=2 * tokens[..., None] * one, scores_GxE=tokens[..., None] * one)
    np.testing.assert_allclose(moe.balance_loss(c, dead) / 8, balanced * E, rtol=1e-6)


def test_an_expert_takes_the_first_choices_of_a_group():
    """In a loop: all first choices in the order of tokens, then all second ones; padding takes no room."""
    rng = np.random.default_rng(3)
    ids = np.stack([rng.permuted(np.tile(np.arange(E), (4, L, 1)), axis=2)[..., :2]])[0]
    real = rng.random((4, L)) < 0.8
    kept = np.asarray(moe.within_capacity(jnp.asarray(ids), jnp.asarray(real), E, 2, 3))
    for group in (slice(0, 2), slice(2, 4)):
        room = np.full(E, 3)
        for choice in range(2):
            for row, column in np.ndindex(2, L):
                expert, is_real = ids[group][row, column, choice], real[group][row, column]
                assert kept[group][row, column, choice] == (is_real and room[expert] > 0)
                room[expert] -= is_real


def test_what_is_dropped_passes_by_and_is_counted():
    options = {"experts_per_token": 1, "capacity": 1}
    y, routing = compiled(**options)(parameters(), inputs(), np.ones((B, L), bool))
    choices = np.asarray(routing.choices_GxE)
    np.testing.assert_array_equal(routing.dropped_G, np.maximum(choices - 1, 0).sum(1))
    np.testing.assert_array_equal((np.asarray(y) == 0).all(-1).sum(1), routing.dropped_G)


def test_sparse_and_dense_layers_alternate():
    """Every second layer, but for one: three segments of equal layers."""
    c = config(layers=6, sparse_every=2)
    assert c.numbers() == ((range(0, 6, 2), range(1, 6, 2)),)
    c = config(layers=6, dense_layers=(0, 1))
    assert c.numbers() == ((range(2),), (range(2, 6),))
    assert [c.is_sparse(i) for i in range(6)] == [False] * 2 + [True] * 4


@pytest.mark.parametrize(("first", "every", "sparse"), [
    (2, 1, [2, 3, 4, 5, 6]), (3, 2, [3, 5]), (1, 3, [1, 4]), (None, 3, [2, 5]), (0, 3, [0, 3, 6]), (6, 2, [6]),
])  # fmt: skip
@pytest.mark.parametrize("make", [config, functools.partial(EVERY["t5"], experts=E)], ids=["decoder", "t5"])
def test_the_first_sparse_layer(make, first, every, sparse):
    """Layers before it are dense, and each block of a segment has layers of one kind."""
    c = make(layers=7, first_sparse=first, sparse_every=every)
    assert [i for i in range(7) if c.is_sparse(i)] == sparse
    blocks = [numbers for segment in c.numbers("decoder") for numbers in segment]
    assert sorted(i for numbers in blocks for i in numbers) == [*range(7)]
    assert all(len({c.is_sparse(i) for i in numbers}) == 1 for numbers in blocks)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"experts": None, "experts_per_token": 1}, "expert_dim: has no meaning without experts"),
        ({"experts_per_token": 5}, "experts_per_token: 5 is more than experts 4"),
        ({"capacity": 3, "capacity_factor": 1.0}, "capacity: goes with no capacity_factor"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        config(**options)


@pytest.mark.parametrize(
    ("options", "idle"),
    [
        ({"capacity": 3}, ("eval_capacity_factor", "min_capacity")),
        ({"capacity_factor": 1.0}, ()),
        ({"eval_capacity_factor": None}, ("min_capacity",)),
    ],
)
def test_settings_of_a_capacity_without_effect_are_named(options, idle):
    lines = config(**{"eval_capacity_factor": 2.0, "min_capacity": 2} | options).idle_settings()
    assert tuple(line.partition(": has no effect with")[0] for line in lines) == tuple(f"model.{x}" for x in idle)


@pytest.mark.parametrize(
    ("options", "idle"),
    [
        ({"jitter_experts": True}, ["model.jitter_experts: has no effect without router_jitter; remove it"]),
        ({"jitter_experts": True, "router_jitter": 0.1}, []),
        (
            {"balance": "mixtral", "balance_weight": 0.0},
            ["model.balance: has no effect with balance_weight: 0 and router_z_weight: 0; remove it"],
        ),
        ({"balance": "mixtral", "balance_weight": 0.0, "router_z_weight": 0.1}, []),
    ],
)
def test_settings_of_a_router_without_effect_are_named(options, idle):
    assert [*config(**options).idle_settings()] == idle


def test_a_cache_gives_the_states_of_the_whole_text():
    """A prompt, then tokens one by one; with a capacity only these may not be dropped."""
    network = Network(config(layers=3, first_sparse=1).build())
    params = drawn(network)
    tokens = np.random.default_rng(0).integers(0, 203, (2, 7))

    @jax.jit
    def both(tokens):
        bound = network.bind(params)
        output = bound.decode(tokens[:, :5], cache=NewCache(slots=8))
        steps = [output.hidden]
        for at in (5, 6):
            output = bound.decode(tokens[:, at : at + 1], cache=output.cache)
            steps.append(output.hidden)
        return jnp.concatenate(steps, 1), bound.decode(tokens).hidden

    np.testing.assert_allclose(*both(tokens), atol=2e-5)
