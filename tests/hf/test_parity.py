"""Outputs and gradients equal those of Hugging Face's transformers, and weights go both ways."""

import functools

import pytest

from jaxpt.hf.directory import families
from jaxpt.hf.options import from_json
from tests import grids
from tests.hf.parity import FF, HEADS, LAYERS, D, V, check, untie

pytestmark = [pytest.mark.parity, pytest.mark.slow]

SIZES = {
    "vocab_size": V, "hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": FF, "max_position_embeddings": 32,
}  # fmt: skip
T5_SIZES = {
    "vocab_size": V, "d_model": D, "d_kv": 5, "num_heads": HEADS, "d_ff": FF, "num_layers": LAYERS,
    "num_decoder_layers": 2, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
}  # fmt: skip
GPT2_SIZES = {
    "vocab_size": V, "n_embd": D, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 32, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
DISTIL_SIZES = {
    "vocab_size": V, "dim": D, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": FF, "max_position_embeddings": 32,
}  # fmt: skip
BART_SIZES = {
    "vocab_size": V, "d_model": D, "encoder_layers": LAYERS, "decoder_layers": 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": 4, "encoder_ffn_dim": FF, "decoder_ffn_dim": 20, "max_position_embeddings": 32,
}  # fmt: skip
MODERN_SIZES = SIZES | {
    "num_hidden_layers": 8, "num_attention_heads": 6, "local_attention": 6, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "max_position_embeddings": 64,
}  # fmt: skip
DEBERTA_SIZES = SIZES | {
    "relative_attention": True, "position_buckets": 4, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
    "norm_rel_ebd": "layer_norm", "position_biased_input": False,
}  # fmt: skip
XLNET_SIZES = {
    "vocab_size": V, "d_model": D, "n_layer": LAYERS, "n_head": HEADS, "d_inner": FF, "bos_token_id": 0,
    "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
LLAMA_SIZES = SIZES | {"num_attention_heads": 6, "num_key_value_heads": 2}
OPT_SIZES = {
    "vocab_size": V, "hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "ffn_dim": FF,
    "max_position_embeddings": 32, "word_embed_proj_dim": D,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip

# name: (class, configuration class, sizes and options)
CASES = {
    "bert": ("BertForPreTraining", "BertConfig", SIZES),
    "bert, masked LM alone": ("BertForMaskedLM", "BertConfig", SIZES | {"type_vocab_size": 3}),
    "bert, relu, epsilon": ("BertForPreTraining", "BertConfig", SIZES | {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "bert, gelu_new": ("BertForPreTraining", "BertConfig", SIZES | {"hidden_act": "gelu_new"}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2_SIZES | {"n_inner": FF}),
    "gpt2, untied": ("GPT2LMHeadModel", "GPT2Config", GPT2_SIZES | {"tie_word_embeddings": False}),
    "gpt2, relu, epsilon": (
        "GPT2LMHeadModel", "GPT2Config", GPT2_SIZES | {"activation_function": "relu", "layer_norm_epsilon": 1e-3},
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5_SIZES),
    "t5, gated silu, epsilon": (
        "T5ForConditionalGeneration", "T5Config",
        T5_SIZES | {"layer_norm_epsilon": 1e-3, "feed_forward_proj": "gated-silu"},
    ),
    "t5 1.1": (
        "T5ForConditionalGeneration", "T5Config",
        T5_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "t5 1.1, as made from its config": (
        "T5ForConditionalGeneration", "T5Config",
        T5_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "umt5": ("UMT5ForConditionalGeneration", "UMT5Config", T5_SIZES),
    "umt5, tied": ("UMT5ForConditionalGeneration", "UMT5Config", T5_SIZES),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA_SIZES),
    "llama, multi-query, biases, tied": (
        "LlamaForCausalLM", "LlamaConfig",
        LLAMA_SIZES | {
            "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
            "hidden_act": "gelu", "rms_norm_eps": 1e-3, "head_dim": 8,
        },
    ),
    "llama, rope of Llama 3": ("LlamaForCausalLM", "LlamaConfig", LLAMA_SIZES | {"rope_parameters": LLAMA3}),
    "llama, linear rope": (
        "LlamaForCausalLM", "LlamaConfig",
        LLAMA_SIZES | {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
    ),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", SIZES | {"type_vocab_size": 1}),
    "roberta, token types, padding id, relu, epsilon": (
        "RobertaForMaskedLM", "RobertaConfig",
        SIZES | {"type_vocab_size": 2, "pad_token_id": 2, "hidden_act": "relu", "layer_norm_eps": 1e-3},
    ),
    "xlm-roberta": ("XLMRobertaForMaskedLM", "XLMRobertaConfig", SIZES | {"type_vocab_size": 1}),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", DISTIL_SIZES),
    "distilbert, relu": ("DistilBertForMaskedLM", "DistilBertConfig", DISTIL_SIZES | {"activation": "relu"}),
    "albert": ("AlbertForPreTraining", "AlbertConfig", SIZES | {"embedding_size": 10}),
    "albert, groups, masked LM alone": (
        "AlbertForMaskedLM", "AlbertConfig",
        SIZES | {"embedding_size": 10, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2,
                 "hidden_act": "gelu"},
    ),
    "electra": ("ElectraForPreTraining", "ElectraConfig", SIZES | {"embedding_size": D}),
    "electra, narrow embeddings": (
        "ElectraForPreTraining", "ElectraConfig", SIZES | {"embedding_size": 10, "hidden_act": "relu"}
    ),
    "electra generator": ("ElectraForMaskedLM", "ElectraConfig", SIZES | {"embedding_size": 10, "hidden_act": "relu"}),
    "openai-gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT2_SIZES),
    "openai-gpt, relu, epsilon": (
        "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT2_SIZES | {"afn": "relu", "layer_norm_epsilon": 1e-3}
    ),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5_SIZES),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART_SIZES),
    "bart, scaled embeddings, relu": (
        "BartForConditionalGeneration", "BartConfig",
        BART_SIZES | {"scale_embedding": True, "activation_function": "relu"},
    ),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", BART_SIZES | {"scale_embedding": True}),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", MODERN_SIZES),
    "modernbert, biases, silu, rotary bases, every second layer global": (
        "ModernBertForMaskedLM", "ModernBertConfig",
        MODERN_SIZES | {
            "num_hidden_layers": 4, "global_attn_every_n_layers": 2, "norm_bias": True, "attention_bias": True,
            "mlp_bias": True, "classifier_bias": True, "decoder_bias": False, "norm_eps": 1e-3,
            "hidden_activation": "silu", "classifier_activation": "relu",
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
    ),
    "deberta-v3": ("DebertaV2ForMaskedLM", "DebertaV2Config", DEBERTA_SIZES),
    "deberta-v3, without head": ("DebertaV2Model", "DebertaV2Config", DEBERTA_SIZES),
    "deberta-v2, convolution": (
        "DebertaV2ForMaskedLM", "DebertaV2Config",
        DEBERTA_SIZES
        | {"conv_kernel_size": 3, "conv_act": "gelu", "type_vocab_size": 2, "position_biased_input": True},
    ),
    "deberta-v2, own projections, no buckets": (
        "DebertaV2ForMaskedLM", "DebertaV2Config",
        DEBERTA_SIZES | {"share_att_key": False, "position_buckets": -1, "norm_rel_ebd": "none"},
    ),
    "deberta-v2, one term": (
        "DebertaV2ForMaskedLM", "DebertaV2Config",
        DEBERTA_SIZES | {"share_att_key": False, "pos_att_type": ["c2p"]},
    ),
    "deberta-v2, none": (
        "DebertaV2ForMaskedLM", "DebertaV2Config",
        DEBERTA_SIZES | {"relative_attention": False, "position_biased_input": True, "pos_att_type": [],
                         "norm_rel_ebd": "none"},
    ),
    "xlnet": ("XLNetLMHeadModel", "XLNetConfig", XLNET_SIZES),
    "xlnet, clamped distances, relu, epsilon": (
        "XLNetLMHeadModel", "XLNetConfig",
        XLNET_SIZES | {"clamp_len": 4, "ff_activation": "relu", "layer_norm_eps": 1e-3},
    ),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT_SIZES),
    "opt, untied, gelu": (
        "OPTForCausalLM", "OPTConfig", OPT_SIZES | {"tie_word_embeddings": False, "activation_function": "gelu"}
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", LLAMA_SIZES | {"sliding_window": 5}),
}  # fmt: skip
UNTIED = {"t5 1.1", "umt5", "mt5"}


@pytest.mark.parametrize("model_type", sorted(families()))
def test_every_key_of_their_configuration_is_known(model_type):
    """What their class writes with all defaults is read, and a silent config.json means the same."""
    family, transformers = families()[model_type], pytest.importorskip("transformers")
    silent = from_json(family, {"model_type": model_type}, {})
    full = from_json(family, transformers.CONFIG_MAPPING[model_type]().to_dict(), {})
    for field, value in silent:
        assert value in (getattr(full, field), None), field


SUITE = (
    "bert", "bert, relu, epsilon", "gpt2, untied", "t5", "t5 1.1, as made from its config", "umt5",
    "llama, multi-query, biases, tied", "llama, rope of Llama 3", "mistral",
    "roberta, token types, padding id, relu, epsilon", "distilbert", "albert", "albert, groups, masked LM alone",
    "electra, narrow embeddings", "electra generator", "openai-gpt", "bart, scaled embeddings, relu", "mbart",
    "modernbert, biases, silu, rotary bases, every second layer global", "deberta-v3", "deberta-v2, convolution",
    "deberta-v2, own projections, no buckets", "xlnet, clamped distances, relu, epsilon", "opt, untied, gelu",
)  # fmt: skip
"""Of each architecture those with the most options; what else differs is in the grid."""


@pytest.mark.parametrize("name", grids.cases(CASES, *SUITE))
def test_parity(name, tmp_path):
    check(functools.partial(make, name), tmp_path)


def make(name):
    """Their model of a case."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")  # not when tests are collected: both take seconds
    architecture, config, options = CASES[name]
    model = getattr(transformers, architecture)(getattr(transformers, config)(**options))
    return untie(model) if name in UNTIED else model
