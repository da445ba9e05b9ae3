"""The decoder's positions that are not rotary: in packed rows, behind padding, with a cache, and as branches; and what
its configuration refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from jaxpt.models.cache import NewCache
from jaxpt.models.decoder_only import DecoderOnlyConfig
from jaxpt.models.network import Network
from tests.models.helpers import OTHERS, drawn

SIZES = {
    "vocab_size": 31, "layers": 1, "embed_dim": 12, "heads": 3, "mlp_dim": 8, "norm": "layer", "dtype": "float32",
    "embed_norm": True,
}  # fmt: skip


@pytest.fixture(scope="module", params=["alibi", "alibi_bfloat16", "sinusoids"])
def case(request):
    """(network, parameters, logits of rows, of their segments and positions)"""
    network = Network(DecoderOnlyConfig(**SIZES, positions=request.param).build())
    params = drawn(network)

    @jax.jit
    def logits(tokens, segments, positions):
        bound = network.bind(params)
        return bound.logits(bound.decode(tokens, segment_ids=segments, positions=positions).hidden)

    return network, params, logits


ROW = np.arange(1, 11, dtype=np.int32)[None]


@pytest.mark.gpu
def test_packed_texts_do_not_see_each_other(case):
    *_, logits = case
    plain = [np.pad(ROW[:, part], ((0, 0), (0, 10 - ROW[:, part].shape[1]))) for part in (slice(4), slice(4, 10))]
    positions = np.arange(10, dtype=np.int32)[None]
    first, second = (logits(tokens, (tokens != 0).astype(np.int32), positions) for tokens in plain)
    both = logits(ROW, np.repeat([[1, 2]], (4, 6), 1).astype(np.int32), np.r_[:4, :6].astype(np.int32)[None])
    np.testing.assert_allclose(both[:, :4], first[:, :4], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both[:, 4:], second[:, :6], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_cache_gives_the_same_behind_padding(case):
    """Two rows, one padded by three tokens, and a ring of fewer slots than all that is written to it."""
    network, params, logits = case
    tokens = np.concatenate([ROW, np.roll(ROW, 1)]).astype(np.int32)
    segments = np.ones_like(tokens)
    segments[1, :3] = 0
    want = logits(tokens, segments, np.maximum(segments.cumsum(1) - 1, 0).astype(np.int32))
    bound = network.bind(params)
    start = bound.decode(tokens[:, :7], segment_ids=segments[:, :7], cache=NewCache(10))
    np.testing.assert_allclose(bound.logits(start.hidden[:, -1]), want[:, 6], rtol=1e-4, atol=1e-5)
    step = jax.jit(lambda token, cache: (out := bound.decode(token, cache=cache), bound.logits(out.hidden))[::-1])
    cache = start.cache
    for i in range(7, 10):
        got, output = step(jnp.asarray(tokens[:, i : i + 1]), cache)
        cache = output.cache
        np.testing.assert_allclose(got[:, 0], want[:, i], rtol=1e-4, atol=1e-5)


def test_branches_only_where_positions_say_all(case):
    """ALiBi counts distances in the row, where a second continuation does not stand beside its context."""
    network, *_ = case
    assert network.config.counts_in_row == (network.config.positions == "alibi")


@pytest.mark.parametrize("positions", ["rotary", "sinusoids"])
def test_dropout_on_embeddings_with_sinusoids_alone(positions):
    network = Network(DecoderOnlyConfig(**SIZES | {"embed_dim": 24}, positions=positions, dropout=0.5).build())
    params = drawn(network)
    embedded = jax.jit(lambda key: network.bind(params, {"dropout": key}).embed(ROW, None))(jax.random.key(0))
    assert (np.asarray(embedded) == 0).any() == (positions == "sinusoids")


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="embed_dim: 11 is no even width"):
        DecoderOnlyConfig(**SIZES | {"embed_dim": 11, "heads": 1, "positions": "sinusoids"})
    with pytest.raises(ValueError, match="qk_norm: per_head is not there for norm rms"):
        DecoderOnlyConfig(**SIZES | {"heads": 2, "norm": "rms", "qk_norm": "per_head"})
    assert DecoderOnlyConfig(**SIZES | {"heads": 4, "positions": "alibi"}).width == 3, "odd, as nothing is rotated"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pattern": ()}, "pattern: wants at least one kind of layer"),
        ({"window": 2}, "other_window: 3 is wider than window 2; swap the two"),
        ({"parallel": "one_norm"}, "parallel: one_norm wants norm_position before"),
        ({"rope_factor": 8.0}, "rope_factor: 8.0 is not used with rope_scaling none; set rope_scaling"),
        ({"experts": 2, "mlp_bias": True}, "mlp_bias: experts have no biases, and no layer is dense; remove it"),
        ({"positions": "alibi"}, "positions: alibi goes with no window; remove window and other_window"),
    ],
)
def test_what_does_not_go_together_is_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        OTHERS["decoder_only"](**options)


OTHER = {"other_window": 3, "other_rope": "none", "other_rope_theta": 5.0}
YARN = {"rope_factor": 2.0, "rope_original_positions": 64, "rope_amplitude": 2.0}


@pytest.mark.parametrize(
    ("options", "idle", "reason"),
    [
        (OTHER, (*OTHER,), "without an other layer in pattern"),
        (OTHER | {"pattern": ("main", "other")}, ("other_rope_theta",), "with other_rope: none"),
        ({"rope_scaling": "linear"} | YARN, ("rope_original_positions", "rope_amplitude"), "with rope_scaling: linear"),
        ({"rope_scaling": "yarn"} | YARN, (), ""),
        ({"positions": "alibi", "rope_theta": 5.0}, ("rope_theta",), "with positions: alibi"),
    ],
)
def test_settings_without_effect_are_named(options, idle, reason):
    lines = DecoderOnlyConfig(**SIZES | options).idle_settings()
    assert lines == tuple(f"model.{name}: has no effect {reason}; remove it" for name in idle)


@pytest.mark.parametrize("scaling", ["linear", "llama3", "yarn"])
def test_a_scaling_by_1_is_named(scaling):
    def lines(**options):
        return DecoderOnlyConfig(**SIZES | {"embed_dim": 24, "rope_scaling": scaling} | options).idle_settings()

    assert lines() == (f"model.rope_scaling: {scaling} has no effect with rope_factor: 1; set model.rope_factor",)
    assert lines(rope_factor=2.0) == ()
    assert scaling != "yarn" or lines(rope_amplitude=2.0) == ()
