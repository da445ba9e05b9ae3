"""Which names the embeddings of a T5 may have, and what that says of the projection to the vocabulary."""

import json

import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.hf import directory, load, mapping, verify
from jaxpt.hf.families.t5 import EMBEDDINGS
from jaxpt.hf.options import from_json, to_json
from jaxpt.models import stored
from tests.hf import parity
from tests.hf.states import from_hf

SIZES = {"vocab_size": 9, "d_model": 4, "d_kv": 2, "num_heads": 2, "d_ff": 6, "num_layers": 1}
SPARSE = {"num_decoder_layers": 1, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}


def opened(model_type, tensors):
    """(configuration, its missing and unexpected tensors, value of the embeddings) from tensors by name."""
    family = directory.families()[model_type]
    more = SPARSE if model_type == "switch_transformers" else {"feed_forward_proj": "gated-gelu"}
    given = SIZES | more | {"architectures": [family.classes], "model_type": model_type}
    config = from_json(family, given, tensors)
    network = family.network(config)
    body = {name: np.zeros(x.shape, x.dtype) for name, x in whole(network, family).items() if name not in tensors}
    body = {name: x for name, x in body.items() if name not in (*EMBEDDINGS, "lm_head.weight")}
    return config, from_hf({**body, **tensors}, family.table_of(network), network)["model"]


def whole(network, family):
    """Zeros under all names."""
    params = {path: np.zeros(x.shape, np.float32) for path, x in stored.stored_params(network).items()}
    return dict(mapping.tensors(params, family.table_of(network), network))


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5", "switch_transformers"])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_an_untied_head_beside_any_name_of_the_embeddings(name, model_type):
    rng = np.random.default_rng(0)
    table, head = (rng.normal(size=(9, 4)).astype(np.float32) for _ in range(2))
    config, params = opened(model_type, {name: table, "lm_head.weight": head})
    assert not config.tie_embeddings
    np.testing.assert_array_equal(params["token_embed"]["table"][:9], table)
    np.testing.assert_array_equal(params["head"]["kernel"][:, :9], head.T)
    config, params = opened(model_type, {name: table, "lm_head.weight": table})
    assert config.tie_embeddings and "head" not in params


@pytest.mark.parametrize("model_type", ["t5", "umt5"])
@pytest.mark.parametrize("keys, scaled", [
    ({}, True), ({"tie_word_embeddings": False}, False), ({"tie_word_embeddings": True}, True),
    ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
])  # fmt: skip
def test_the_scale_of_logits_is_what_the_file_says(keys, scaled, model_type):
    """Old files say it by `tie_word_embeddings`; an export says it by both keys, whatever the tensors are."""
    family = directory.families()[model_type]
    tensors = {"shared.weight": np.zeros((9, 4)), "lm_head.weight": np.ones((9, 4))}
    config = from_json(family, SIZES | keys, tensors)
    assert (config.scaled, config.tie_embeddings) == (scaled, False)
    assert family.supports(config)
    written = to_json(family, family.network(config))
    assert (written["tie_word_embeddings"], written["scale_decoder_outputs"]) == (scaled, scaled)


@pytest.mark.parametrize("model_type, keys, words", [
    ("t5", {"dense_act_fn": "gelu"}, "dense_act_fn: 'gelu' contradicts feed_forward_proj relu, which means \"relu\""),
    ("t5", {"is_gated_act": True}, "is_gated_act: true contradicts feed_forward_proj relu, which means false"),
    ("mt5", {"dense_act_fn": "gelu"}, "contradicts feed_forward_proj gated-gelu, which means \"gelu_new\""),
    ("umt5", {"dense_act_fn": ["relu"]}, "dense_act_fn: ['relu'] contradicts"),
    ("switch_transformers", {"router_dtype": "bfloat16"}, "router_dtype: 'bfloat16' is not supported, only \"float32"),
])  # fmt: skip
def test_keys_that_change_the_output_are_refused(model_type, keys, words):
    more = SPARSE if model_type == "switch_transformers" else {}
    with pytest.raises(UserError) as refused:
        from_json(directory.families()[model_type], SIZES | more | keys, {})
    assert words in str(refused.value)


def test_keys_that_repeat_the_feed_forward_are_read():
    for keys in (
        {"dense_act_fn": "relu", "is_gated_act": False},
        {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True},
        {"feed_forward_proj": "gated-silu", "dense_act_fn": "swish", "is_gated_act": None},
    ):
        from_json(directory.families()["t5"], SIZES | keys, {})


@pytest.mark.parity
@pytest.mark.parametrize("is_untied", [False, True], ids=["as made", "untied tensors"])
def test_an_old_file_of_umt5_equals_its_class(is_untied, tmp_path):
    """Older versions wrote `tie_word_embeddings: false` of the published UMT5, and no key of the scale."""
    transformers = pytest.importorskip("transformers")
    sizes = SIZES | {"vocab_size": 101, "num_decoder_layers": 1}
    model = transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**sizes))
    model = parity.randomise(parity.untie(model) if is_untied else model, 0)
    model.save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "config.json"
    keys = json.loads(file.read_text())
    del keys["scale_decoder_outputs"]
    file.write_text(json.dumps(keys | {"tie_word_embeddings": False}))
    parity.save_as("umt5", tmp_path / "ours", *load(tmp_path / "theirs"))
    for side in ("theirs", "ours"):
        assert not type(model).from_pretrained(tmp_path / side).config.scale_decoder_outputs
        found = verify.verify(tmp_path / side)
        assert all(x.relative < 1e-5 for x in found.values()), found


def test_two_tables_that_differ_are_refused():
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=(9, 4)).astype(np.float32) for name in EMBEDDINGS[1:]}
    with pytest.raises(UserError, match=r"decoder\.embed_tokens\.weight and shared\.weight differ"):
        opened("t5", tensors | {"lm_head.weight": tensors[EMBEDDINGS[1]]})
