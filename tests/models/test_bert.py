"""What padding, packing and token types do to a BERT."""

import jax
import numpy as np
import pytest

from jaxpt.models.bert import BertConfig
from tests.models.helpers import apply, bert, made, packed, tokens


@pytest.fixture(scope="module")
def model():
    return made("bert")


def test_padding_never_changes_a_real_token(model):
    ids, segments = tokens(2, 12), np.array([[1] * 8 + [0] * 4] * 2)
    other = np.where(segments == 1, ids, tokens(2, 12, seed=5))
    first, second = (apply(*model, "encode", x, segment_ids=segments) for x in (ids, other))
    np.testing.assert_array_equal(first[:, :8], second[:, :8])
    np.testing.assert_allclose(first[:, :8], apply(*model, "encode", ids[:, :8]), atol=1e-5)


def test_packed_equals_separate(model):
    def run(ids, segments, positions):
        return apply(*model, "encode", ids, segment_ids=segments, positions=positions)

    for got, want in zip(*packed(run, 16)):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_each_token_sees_all_others(model):
    ids = tokens(1, 8)
    changed = ids.copy()
    changed[0, 7] = (ids[0, 7] + 1) % 100
    difference = apply(*model, "encode", ids) - apply(*model, "encode", changed)
    assert np.abs(difference).max(-1).min() > 1e-4


def test_token_types_and_positions_matter(model):
    ids = tokens(1, 8)
    plain = apply(*model, "encode", ids)
    np.testing.assert_array_equal(plain, apply(*model, "encode", ids, token_types=np.zeros_like(ids)))
    np.testing.assert_array_equal(plain, apply(*model, "encode", ids, positions=np.arange(8)[None]))
    assert np.abs(plain - apply(*model, "encode", ids, token_types=np.ones_like(ids))).max() > 1e-3
    assert np.abs(plain - apply(*model, "encode", ids, positions=np.arange(8)[None] + 1)).max() > 1e-3


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "albert"])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_states_of_some_positions_are_those_of_all(kind, layers):
    """Packed rows with padding, a position twice, and ranks; ALBERT's shared layers compute all and choose."""
    model = made(kind, layers=layers, **({"groups": 1, "inner_layers": 1} if kind == "albert" else {}))
    ids, segments = tokens(2, 12), np.array([[1] * 5 + [2] * 4 + [0] * 3, [1] * 12])
    options = {"segment_ids": segments, "ranks": np.array([[0, 0, 1, 2, 3] + [0] * 7] * 2)}
    at = np.array([[4, 6, 6], [0, 11, 3]])
    some, every = apply(*model, "encode", ids, **options, at_BxT=at), apply(*model, "encode", ids, **options)
    np.testing.assert_allclose(some, np.take_along_axis(every, at[..., None], axis=1), atol=1e-5)


def test_the_last_layer_computes_no_other_positions(model):
    """Feed-forward products of [positions, mlp_dim] alone after the loop over layers."""
    module, params = model
    ids, at = tokens(2, 12), np.zeros((2, 3), np.int32)
    eqns = jax.make_jaxpr(lambda ids: module.apply(params, ids, at_BxT=at, method="encode").hidden)(ids).eqns
    loop = [eqn.primitive.name for eqn in eqns].index("scan")
    wide = [eqn.outvars[0].aval.shape for eqn in eqns[loop:] if eqn.primitive.name == "dot_general"]
    assert (2, 3, 40) in wide and not [shape for shape in wide if shape == (2, 12, 40)]


def test_config():
    assert bert().position_limit == 32
    assert BertConfig.family == "encoder"
    with pytest.raises(ValueError, match="heads: 5 does not divide embed_dim 24"):
        bert(heads=5)
