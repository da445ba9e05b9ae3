"""The architectures beside BERT, GPT-2 and T5: axes, gradients, padding, packing, and what is particular to each."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models.deberta import DisentangledAttention
from jaxpt.models.layers import PARAMETER_AXES
from jaxpt.models.mask import Mask
from jaxpt.models.network import Network
from jaxpt.models.position_terms import relative_rows
from tests import grids
from tests.models.helpers import EVERY, OF_THEIR_OWN, OTHERS, SHORTER, V, apply, made, packed, tokens

METHOD = {"encoder": "encode", "decoder": "decode"}
SINGLE = [name for name, make in OTHERS.items() if make().family != "encoder_decoder"]


def close(a, b, atol=2e-5):
    np.testing.assert_allclose(a, b, atol=atol * max(1.0, float(np.abs(b).max())))


@pytest.mark.parametrize("name", OTHERS)
def test_parameters_have_known_axes_and_count_without_padding(name):
    model = OTHERS[name]().build()
    leaves = jax.tree_util.tree_leaves_with_path(
        Network(model).abstract()["model"], is_leaf=lambda x: hasattr(x, "names")
    )
    shared = name == "albert"
    for path, box in leaves:
        assert len(box.names) == box.value.ndim and set(box.names) <= set(PARAMETER_AXES), path
        assert len(set(box.names)) == len(box.names), path
        stacked = any(getattr(key, "key", "").startswith("segment_") for key in path) and not shared
        assert (box.names[0] == "layers") == stacked, path
    padded = sum(x.size for x in jax.tree.leaves(Network(model).shapes()["model"]))
    assert Network(model).count_params() < padded


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(OTHERS, *(name for name in OF_THEIR_OWN if name in OTHERS)))
def test_every_parameter_has_a_gradient(name):
    model, variables = made(name, **SHORTER.get(name, {}))
    shapes = jax.eval_shape(lambda v: model.apply(v, tokens(2, 8)), variables)
    weights = jax.tree.map(lambda x: np.random.default_rng(0).normal(size=x.shape), shapes)

    def total(v):
        return sum((w * x).sum() for w, x in zip(*map(jax.tree.leaves, (weights, model.apply(v, tokens(2, 8))))))

    gradient = jax.jit(jax.grad(total))(variables)["params"]
    for path, g in jax.tree_util.tree_leaves_with_path(gradient):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert name.endswith("key/bias") or float(jnp.abs(g).max()) > 0, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    grids.cases(SINGLE, "albert", "deberta_v2", "gpt", "llama", "modernbert", "roberta", "t5_lm", "xlnet"),
)
def test_packed_equals_separate(name):
    model, variables = made(name)

    def run(ids, segments, positions):
        return apply(model, variables, METHOD[model.config.family], ids, segment_ids=segments, positions=positions)

    for got, want in zip(*packed(run, 16)):
        close(got, want)


def test_a_long_text_does_not_change_the_rotary_positions_of_its_neighbour():
    """Of texts of 5 and 7 tokens the second alone is longer than the original training."""
    factors = {"rope_short_factors": (1.0, 1.0), "rope_long_factors": (4.0, 4.0), "rope_original_positions": 6}
    model, variables = made("eurobert", rope_scaling="longrope", **factors)

    def run(ids, segments, positions):
        return apply(model, variables, "encode", ids, segment_ids=segments, positions=positions)

    for got, want in zip(*packed(run, 16)):
        close(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(["bart", "mbart"], "bart"))
def test_padding_never_changes_a_real_token(name):
    model, variables = made(name)
    ids, segments = tokens(2, 12), np.array([[1] * 8 + [0] * 4] * 2)
    other = np.where(segments == 1, ids, tokens(2, 12, seed=5))
    targets = tokens(2, 6, seed=7)

    @jax.jit
    def run(v, ids, segments):
        encoded = model.apply(v, ids, segment_ids=segments, method="encode").hidden
        return model.apply(v, targets, encoded, encoder_segment_ids=segments, method="decode").hidden

    first, second = (run(variables, x, segments) for x in (ids, other))
    np.testing.assert_array_equal(first, second)
    close(first, run(variables, ids[:, :8], segments[:, :8]))


def test_eurobert_refuses_keys_that_it_does_not_use():
    with pytest.raises(ValueError, match="logit_cap: eurobert has None alone; leave it out"):
        OTHERS["eurobert"](logit_cap=2.0)


def test_a_convolution_has_a_centre():
    with pytest.raises(ValueError, match="convolution: 2 is even; set an odd width"):
        OTHERS["deberta_v2"](convolution=2)


def test_deberta_names_what_it_does_not_use():
    assert OTHERS["deberta_v2"](convolution_activation="gelu").idle_settings() == ()
    said = "model.convolution_activation: has no effect without convolution; remove it"
    assert OTHERS["deberta"](convolution_activation="gelu").idle_settings() == (said,)
    with pytest.raises(ValueError, match="buckets: 1 has no exact distances; set 2 or more, or null"):
        OTHERS["deberta"](buckets=1)


@pytest.mark.gpu
def test_a_window_ends():
    """Two layers of windows of 3 see 4 tokens back, and no further."""
    model, variables = made("mistral")
    ids = tokens(1, 12)
    changed = ids.copy()
    changed[0, 2] = (ids[0, 2] + 1) % V
    difference = np.abs(apply(model, variables, "decode", ids) - apply(model, variables, "decode", changed)).max(-1)[0]
    assert (difference[2:7] > 1e-5).all() and (np.delete(difference, range(2, 7)) == 0).all()


@pytest.mark.gpu
def test_a_prefix_is_seen_from_both_sides():
    model, variables = made("t5_lm")
    ids = tokens(1, 8)
    changed = ids.copy()
    changed[0, 3] = (ids[0, 3] + 1) % V
    for prefix, seen in ((np.arange(8)[None] < 5, [0, 1, 2, 3, 4, 5, 6, 7]), (np.arange(8)[None] < 3, [3, 4, 5, 6, 7])):
        outputs = [apply(model, variables, "decode", x, prefix=prefix) for x in (ids, changed)]
        assert np.flatnonzero(np.abs(outputs[0] - outputs[1]).max(-1)[0] > 1e-6).tolist() == seen


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_both_sides_drop_other_embeddings(name):
    model, variables = made(name, dropout=0.5)
    draw = functools.partial(model.apply, variables, method="embed", rngs={"dropout": jax.random.key(0)})
    encoder, decoder = jax.jit(lambda ids: [draw(side, ids, None) == 0 for side in ("encoder", "decoder")])(
        tokens(1, 8)
    )
    assert 0.3 < np.mean(encoder != decoder) < 0.7


def test_shared_layers_are_counted_once():
    """The decoder adds its cross-attention and its norm, its position bias and its final norm."""
    own, shared = (Network(EVERY[name]().build()).count_params() for name in ("t5", "t5_shared"))
    block = Network(EVERY["t5"]().build()).shapes()["model"]["encoder"]["segment_0"]["block_0"]
    assert own - shared == sum(x.size for x in jax.tree.leaves(block))


@pytest.mark.parametrize("name", grids.cases(EVERY, *OF_THEIR_OWN))
def test_hidden_states_of_all_layers_are_there_for_the_asking(name):
    model, variables = made(name)
    ids, family = tokens(2, 8), model.config.family

    def outputs(params, layers):
        bound = Network(model).bind({"model": params})
        if family == "encoder_decoder":
            encoded = bound.encode(ids, layers=layers)
            return encoded, bound.decode(ids, encoded.hidden, layers=layers)
        return ((bound.decode if family == "decoder" else bound.encode)(ids, layers=layers),)

    depths = {"albert": (8,), "bart": (2, 1), "mbart": (2, 1), "modernbert": (8,), "modernbert_decoder": (8,)}.get(
        name, (2, 2)
    )
    found = jax.eval_shape(functools.partial(outputs, layers=True), variables["params"])
    assert [x.layers.shape for x in found] == [(n + 1, 2, 8, 24) for n in depths[: len(found)]]
    assert all(x.cache is None and not x.aux and (x.memory is None) == (name != "xlnet") for x in found)
    if name in ("bert", "t5", "llama", "xlnet"):  # one of each family
        without = jax.eval_shape(functools.partial(outputs, layers=False), variables["params"])
        assert all(x.layers is None for x in without)


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(["gpt2", "modernbert", "deberta_v2"], "gpt2", "deberta_v2"))
def test_the_states_of_all_layers_have_gradients_and_end_in_the_hidden_ones(name):
    model, variables = made(name)
    run = "decode" if name == "gpt2" else "encode"

    def total(params):
        output = getattr(Network(model).bind({"model": params}), run)(tokens(2, 8), layers=True)
        return output.layers[1].sum() + jnp.square(output.layers[1]).sum(), output

    gradient, output = jax.jit(jax.grad(total, has_aux=True))(variables["params"])
    np.testing.assert_array_equal(output.layers[-1], output.hidden)
    stack = gradient["decoder" if name == "gpt2" else "encoder"]
    by_layer = [jnp.abs(x).reshape(len(x), -1).max(1) for x in jax.tree.leaves(stack)]
    assert jnp.abs(gradient["token_embed"]["table"]).max() > 0
    if name == "gpt2":  # the second layer comes after the states that were looked at
        assert all(g[0] > 0 or g[0] == 0 == g[1] for g in by_layer) and not any(g[1] for g in by_layer)
    assert not any(jnp.any(x) for x in jax.tree.leaves(gradient.get("final_norm", {})))


@pytest.mark.gpu
def test_groups_of_layers_run_in_order():
    """ALBERT's 4 layers in 2 groups of 2 inner layers are 8 blocks, the first group's pair twice, then the second's."""
    _, variables = made("albert")
    params = variables["params"]["encoder"]
    assert set(params) == {"segment_0", "segment_1"} and set(params["segment_0"]) == {"block_0", "block_1"}
    assert params["segment_0"]["block_0"]["feed_forward"]["up"]["kernel"].shape == (24, 40)


@pytest.mark.gpu
def test_the_memory_goes_on():
    """Two halves, the second with the first's memory, equal a pass over the whole in which no token looks ahead."""
    model, variables = made("xlnet")
    ids = tokens(2, 10)
    order = np.tile(np.arange(10, dtype=np.int32), (2, 1))

    @jax.jit
    def run(variables, ids):
        streams = functools.partial(model.apply, variables, method="streams")
        first = streams(ids[:, :6], ranks=order[:, :6])
        second = streams(ids[:, 6:], ranks=order[:, :4], memory=first.memory)
        return [output.hidden.content_BxLxD for output in (streams(ids, ranks=order), first, second)]

    whole, first, second = run(variables, ids)
    close(first, whole[:, :6])
    close(second, whole[:, 6:])


def test_a_predicted_token_does_not_see_itself():
    model, variables = made("xlnet")
    ids, order, targets = tokens(1, 8), np.array([[3, 0, -1, 2, -1, 1, 4, -1]]), np.array([[0, 1, 3, 5, 6]])

    query = apply(model, variables, "streams", ids, ranks=order, targets=targets)[1]
    for at, rank in ((0, 3), (5, 1), (2, -1)):
        changed = ids.copy()
        changed[0, at] = (ids[0, at] + 1) % V
        other = apply(model, variables, "streams", changed, ranks=order, targets=targets)[1]
        moved = np.abs(query - other).max(-1)[0] > 1e-6
        np.testing.assert_array_equal(moved, order[0, targets[0]] > rank)


@pytest.mark.slow
def test_the_mask_decoder_runs_the_last_layer_twice():
    plain, _ = made("deberta")
    model, variables = made("deberta", mask_decoder=True)
    extra = Network(model).count_params() - Network(plain).count_params()
    assert extra == 32 * 24  # the table of absolute positions alone
    hidden = apply(model, variables, "encode", tokens(2, 8))
    assert hidden.shape == (2, 8, 24)
    moved = apply(model, variables, "encode", tokens(2, 8), positions=np.arange(1, 9)[None].repeat(2, 0))
    assert float(jnp.abs(hidden - moved).max()) > 1e-3


TERMS = [{}, {"position_to_content": False}, {"content_to_position": False}]


@pytest.mark.gpu
def test_disentangled_attention_of_a_few_queries_is_a_slice_of_the_whole():
    rng = np.random.default_rng(0)
    x, relative = rng.normal(size=(2, 10, 24)), rng.normal(size=(8, 24)).astype(np.float32)

    @jax.jit
    def run(at):
        found = []
        for terms in TERMS:
            attention = DisentangledAttention(EVERY["deberta"](**terms))
            shapes = nn.unbox(
                jax.eval_shape(functools.partial(attention.init, positional=relative), jax.random.key(0), x, Mask())
            )
            variables = jax.tree.map(lambda x: 0.1 * rng.normal(size=x.shape).astype(np.float32), shapes)
            apply = functools.partial(attention.apply, variables, memory_BxSxD=x, positional=jnp.asarray(relative))
            found.append((apply(x[:, 5:8], Mask(offset=at))[0], apply(x, Mask())[0]))
        return found

    for part, whole in run(5):
        close(part, whole[:, 5:8])


def test_relative_rows():
    at = np.arange(300)
    rows = relative_rows(at[:, None] - at, 256, 256, 512)
    assert rows[5, 5] == 256 and rows[0, 100] == 156 and rows[100, 0] == 356  # up to k/2 exact
    assert rows[299, 0] == 256 + 127 + np.ceil(np.log(299 / 128) / np.log(511 / 128) * 127) + 1
    np.testing.assert_array_equal(rows - 256, -(rows.T - 256))
