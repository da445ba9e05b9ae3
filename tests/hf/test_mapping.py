"""The mapping engine on its own: round trips, padding, and what it says of wrong files."""

import jax
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.hf import bert, gpt2, t5
from jaxpt.hf.mapping import Row, Table, from_hf, to_hf
from tests.models.helpers import ALL, V, made

TABLES = {"bert": bert.table, "gpt2": gpt2.table, "t5": t5.table, "t5_old": t5.table}


@pytest.fixture(scope="module", params=ALL)
def case(request):
    """(state, table, config, params) of each family."""
    model, variables = made(request.param)
    table = TABLES[request.param](model.config)
    return to_hf(variables["params"], table, model.config), table, model.config, variables["params"]


def test_round_trip(case):
    state, table, config, params = case
    again = from_hf(state, table, config)

    def same(path, a, b):
        rows = jax.tree_util.keystr(path)
        if "token_embed" in rows or "mlm_head']['bias" in rows:
            a, b = a[:V], b[:V]
        elif rows == "['head']['kernel']":
            a, b = a[:, :V], b[:, :V]
        np.testing.assert_array_equal(a, b)

    jax.tree_util.tree_map_with_path(same, params, again)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, again)
    assert all(name in state and np.array_equal(x, state[name]) for name, x in to_hf(again, table, config).items())


def test_padding_of_the_vocabulary_is_not_written(case):
    state, *_ = case
    assert all(256 not in x.shape for x in state.values())


def test_tied_names_are_optional(case):
    state, table, config, params = case
    once = to_hf(params, table, config, tied=False)
    tied = {name for row in table.rows for name in row.tied}
    assert set(state) - set(once) == tied
    jax.tree.map(np.testing.assert_array_equal, from_hf(once, table, config), from_hf(state, table, config))


def test_tied_tensors_that_differ_are_an_error(case):
    state, table, config, _ = case
    name = next(name for row in table.rows for name in row.tied)
    with pytest.raises(UserError, match=r"differ, this configuration ties them"):
        from_hf({**state, name: state[name] + 1}, table, config)


def test_missing_left_over_and_misshapen_tensors_are_errors(case):
    state, table, config, params = case
    name = next(row.theirs.format(layer=1) for row in table.rows if "{layer}" in row.theirs)
    with pytest.raises(UserError, match=f"^weights: {name} is missing$"):
        from_hf({k: v for k, v in state.items() if k != name}, table, config)
    with pytest.raises(UserError, match=r"^weights: other\.weight not known"):
        from_hf({**state, "other.weight": np.ones(3)}, table, config)
    with pytest.raises(UserError, match=rf"^weights: {name} has shape \(2, 2\), this configuration wants"):
        from_hf({**state, name: np.ones((2, 2))}, table, config)
    with pytest.raises(UserError, match=r"^weights: no parameter token_embed/table"):
        to_hf({k: v for k, v in params.items() if k != "token_embed"}, table, config)
    with pytest.raises(UserError, match=r"^weights: parameter extra/x is not part"):
        to_hf({**params, "extra": {"x": np.ones(1)}}, table, config)


def test_more_layers_than_configured_are_an_error(case):
    state, table, config, _ = case
    smaller = config.model_copy(update={"layers": 1})
    with pytest.raises(UserError, match=r"not known in a"):
        from_hf(state, table, smaller)


def test_a_table_must_name_every_parameter(case):
    state, table, config, params = case
    short = Table(table.rows[1:], table.ignored)
    for call in (lambda: from_hf(state, short, config), lambda: to_hf(params, short, config)):
        with pytest.raises(UserError, match=r"no row of the table for token_embed/table"):
            call()


def test_buffers_of_old_files_are_ignored():
    model, variables = made("gpt2")
    table = gpt2.table(model.config)
    state = to_hf(variables["params"], table, model.config)
    from_hf({**state, "transformer.h.0.attn.bias": np.ones((1, 1, 32, 32))}, table, model.config)


def test_several_parameters_share_a_tensor():
    assert Row(("a", "b"), "c").paths == ("a", "b")
    model, variables = made("gpt2")
    state = to_hf(variables["params"], gpt2.table(model.config), model.config)
    block = variables["params"]["decoder"]["segment_0"]["block_0"]["attention"]
    fused = state["transformer.h.1.attn.c_attn.weight"]
    for i, part in enumerate(("query", "key", "value")):
        np.testing.assert_array_equal(fused[:, 24 * i : 24 * (i + 1)], block[part]["kernel"][1])
