"""Hostile and odd config.json of Hugging Face directories: each is imported, or refused in one plain line."""

import json

import numpy as np
import pytest

from jaxpt.hf import model_types
from jaxpt.hf.directory import families
from tests.hf.hostile import (
    CONTROL,
    DEEP_LIST,
    DEEP_MAP,
    LFS,
    LLAMA3,
    ROPE,
    check_refused,
    fifo,
    folder,
    keys,
    tensors,
    write,
)

# {case: (architecture, what is changed, words of the message)}
REFUSED = {
    # config.json
    "config: a list": ("bert", write("config.json", "[]"), "config.json: expected a JSON object"),
    "config: deep lists": ("bert", write("config.json", DEEP_LIST), "config.json: nested too deeply"),
    "config: deep maps": ("bert", write("config.json", DEEP_MAP), "config.json: nested too deeply"),
    "config: deep key": ("bert", keys(flavour=json.loads('{"a":' * 500 + "1" + "}" * 500)), "nested too deeply"),
    "config: long integer": ("bert", write("config.json", '{"a": ' + "9" * 5000 + "}"), "config.json: not JSON"),
    "config: not UTF-8": ("bert", write("config.json", b"\xff\xfe{}"), "config.json: not JSON"),
    "config: pipe": ("bert", fifo("config.json"), "config.json: not a regular file"),
    "config: a directory": ("bert", folder("config.json"), "config.json"),
    "config: LFS pointer": ("bert", write("config.json", LFS), "config.json: a Git LFS pointer, not the file itself"),
    "config: model_type list": ("bert", keys(model_type=["bert"]), "model_type ['bert'] is not supported"),
    "config: model_type map": ("bert", keys(model_type={}), "model_type {} is not supported"),
    "config: model_type control": ("bert", keys(model_type=CONTROL), "is not supported"),
    "config: model_type of a megabyte": ("bert", keys(model_type="x" * 2**20), "is not supported"),
    "config: value of a megabyte": ("bert", keys(flavour="x" * 2**20), "flavour"),
    "config: key of a megabyte": ("bert", keys(**{"x" * 2**20: 1}), "is unknown"),
    "config: control characters": ("bert", keys(**{CONTROL: CONTROL}), "is unknown for model_type bert"),
    "config: line breaks in a value": ("bert", keys(flavour="a\nb\u2028c"), "flavour"),
    "config: architectures text": ("bert", keys(architectures="BertModel"), "architectures: wants a list"),
    "config: architectures number": ("bert", keys(architectures=5), "architectures: wants a list"),
    "config: architectures nested": ("bert", keys(architectures=[["x"]]), "architectures"),
    "config: heads 0": ("bert", keys(num_attention_heads=0), "num_attention_heads: wants "),
    "config: heads -1": ("bert", keys(num_attention_heads=-1), "num_attention_heads: wants "),
    "config: heads 5": ("bert", keys(num_attention_heads=5), "num_attention_heads: 5 does not divide hidden_size 24"),
    "config: heads text": ("bert", keys(num_attention_heads="12"), "num_attention_heads: wants "),
    "config: heads list": ("bert", keys(num_attention_heads=[3]), "num_attention_heads: wants "),
    "config: heads true": ("bert", keys(num_attention_heads=True), "num_attention_heads: wants "),
    "config: heads 2.5": ("bert", keys(num_attention_heads=2.5), "num_attention_heads: wants "),
    "config: layers 0": ("bert", keys(num_hidden_layers=0), "num_hidden_layers: wants "),
    "config: layers 10^9": ("bert", keys(num_hidden_layers=10**9), "num_hidden_layers: wants "),
    "config: layers of 400 digits": ("bert", keys(num_hidden_layers=10**400), "num_hidden_layers"),
    "config: vocabulary 10^12": ("bert", keys(vocab_size=10**12), "vocab_size: wants "),
    "config: vocabulary of 30 digits": ("bert", keys(vocab_size=10**30), "vocab_size"),
    "config: hidden_size 0": ("bert", keys(hidden_size=0), "hidden_size: wants "),
    "config: hidden_size 10^15": ("bert", keys(hidden_size=3 * 10**15), "hidden_size"),
    "config: null sizes": ("bert", keys(hidden_size=None), "hidden_size: wants "),
    "config: epsilon text": ("bert", keys(layer_norm_eps="1e-12"), "layer_norm_eps: wants "),
    "config: epsilon NaN": ("bert", keys(layer_norm_eps=float("nan")), "layer_norm_eps"),
    "config: dropout 2": ("bert", keys(hidden_dropout_prob=2), "hidden_dropout_prob: wants "),
    "config: activation list": ("bert", keys(hidden_act=["gelu"]), "hidden_act: ['gelu'] is not supported, only"),
    "config: activation map": ("bert", keys(hidden_act={"a": 1}), "hidden_act"),
    "config: activation null": ("bert", keys(hidden_act=None), "hidden_act: null is not supported"),
    "config: activation control": ("bert", keys(hidden_act=CONTROL), "hidden_act"),
    "config: is_decoder list": ("bert", keys(is_decoder=[]), "is_decoder: [] is not supported"),
    "config: several unknown keys": (
        "bert", keys(flavour="vanilla", hidden_sise=3, toppings={"a": 1}),
        "config.json: flavour: 'vanilla', hidden_sise: 3 (did you mean hidden_size?) and toppings.a: 1 are unknown for "
        "model_type bert; if they do not change the output, pass --ignore flavour --ignore hidden_sise --ignore "
        "toppings.a",
    ),
    "config: quantized": (
        "bert", keys(quantization_config={"quant_method": "gptq", "bits": 4}),
        "quantization_config: quantized weights are not supported; import the unquantized model",
    ),
    "config: quantized, flat": ("bert", keys(quantization_config="int8"), "quantization_config: quantized weights"),
    "rope: text": ("llama", keys(rope_scaling="linear"), "rope_scaling: wants "),
    "rope: list": ("llama", keys(rope_scaling=[1]), "rope_scaling: wants "),
    "rope: number": ("llama", keys(rope_parameters=7), "rope_parameters: wants "),
    "rope: type list": ("llama", keys(rope_parameters={"rope_type": ["x"]}), "rope_type: ['x'] is not supported"),
    "rope: type map": ("llama", keys(rope_scaling={"type": {"a": 1}}, **ROPE), "rope_type"),
    "rope: dynamic": (
        "llama", keys(rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "rope_type: 'dynamic' is not supported",
    ),
    "rope: a factor without a type": (
        "llama", keys(rope_scaling={"factor": 4.0}, **ROPE), "rope_parameters.factor: 4.0 has no rope_type that scales",
    ),
    "rope: by kinds of layers that the family does not have": (
        "llama", keys(rope_parameters={"full_attention": {"rope_type": "linear", "factor": 2.0}}),
        "rope_parameters.full_attention.rope_type: 'linear' (did you mean rope_parameters.rope_type?) and rope_param",
    ),
    "rope: yarn without a factor": (
        "llama", keys(rope_parameters={"rope_type": "yarn"}), "rope_parameters.factor: is missing; rope_type yarn",
    ),
    "rope: longrope without factors": (
        "llama", keys(rope_parameters={"rope_type": "longrope", "short_factor": [1.0]}), "long_factor: is missing",
    ),
    "rope: longrope with too few factors": (
        "llama", keys(rope_parameters={"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
        "rope_parameters.short_factor: wants 2 numbers",
    ),
    "rope: a share of the coordinates": (
        "llama", keys(partial_rotary_factor=0.5), "partial_rotary_factor: 0.5 is not supported, only 1.0",
    ),
    "rope: a number for a kind of layer": (
        "llama", keys(model_type="gemma3_text", rope_parameters={"full_attention": 5}),
        "rope_parameters.full_attention: wants a mapping, got 5",
    ),
    "rope: scaled in layers with a window": (
        "llama", keys(model_type="olmo3", rope_parameters={"sliding_attention": {"rope_type": "yarn"}}),
        "rope_parameters.sliding_attention.rope_type: 'yarn' is not supported, only default",
    ),
    "layers: a pattern of another length": (
        "llama", keys(model_type="gemma2", layer_types=["full_attention"]),
        "layer_types: names 1 layers, but num_hidden_layers is 2",
    ),
    "layers: an unknown kind": (
        "llama", keys(model_type="qwen3", layer_types=["full_attention", {}]), "layer_types: {} is not supported",
    ),
    "layers: a kind that is no word": (
        "llama", keys(model_type="smollm3", no_rope_layers=[1, "x"]), "no_rope_layers: 'x' is not supported, only 0 or",
    ),
    "layers: rotary ones as a text": ("llama", keys(model_type="smollm3", no_rope_layers="10"), "wants a list, got"),
    "layers: every 0": (
        "llama", keys(model_type="smollm3", no_rope_layer_interval=0), "no_rope_layer_interval: wants a number above 0",
    ),
    "layers: every text": (
        "llama", keys(model_type="gemma3_text", sliding_window_pattern="6"), "sliding_window_pattern: wants a whole",
    ),
    "layers: a window every -2": (
        "llama", keys(model_type="gemma3_text", _sliding_window_pattern=-2), "wants a number above 0, got -2",
    ),
    "layers: the first with a window is a text": (
        "llama", keys(model_type="qwen3", max_window_layers="1"), "max_window_layers: wants a whole number, got '1'",
    ),
    "layers: dense ones are a number": (
        "llama", keys(model_type="qwen3_moe", mlp_only_layers=1), "mlp_only_layers: wants a list, got 1",
    ),
    "layers: rotary ones of another number": (
        "llama", keys(model_type="smollm3", no_rope_layers=[1, 0, 1]), "no_rope_layers: names 3 layers, but",
    ),
    "layers: 10^9": (
        "llama", keys(model_type="smollm3", head_dim=None, num_hidden_layers=10**9), "num_hidden_layers: wants ",
    ),
    "layers: a text": (
        "llama", keys(model_type="smollm3", head_dim=None, num_hidden_layers="2"), "num_hidden_layers: wants ",
    ),
    "images: text_config is a list": (
        "llama", keys(model_type="gemma3", text_config=[1]), "config.json: text_config: wants a mapping, got [1]",
    ),
    "falcon: two norms in the old layout": (
        "llama", keys(model_type="falcon", num_ln_in_parallel_attn=2), "num_ln_in_parallel_attn: 2 is not supported",
    ),
    "xglm: padding among the positions": ("llama", keys(model_type="xglm", pad_token_id=2), "pad_token_id: 2 is not"),
    "table: more rows than tokens": (
        "llama", keys(vocab_size=200),
        "lm_head.weight has shape (203, 24), this configuration expects (200, 24) and 1 more",
    ),
    "table: untied, said to be tied": (
        "llama", keys(tie_word_embeddings=True),
        "lm_head.weight and model.embed_tokens.weight differ, but this configuration ties them",
    ),
    "table: tied, said to be untied": (
        "llama",
        tensors(lambda known: {name: x for name, x in known.items() if "lm_head" not in name}),
        "lm_head.weight is missing",
    ),
    "rope: factor text": ("llama", keys(rope_parameters={"rope_type": "linear", "factor": "2"}), "factor: wants "),
    "rope: factor 0": ("llama", keys(rope_parameters={"rope_type": "linear", "factor": 0}), "factor: wants "),
    "rope: theta 0": ("llama", keys(rope_parameters={"rope_theta": 0}), "rope_theta: wants "),
    "rope: theta list": ("llama", keys(rope_theta=[1], **ROPE), "rope_theta: wants "),
    "rope: llama3 without factors": (
        "llama", keys(rope_scaling={"rope_type": "llama3"}, **ROPE),
        "rope_parameters.factor: is missing; rope_type llama3 needs it",
    ),
    "rope: llama3 without a frequency": (
        "llama", keys(rope_parameters=LLAMA3 | {"high_freq_factor": None}),
        "rope_parameters.high_freq_factor: is missing",
    ),
    "rope: llama3 with frequencies in no order": (
        "llama", keys(rope_parameters=LLAMA3 | {"low_freq_factor": 4.0}),
        "rope_parameters.high_freq_factor: wants more than low_freq_factor (4.0), got 4.0",
    ),
    "rope: linear without a factor": (
        "llama", keys(rope_scaling={"type": "linear"}, **ROPE), "rope_parameters.factor: is missing; rope_type linear",
    ),
    "llama: heads 0": ("llama", keys(num_attention_heads=0), "num_attention_heads: wants "),
    "llama: kv heads 0": ("llama", keys(num_key_value_heads=0), "num_key_value_heads: wants "),
    "llama: kv heads 5": ("llama", keys(num_key_value_heads=5), "num_key_value_heads"),
    "llama: odd head_dim": ("llama", keys(head_dim=3), "head_dim"),
    "llama: head_dim 0": ("llama", keys(head_dim=0), "head_dim: wants "),
    "deberta: heads 0": ("deberta", keys(num_attention_heads=0), "num_attention_heads: wants "),
    "deberta: heads text": ("deberta", keys(num_attention_heads="3"), "num_attention_heads: wants "),
    "deberta: pos_att_type 5": ("deberta", keys(pos_att_type=5), "pos_att_type: wants "),
    "deberta: buckets text": ("deberta", keys(position_buckets="4"), "position_buckets: wants "),
    "deberta: norm_rel_ebd 1": ("deberta", keys(norm_rel_ebd=1), "norm_rel_ebd: wants "),
    "deberta: norm_rel_ebd of another kind": (
        "deberta", keys(norm_rel_ebd="rms_norm"), "norm_rel_ebd: 'rms_norm' is not supported, only none or layer_norm",
    ),
    "deberta: pos_att_type of another kind": (
        "deberta", keys(pos_att_type="c2p|p2x"), "pos_att_type: 'p2x' is not supported, only c2p or p2c",
    ),
    "deberta: pos_att_type numbers": ("deberta", keys(pos_att_type=[1]), "pos_att_type: 1 is not supported"),
    "deberta: other relative positions": (
        "deberta", keys(max_relative_positions=5), "max_relative_positions: 5 is not supported, only 32, as max_posit",
    ),
    "deberta: wider heads": (
        "deberta", keys(attention_head_size=9), "attention_head_size: only hidden_size / num_attention_heads is suppo",
    ),
    "modernbert: layer_types 5": ("modernbert", keys(layer_types=5), "layer_types: wants "),
    "modernbert: layer_types []": ("modernbert", keys(layer_types=[]), "global_attn_every_n_layers: wants"),
    "modernbert: window text": ("modernbert", keys(sliding_window="4"), "sliding_window: wants "),
    "modernbert: rope list": ("modernbert", keys(rope_parameters=[1]), "rope_parameters: wants "),
    "modernbert: rope entries": (
        "modernbert", keys(rope_parameters={"full_attention": 5}), "rope_parameters.full_attention: wants",
    ),
    "modernbert: rope of one kind for all": (
        "modernbert", keys(rope_parameters={"rope_theta": 5e3}), "rope_parameters.rope_theta: is not supported, only",
    ),
    "modernbert: rope with a factor": (
        "modernbert", keys(rope_parameters={"full_attention": {"factor": 2.0}}), "full_attention.factor: is not supp",
    ),
    "modernbert: every 0": (
        "modernbert", keys(layer_types=None, global_attn_every_n_layers=0), "global_attn_every_n_layers: wants",
    ),
    "t5: heads 0": ("t5", keys(num_heads=0), "num_heads: wants "),
    "t5: feed-forward list": ("t5", keys(feed_forward_proj=["relu"]), "feed_forward_proj: ['relu'] is not supported"),
    "t5: no tensors": ("t5", tensors(lambda known: {"a": np.zeros(1, np.float32)}), "weights"),
    "albert: groups 0": ("albert", keys(num_hidden_groups=0), "num_hidden_groups: wants "),
    "albert: inner 0": ("albert", keys(inner_group_num=0), "inner_group_num: wants "),
    "xlnet: heads 0": ("xlnet", keys(n_head=0), "n_head: wants "),
    "xlnet: clamp_len text": ("xlnet", keys(clamp_len="x"), "clamp_len: wants a whole number, got 'x'"),
    "xlnet: mem_len list": ("xlnet", keys(mem_len=[1]), "mem_len: wants a whole number, got [1]"),
    "xlnet: reuse_len NaN": ("xlnet", keys(reuse_len=float("nan")), "reuse_len: wants a whole number, got nan"),
    "opt: projection map": ("opt", keys(word_embed_proj_dim={}), "word_embed_proj_dim: wants a whole number, got {}"),
    "bart: tied encoder": ("bart", keys(tie_encoder_decoder=True), "tie_encoder_decoder: true is not supported"),
    "gpt2: heads 0": ("gpt2", keys(n_head=0), "n_head: wants "),
    "bart: heads 0": ("bart", keys(encoder_attention_heads=0), "encoder_attention_heads: wants "),
    "opt: heads 0": ("opt", keys(num_attention_heads=0), "num_attention_heads: wants "),
    "distilbert: heads 0": ("distilbert", keys(n_heads=0), "n_heads: wants "),
    "electra: heads 0": ("electra", keys(num_attention_heads=0), "num_attention_heads: wants "),
}  # fmt: skip


@pytest.mark.parametrize("model_type", model_types.KIN)
def test_the_nearest_kin_is_named(model_type, attempt):
    code, said = attempt(keys(model_type=model_type), "bert")
    kin, lacking = model_types.KIN[model_type]
    assert code == 2 and f"the nearest that is, {kin}, does not have {lacking}" in said
    assert kin in families() and model_type not in families()


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name, attempt):
    check_refused(REFUSED[name], attempt)


ACCEPTED = {
    "config: an unknown key": ("bert", keys(flavour="vanilla"), ("--ignore", "flavour")),
    "config: what tools note": (
        "bert", keys(_attn_implementation_autoset=True, unsloth_version="2026.4.5", unsloth_fixed=True,
                     _commit_hash="1f", _attn_implementation_internal="eager", xla_device=True,
                     **{"transformers.js_config": {"dtype": {"a": "fp16"}}}), (),
    ),
    "rope: llama3 for the model's positions": ("llama", keys(rope_parameters=LLAMA3), ()),
    "config: an unknown nested key": ("bert", keys(flavour={"a": {"b": 1}}), ("--ignore", "flavour.a.b")),
    "config: the map of an unknown key": ("bert", keys(flavour={"a": {"b": 1, "c": 2}}), ("--ignore", "flavour")),
    "config: an unknown key with a dot": ("bert", keys(**{"a.b": 1}), ("--ignore", "a.b")),
    "config: null of an unknown key": ("bert", keys(flavour=None), ()),
    "deberta: sizes that follow from others": (
        "deberta", keys(max_relative_positions=32, attention_head_size=8), (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name, attempt):
    of, change, options = ACCEPTED[name]
    code, said = attempt(change, of, *options)
    assert code == 0, said
