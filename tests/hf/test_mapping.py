"""The mapping engine on its own: round trips, padding, and what it says of wrong files."""

import jax
import numpy as np
import pytest
from flax import traverse_util

from jaxpt.errors import UserError
from jaxpt.hf.directory import family_of
from jaxpt.hf.mapping import check_params
from jaxpt.hf.table import Row, Table
from tests.hf.states import from_hf, to_hf
from tests.models.helpers import ALL, V, drawn, whole


@pytest.fixture(scope="module", params=ALL)
def case(request):
    """(state, table, network, params) of each family."""
    network = whole(ALL[request.param]())
    table, params = family_of(network.config).table_of(network), drawn(network)
    return to_hf(params, table, network), table, network, params


def test_round_trip(case):
    state, table, network, params = case
    again = from_hf(state, table, network)

    def same(path, a, b):
        rows = jax.tree_util.keystr(path)
        if "token_embed" in rows or "masked_lm']['bias" in rows:
            a, b = a[:V], b[:V]
        elif rows == "['model']['head']['kernel']":
            a, b = a[:, :V], b[:, :V]
        np.testing.assert_array_equal(a, b)

    jax.tree_util.tree_map_with_path(same, params, again)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, again)
    assert all(name in state and np.array_equal(x, state[name]) for name, x in to_hf(again, table, network).items())


def test_padding_of_the_vocabulary_is_not_written(case):
    state, *_ = case
    assert all(256 not in x.shape for x in state.values())


def test_tied_names_are_optional(case):
    state, table, network, params = case
    once = to_hf(params, table, network, tied=False)
    tied = {name for row in table.rows for name in row.tied}
    assert set(state) - set(once) == tied
    jax.tree.map(np.testing.assert_array_equal, from_hf(once, table, network), from_hf(state, table, network))


def test_tied_tensors_that_differ_are_an_error(case):
    state, table, network, _ = case
    name = next(name for row in table.rows for name in row.tied)
    with pytest.raises(UserError, match=r"differ, but this configuration ties them"):
        from_hf({**state, name: state[name] + 1}, table, network)


def test_missing_unexpected_and_mismatched_tensors_are_errors(case):
    state, table, network, params = case
    name = next(row.theirs.format(layer=1) for row in table.rows if "{layer}" in row.theirs)
    flat = traverse_util.flatten_dict(params, sep="/")
    with pytest.raises(UserError, match=f"^weights: {name} is missing$"):
        from_hf({k: v for k, v in state.items() if k != name}, table, network)
    with pytest.raises(UserError, match=r"^weights: other\.weight not in a"):
        from_hf({**state, "other.weight": np.ones(3)}, table, network)
    with pytest.raises(UserError, match=rf"^weights: {name} has shape \(2, 2\), this configuration expects"):
        from_hf({**state, name: np.ones((2, 2))}, table, network)
    with pytest.raises(UserError, match=r"^weights: no parameter model/token_embed/table"):
        check_params({path: x for path, x in flat.items() if path != "model/token_embed/table"}, network)
    with pytest.raises(UserError, match=r"^weights: parameter extra/x is not part"):
        check_params(flat | {"extra/x": np.ones(1)}, network)
    with pytest.raises(
        UserError, match=r"^weights: model/token_embed/table has shape \(1,\), this configuration expects"
    ):
        check_params(flat | {"model/token_embed/table": np.ones(1)}, network)


def test_more_layers_than_configured_are_an_error(case):
    state, table, network, _ = case
    smaller = network.with_model(layers=1)
    with pytest.raises(UserError, match=r"not in a \w+ of this configuration"):
        from_hf(state, table, smaller)


def test_a_table_must_name_every_parameter(case):
    state, table, network, params = case
    short = Table(table.rows[1:], table.ignored)
    for call in (lambda: from_hf(state, short, network), lambda: to_hf(params, short, network)):
        with pytest.raises(UserError, match=r"no row of the table for model/token_embed/table"):
            call()


def test_buffers_of_old_files_are_ignored():
    network = whole(ALL["gpt2"]())
    table = family_of(network.config).table_of(network)
    state = to_hf(drawn(network), table, network)
    from_hf({**state, "transformer.h.0.attn.bias": np.ones((1, 1, 32, 32))}, table, network)


def test_several_parameters_share_a_tensor():
    assert Row(("a", "b"), "c").paths == ("a", "b")
    network = whole(ALL["gpt2"]())
    params = drawn(network)
    state = to_hf(params, family_of(network.config).table_of(network), network)
    block = params["model"]["decoder"]["segment_0"]["block_0"]["attention"]
    fused = state["transformer.h.1.attn.c_attn.weight"]
    for i, part in enumerate(("query", "key", "value")):
        np.testing.assert_array_equal(fused[:, 24 * i : 24 * (i + 1)], block[part]["kernel"][1])
