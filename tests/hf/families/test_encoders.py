"""EuroBERT, CamemBERT, mmBERT and Ettin's decoder beside their classes in transformers, of odd sizes."""

import functools

import numpy as np
import pytest
from flax import traverse_util

from jaxpt.hf import load, save
from tests.hf import parity

pytestmark = [pytest.mark.parity, pytest.mark.slow]

IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
SIZES = IDS | {
    "vocab_size": 101, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
    "max_position_embeddings": 64,
}  # fmt: skip
MODERN = SIZES | {"cls_token_id": 1, "sep_token_id": 1, "local_attention": 6}
OTHER_ROPES = {
    kind: {"rope_type": "default", "rope_theta": theta}
    for kind, theta in (("full_attention", 50.0), ("sliding_attention", 20.0))
}
CASES = {  # name: (class, sizes and options)
    "eurobert, grouped queries": (
        "EuroBertForMaskedLM",
        SIZES | {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "rms_norm_eps": 1e-3},
    ),
    "eurobert, biases, scaled positions, tied": (
        "EuroBertForMaskedLM",
        SIZES | {"num_hidden_layers": 1, "head_dim": 8, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu",
                 "tie_word_embeddings": True,
                 "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
    ),
    "eurobert, without head": ("EuroBertModel", SIZES | {"num_key_value_heads": 1}),
    "camembert": ("CamembertForMaskedLM", SIZES | {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "mmbert": ("ModernBertForMaskedLM", MODERN | {"rope_parameters": OTHER_ROPES}),
    "modernbert-decoder": ("ModernBertDecoderForCausalLM", MODERN | {"num_hidden_layers": 7}),
    "modernbert-decoder, biases, no bias of the vocabulary": (
        "ModernBertDecoderForCausalLM",
        MODERN | {
            "num_attention_heads": 6, "norm_bias": True, "attention_bias": True, "mlp_bias": True,
            "classifier_bias": True, "decoder_bias": False, "hidden_activation": "silu",
            "classifier_activation": "relu", "rope_parameters": OTHER_ROPES, "local_attention": 4,
        },
    ),
}  # fmt: skip


def make(name):
    """Their model of a case."""
    transformers = pytest.importorskip("transformers")
    architecture = getattr(transformers, CASES[name][0])
    return architecture(architecture.config_class(**CASES[name][1]))


@pytest.mark.parametrize("name", CASES)
def test_equals_their_class(name, tmp_path):
    parity.check(functools.partial(make, name), tmp_path, (0,), forward=1e-5, gradient=1e-4)


@pytest.mark.parametrize("name", ["eurobert, grouped queries", "modernbert-decoder"])
def test_sharded_files_are_bit_equal(name, tmp_path):
    parity.randomise(make(name), 0).save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len([*(tmp_path / "theirs").glob("*.safetensors")]) > 1
    network, params = load(tmp_path / "theirs")
    save(tmp_path / "ours", network, params, shard_bytes=15_000)
    assert len([*(tmp_path / "ours").glob("*.safetensors")]) > 1
    again, same = load(tmp_path / "ours")
    before, after = (traverse_util.flatten_dict(tree, sep="/") for tree in (params, same))
    assert again.config == network.config and before.keys() == after.keys()
    for path, x in before.items():
        np.testing.assert_array_equal(after[path], x, path)
