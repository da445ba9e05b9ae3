"""Tables and keys of the decoders, without torch: fused layouts, heads' norms, old and new keys of rotary positions."""

import jax
import numpy as np
import pytest

from jaxpt import hf
from jaxpt.config import LoraConfig
from jaxpt.errors import UserError
from jaxpt.hf import directory, files, mapping, peft
from jaxpt.hf.options import from_json, to_json
from jaxpt.models.decoder_only import DecoderOnlyConfig
from tests.hf.test_directory import AS_READ, fresh

SIZES = {"vocab_size": 51, "layers": 2, "embed_dim": 24, "heads": 6, "mlp_dim": 10, "max_positions": 32, **AS_READ}
LAYER_NORM = {"norm": "layer", "gated": False, "activation": "gelu"}
BIASED = LAYER_NORM | {"attention_bias": True, "mlp_bias": True}
# {name: (model_type, our fields)}
MODELS = {
    "stablelm": ("stablelm", {"norm": "layer", "qk_norm": "per_head", "qkv_bias": True, "kv_heads": 2,
                              "rotary_share": 0.5, "parallel": "one_norm"}),
    "gpt_neox": ("gpt_neox", BIASED | {"rotary_share": 0.5, "parallel": "two_norms"}),
    "bloom": ("bloom", BIASED | {"activation": "gelu_tanh", "positions": "alibi", "embed_norm": True,
                                 "tie_embeddings": True, "mlp_dim": 96}),
    "falcon, groups": ("falcon", LAYER_NORM | {"kv_heads": 2, "parallel": "two_norms"}),
    "falcon, one key head": ("falcon", LAYER_NORM | {"kv_heads": 1, "parallel": "one_norm", "tie_embeddings": True}),
    "falcon, alibi": ("falcon", BIASED | {"kv_heads": 6, "positions": "alibi_bfloat16"}),
    "xglm": ("xglm", BIASED | {"positions": "sinusoids", "scale_embeddings": True, "tie_embeddings": True}),
    "llama": ("llama", {}),
    "mistral": ("mistral", {"window": 5}),
}  # fmt: skip


def written(name, path):
    """(network, parameters, {their name: array}) of one of the models, as saved."""
    network, params = fresh(DecoderOnlyConfig(**SIZES | MODELS[name][1]))
    hf.save(path, network, params)
    return network, params, {key: np.array(x) for key, x in files.Tensors(path).items()}


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name, tmp_path):
    network, params, _ = written(name, tmp_path)
    assert directory.family_of(network.config).model_type == MODELS[name][0]
    again, loaded = hf.load(tmp_path)
    fields = dict(network.config) | {"kind": again.config.kind}
    changed = {key: x for key, x in dict(again.config).items() if x != fields[key]}
    assert changed in ({}, {"kv_heads": 6}, {"kv_heads": 6, "head_dim": 4})
    jax.tree.map(np.testing.assert_array_equal, params, loaded)


@pytest.mark.parametrize("name, groups, theirs", [
    ("gpt_neox", 6, "gpt_neox.layers.1.attention.query_key_value"),
    ("falcon, groups", 2, "transformer.h.1.self_attention.query_key_value"),
    ("falcon, one key head", 1, "transformer.h.1.self_attention.query_key_value"),
    ("falcon, alibi", 6, "transformer.h.1.self_attention.query_key_value"),
])  # fmt: skip
def test_queries_keys_and_values_stand_by_key_head(name, groups, theirs, tmp_path):
    _, params, tensors = written(name, tmp_path)
    attention = params["model"]["decoder"]["segment_0"]["block_0"]["attention"]
    rows = []
    for group in range(groups):
        for part in ("query", "key", "value"):
            heads = attention[part]["kernel"][1].T.reshape(groups, -1, 4, 24)  # of the groups: heads of a width of 4
            rows += [*heads[group].reshape(-1, 24)]
    np.testing.assert_array_equal(tensors[f"{theirs}.weight"], rows)


def test_each_head_has_its_norm(tmp_path):
    _, params, tensors = written("stablelm", tmp_path)
    attention = params["model"]["decoder"]["segment_0"]["block_0"]["attention"]
    for head in range(2):
        name = f"model.layers.1.self_attn.k_layernorm.norms.{head}.weight"
        np.testing.assert_array_equal(tensors[name], attention["key_norm"]["scale"][1].reshape(2, 4)[head])


def test_a_low_rank_adapter_of_fused_heads(tmp_path):
    """B's rows stand as those of the matrix: the product is the table's image of ours, and it is read back."""
    network, params, _ = written("falcon, groups", tmp_path / "base")
    rng, prefix = np.random.default_rng(0), "model/decoder/segment_0/block_0/attention"
    flat = {f"{prefix}/{part}/kernel": params["model"]["decoder"]["segment_0"]["block_0"]["attention"][part]["kernel"]
            for part in ("query", "value")}  # fmt: skip
    factors = {
        path: peft.Factors(np.ones(2, bool), *(rng.normal(size=shape).astype(np.float32) for shape in (
            (2, 24, 3), (2, 3, kernel.shape[-1]))))
        for path, kernel in flat.items()
    }  # fmt: skip
    (tmp_path / "adapter").mkdir()
    settings = LoraConfig(targets=(*factors,), rank=3, alpha=3.0)
    peft.write(tmp_path / "adapter", network, settings, factors, {}, {})
    table = directory.family_of(network.config).table_of(network)
    entry = next(x for x in mapping.tensors_of(table, network) if "query_key_value" in x.name and x.index == 1)
    deltas = [factors[path].a[1] @ factors[path].b[1] if path in factors else np.zeros((24, 8)) for path in
              entry.row.paths]  # fmt: skip
    saved = files.Tensors(tmp_path / "adapter", (peft.WEIGHTS,))
    a, b = (saved[f"{peft.PREFIX}{entry.module}.lora_{x}.weight"] for x in "AB")
    np.testing.assert_allclose((b @ a).T, entry.joined(deltas), rtol=1e-4, atol=1e-5)
    found = peft.read(tmp_path / "adapter", network).factors
    assert set(found) == set(factors)
    for path, x in factors.items():
        np.testing.assert_allclose(found[path].a @ found[path].b, x.a @ x.b, rtol=1e-4, atol=1e-5)


# ---- keys -----------------------------------------------------------------------------------------------------------

YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
# (model_type, new keys, old keys, our fields)
SPELLINGS = [
    ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 50.0, **YARN}},
     {"rope_theta": 50.0, "rope_scaling": {"type": "yarn", **YARN}},
     {"rope_scaling": "yarn", "rope_theta": 50.0, "rope_factor": 4.0, "rope_original_positions": 64}),
    ("qwen3", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10_000.0, **YARN}},
     {"rope_scaling": {"rope_type": "yarn", **YARN}}, {"rope_scaling": "yarn", "rope_theta": 10_000.0}),
    ("olmo3", {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 7.0, **YARN}}},
     {"rope_theta": 7.0, "rope_scaling": {"rope_type": "yarn", **YARN}},
     {"rope_theta": 7.0, "rope_scaling": "yarn", "other_rope_theta": 500_000.0, "other_rope": "unscaled"}),
    ("gemma3_text", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5.0},
                                         "sliding_attention": {"rope_type": "default", "rope_theta": 3.0}}},
     {"rope_theta": 5.0, "rope_local_base_freq": 3.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
     {"rope_theta": 5.0, "other_rope_theta": 3.0, "rope_factor": 8.0}),
    ("phi3", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5,
                                  "short_factor": [1.0] * 24, "long_factor": [2.0] * 24}},
     {"partial_rotary_factor": 0.5,
      "rope_scaling": {"type": "su", "short_factor": [1.0] * 24, "long_factor": [2.0] * 24}},
     {"rotary_share": 0.5, "rope_scaling": "longrope", "rope_original_positions": 4096, "rope_factor": 1.0}),
    ("gpt_neox", {"rope_parameters": {"rope_theta": 9.0, "partial_rotary_factor": 0.5}},
     {"rotary_emb_base": 9.0, "rotary_pct": 0.5}, {"rope_theta": 9.0, "rotary_share": 0.5}),
    ("stablelm", {"rope_parameters": {"rope_theta": 9.0, "partial_rotary_factor": 0.5}},
     {"rope_theta": 9.0, "partial_rotary_factor": 0.5}, {"rope_theta": 9.0, "rotary_share": 0.5}),
    ("bloom", {"hidden_size": 96, "n_layer": 3, "n_head": 4},
     {"n_embed": 96, "num_hidden_layers": 3, "num_attention_heads": 4}, {"embed_dim": 96, "mlp_dim": 384, "layers": 3}),
]  # fmt: skip


@pytest.mark.parametrize("model_type, new, old, fields", SPELLINGS, ids=[row[0] for row in SPELLINGS])
def test_old_and_new_keys_say_the_same(model_type, new, old, fields):
    family = directory.families()[model_type]
    configs = [from_json(family, {"model_type": model_type, **keys}, {}) for keys in (new, old)]
    assert configs[0] == configs[1]
    assert {key: getattr(configs[0], key) for key in fields} == fields


def test_longrope_of_any_family():
    keys = {"head_dim": 64, "max_position_embeddings": 128, "original_max_position_embeddings": 32}
    family = directory.families()["llama"]
    config = from_json(family, keys | {"rope_scaling": {"rope_type": "longrope", **LONG}}, {})
    assert (config.rope_factor, config.rope_original_positions, config.rope_long_factors) == (4.0, 32, (2.0,) * 32)


def test_the_amplitude_of_two_scales():
    """0.1 · m · ln(factor) + 1, of mscale by that of mscale_all_dim."""
    keys = {"rope_parameters": {"rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.5}}
    config = from_json(directory.families()["llama"], keys, {})
    np.testing.assert_allclose(config.rope_amplitude, (1 + 0.1 * np.log(4)) / (1 + 0.05 * np.log(4)))
    assert config.rope_of("main").magnitude == config.rope_amplitude


LINEAR = {"rope_type": "linear", "factor": 8.0}
DEFAULT = {"rope_type": "default", "rope_theta": 10_000.0}
# (model_type, keys, words of the message)
CONTRADICTIONS = [
    ("llama", {"rope_scaling": LINEAR, "rope_parameters": DEFAULT},
     "rope_scaling and rope_parameters differ: rope_type is 'linear' and 'default'; transformers reads rope_scaling"),
    ("llama", {"rope_scaling": LINEAR, "rope_parameters": {**LINEAR, "factor": 4.0}}, "factor is 8.0 and 4.0"),
    ("llama", {"rope_scaling": LINEAR, "rope_parameters": {**LINEAR, "rope_theta": 5.0}}, "rope_theta is 10000.0 and"),
    ("phi3", {"rope_scaling": {"type": "su", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
              "rope_parameters": DEFAULT}, "rope_type is 'longrope' and 'default'"),
    ("gemma3_text", {"rope_scaling": LINEAR, "rope_parameters": {"full_attention": DEFAULT}},
     "rope_scaling and rope_parameters differ: rope_type is 'linear' and 'default'"),
    ("gemma3_text", {"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters.rope_theta: 5.0 is not read"),
    ("olmo3", {"rope_parameters": {"rope_type": "yarn", **YARN}}, "rope_parameters.rope_type: 'yarn' is not read"),
    ("olmo3", {"rope_parameters": {"full_attention": {"rope_theta": 5.0}, "rope_theta": 7.0}},
     "rope_parameters.rope_theta: 7.0 is not read by transformers beside the kinds of layers"),
    ("gpt_neox", {"rope_theta": 5.0}, "rope_theta: 5.0 is not read by transformers, which takes rotary_emb_base"),
    ("gpt_neox", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not read"),
    ("gemma3_text", {"_sliding_window_pattern": 2}, "_sliding_window_pattern: 2 is not read by transformers; set "),
    ("llama", {"original_max_position_embeddings": 32, "rope_scaling": {"rope_type": "longrope", **LONG}},
     "max_position_embeddings: is missing; rope_type longrope needs it, or rope_parameters.factor"),
]  # fmt: skip


@pytest.mark.parametrize("model_type, keys, words", CONTRADICTIONS)
def test_keys_that_transformers_reads_otherwise_are_refused(model_type, keys, words):
    with pytest.raises(UserError) as refused:
        from_json(directory.families()[model_type], keys, {})
    assert words in str(refused.value)


# (model_type, keys with both spellings, our fields)
BOTH = [
    ("llama", {"rope_theta": 5.0, "rope_scaling": {"type": "yarn", **YARN}, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 5.0, "beta_fast": 32.0, **YARN}}, {"rope_theta": 5.0, "rope_factor": 4.0}),
    ("llama", {"rope_scaling": {}, "rope_parameters": LINEAR}, {"rope_factor": 8.0}),
    ("gemma3_text", {"rope_scaling": LINEAR, "rope_parameters": {"full_attention": LINEAR, "rope_type": "linear"}},
     {"rope_factor": 8.0}),
    ("gemma3_text", {"layer_types": ["full_attention"] * 26, "_sliding_window_pattern": 2}, {"pattern": ("main",)}),
    ("gpt_neox", {"rope_theta": 9.0, "rotary_emb_base": 9.0, "rotary_pct": 0.5, "partial_rotary_factor": 0.5},
     {"rope_theta": 9.0, "rotary_share": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize("model_type, keys, fields", BOTH)
def test_keys_that_say_the_same_twice_are_read(model_type, keys, fields):
    config = from_json(directory.families()[model_type], keys, {})
    assert {key: getattr(config, key) for key in fields} == fields


@pytest.mark.parametrize("model_type", ["llama", "phi3", "stablelm", "gpt_neox", "gemma3_text", "olmo3", "falcon"])
@pytest.mark.parametrize("scaling", ["none", "linear", "yarn", "longrope"])
def test_what_is_written_is_read(model_type, scaling):
    """Exports have both spellings, in the families that do not have a mapping for each kind of layer."""
    family = directory.families()[model_type]
    fields = family.infer({}, {}) | {"rope_theta": 50.0, "rope_scaling": scaling}
    fields |= {} if scaling == "none" else {"rope_factor": 4.0}
    fields |= {"rope_original_positions": 8} if scaling in ("yarn", "longrope") else {}
    fields |= {"rope_short_factors": (1.0, 2.0), "rope_long_factors": (2.0, 3.0)} if scaling == "longrope" else {}
    config = DecoderOnlyConfig(**SIZES | fields)
    if family.supports(config):
        again = from_json(family, to_json(family, family.network(config)), {})
        assert {key: getattr(again, key) for key in fields} == fields


def test_longrope_of_phi_counts_the_positions_of_its_class():
    longrope = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    keys = {"original_max_position_embeddings": 1024, "rope_scaling": longrope}
    config = from_json(directory.families()["phi3"], keys, {})
    np.testing.assert_allclose(config.rope_of("main").magnitude, np.sqrt(1 + np.log(4) / np.log(1024)))


def test_other_positions_of_layers_without_a_window_are_refused():
    family = directory.families()["gemma3_text"]
    fields = family.infer({}, {}) | {"pattern": ("other", "main"), "other_rope_theta": 50.0}
    sizes = {name: x for name, x in SIZES.items() if name != "dtype"}
    with pytest.raises(UserError, match=r"model\.other_window: is null, but other layers .* \(32\)"):
        to_json(family, family.network(DecoderOnlyConfig(**sizes | fields)))
    windowed = DecoderOnlyConfig(**sizes | fields | {"other_window": 32})
    assert to_json(family, family.network(windowed))["layer_types"] == ["sliding_attention", "full_attention"]


def test_a_configuration_that_no_class_has():
    network, _ = fresh(DecoderOnlyConfig(**SIZES | {"positions": "alibi", "qk_norm": "head"}))
    with pytest.raises(UserError, match="decoder_only of this configuration has no counterpart in transformers"):
        directory.family_of(network.config)
