"""Causality, padding and packing of T5, on both sides."""

import jax
import numpy as np
import pytest
from flax import traverse_util

from jaxpt.models.network import Network
from jaxpt.models.t5 import T5Config
from tests import grids
from tests.models.helpers import OTHERS, apply, influence, made, packed, t5, tokens

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=grids.cases(["t5", "t5_old"], "t5"))
def model(request):
    return made(request.param)


@pytest.fixture(scope="module")
def encoded(model):
    return apply(*model, "encode", tokens(1, 9, seed=4))


def test_no_output_depends_on_a_later_target(model, encoded):
    effect = influence(*model, "decode", tokens(1, 10), encoded)
    assert (np.triu(effect, 1) == 0).all()
    assert (effect[np.tril_indices(10)] > 0).all()


def test_encoder_tokens_see_all_others(model):
    assert (influence(*model, "encode", tokens(1, 8)) > 0).all()


def test_later_targets_leave_earlier_outputs_bit_equal(model, encoded):
    ids = tokens(1, 10)
    changed = ids.copy()
    changed[:, 6:] = tokens(1, 4, seed=7)
    first, second = (apply(*model, "decode", x, encoded) for x in (ids, changed))
    np.testing.assert_array_equal(first[:, :6], second[:, :6])


def in_rows(model, sources, source_segments, ids, segments, positions):
    encoded = apply(*model, "encode", sources, segment_ids=source_segments)
    own = {"segment_ids": segments, "positions": positions, "encoder_segment_ids": source_segments}
    return encoded, apply(*model, "decode", ids, encoded, **own)


def test_padding_never_changes_a_real_token(model):
    sources, segments = tokens(3, 10), np.array([[1] * 6 + [0] * 4] * 3)
    targets, target_segments = tokens(3, 15, seed=1), np.array([[1] * 5 + [0] * 10] * 3)
    positions = np.array([[*range(5), *[0] * 10]] * 3)

    def run(sources, targets):
        encoded, decoded = in_rows(model, sources, segments, targets, target_segments, positions)
        return encoded[:, :6], decoded[:, :5]

    found = run(sources, targets)
    other = np.where(segments == 1, sources, 3), np.where(target_segments == 1, targets, 3)
    for first, second in zip(found, run(*other)):
        np.testing.assert_array_equal(first, second)
    encoded = apply(*model, "encode", sources[:, :6])
    np.testing.assert_allclose(found[1], apply(*model, "decode", targets[:, :5], encoded), atol=1e-4)


def test_packed_equals_separate(model):
    """Also with encoder sequences of other lengths than the decoder's."""
    sources, segments = tokens(3, 10, seed=10), np.array([[1] * 6 + [2] * 4, [1] * 6 + [0] * 4, [1] * 4 + [0] * 6])
    sources[1, :6], sources[2, :4] = sources[0, :6], sources[0, 6:]

    def run(*rows):
        return in_rows(model, sources, segments, *rows)[1]

    for got, want in zip(*packed(run, 15)):
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_order_matters(model):
    ids = tokens(1, 9)
    first, second = apply(*model, "encode", ids), apply(*model, "encode", ids[:, ::-1])[:, ::-1]
    assert np.abs(first - second).max() > 1e-2


def test_config():
    assert t5().position_limit is None
    assert T5Config.family == "encoder_decoder"
    assert t5(dropout=0.1) == t5(dropout=0.1) and hash(t5()) == hash(t5())


def test_sizes_that_give_no_buckets_are_refused():
    with pytest.raises(ValueError, match="buckets: 3 are too few; set 4 or more"):
        t5(buckets=3)
    for make, exact in ((t5, 16), (OTHERS["t5_lm"], 8)):
        said = f"model.max_distance: {exact} is not above {exact}, the number of exact buckets; raise it"
        assert make(buckets=32, max_distance=exact).idle_settings() == (said,)
        assert make(buckets=32, max_distance=exact + 1).idle_settings() == ()


def test_first_weights_but_embeddings_and_routers_have_the_variance_of_init_scale():
    def network(scale):
        return Network(t5(experts=4, sparse_every=2, init_scale=scale).build())

    usual, small = jax.jit(lambda key: (network(1.0).init(key), network(0.25).init(key)))(jax.random.key(0))
    for path, x in traverse_util.flatten_dict(usual, sep="/").items():
        is_same = path.endswith(("scale", "router/kernel", "token_embed/table"))
        y = traverse_util.flatten_dict(small, sep="/")[path]
        np.testing.assert_allclose(y, x if is_same else 0.5 * x, rtol=1e-5, err_msg=path)
