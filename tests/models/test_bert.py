"""What padding, packing and token types do to a BERT."""

import functools
import math

import jax
import numpy as np
import pytest

from jaxpt.models.bert import BertConfig
from tests import grids
from tests.models.helpers import apply, bert, made, packed, tokens

pytestmark = pytest.mark.gpu


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
    ids = np.repeat(tokens(1, 8), 2, axis=0)
    ids[1, 7] = (ids[0, 7] + 1) % 100
    one, changed = apply(*model, "encode", ids)
    assert np.abs(one - changed).max(-1).min() > 1e-4


def test_token_types_and_positions_matter(model):
    ids, row = tokens(2, 8), np.arange(8)
    plain = apply(*model, "encode", ids)

    def given(types, positions):
        rows = {"token_types": types, "positions": positions}
        return apply(*model, "encode", ids, **{name: np.broadcast_to(x, (2, 8)) for name, x in rows.items()})

    np.testing.assert_array_equal(plain, given(0, row))
    assert np.abs(plain - given(1, row)).max() > 1e-3
    assert np.abs(plain - given(0, row + 1)).max() > 1e-3


KINDS = ("bert", "roberta", "distilbert", "electra", "albert")
DEPTHS = [(kind, layers) for layers in (1, 2, 4) for kind in KINDS]


@pytest.mark.parametrize(
    ("kind", "layers"), grids.cases(DEPTHS, ("bert", 1), ("bert", 4), ("electra", 2), ("albert", 2))
)
def test_states_of_some_positions_are_those_of_all(kind, layers):
    """Packed rows with padding, a position twice, and ranks; ALBERT's shared layers compute all and choose."""
    module, variables = made(kind, layers=layers, **({"groups": 1, "inner_layers": 1} if kind == "albert" else {}))
    ids, segments = tokens(2, 12), np.array([[1] * 5 + [2] * 4 + [0] * 3, [1] * 12])
    ranks, at = np.array([[0, 0, 1, 2, 3] + [0] * 7] * 2), np.array([[4, 6, 6], [0, 11, 3]])

    @jax.jit
    def both(variables):
        run = functools.partial(module.apply, variables, ids, segment_ids=segments, ranks=ranks, method="encode")
        return run(at_BxT=at).hidden, run().hidden

    some, every = both(variables)
    np.testing.assert_allclose(some, np.take_along_axis(np.asarray(every), at[..., None], axis=1), atol=1e-5)


def test_the_last_layer_computes_no_other_positions(model):
    """Feed-forward products of [positions, mlp_dim] alone after the loop over layers."""
    module, params = model
    ids, at = tokens(2, 12), np.zeros((2, 3), np.int32)
    eqns = jax.make_jaxpr(lambda ids: module.apply(params, ids, at_BxT=at, method="encode").hidden)(ids).eqns
    loop = [eqn.primitive.name for eqn in eqns].index("scan")
    shapes = [eqn.outvars[0].aval.shape for eqn in eqns[loop:] if eqn.primitive.name == "dot_general"]
    rows = {math.prod(shape[:-1]) for shape in shapes if shape[-1] == 40}
    assert rows == {2 * 3}


def test_config():
    assert bert().position_limit == 32
    assert BertConfig.family == "encoder"
    with pytest.raises(ValueError, match="heads: 5 does not divide embed_dim 24"):
        bert(heads=5)
