"""Gemma 1, 2 and the text models of 3 as Hugging Face's `GemmaForCausalLM`, `Gemma2…` and `Gemma3ForCausalLM`."""

from __future__ import annotations

from typing import Any

from jaxpt.hf.decoders import family, options, read, write, write_by_kind
from jaxpt.hf.options import Option

OWN = {"norm": "rms_plus_one", "scale_embeddings": True}
DEFAULTS = {
    "vocab_size": 256000, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "attention_bias": False,
}  # fmt: skip
GEMMA1 = {"hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
          "num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip
GEMMA2 = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
          "num_key_value_heads": 4, "hidden_activation": "gelu_pytorch_tanh"}  # fmt: skip


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """Old files say `gelu` and mean its approximation by tanh."""
    keys.pop("hidden_activation", None)
    if keys.get("hidden_act") == "gelu":
        keys["hidden_act"] = "gelu_pytorch_tanh"
    keys = read(keys, 10_000.0, lambda i, keys: False)
    return {key: value for key, value in keys.items() if key != "layer_types"}


def _read_2(keys: dict[str, Any]) -> dict[str, Any]:
    keys.pop("hidden_act", None)  # `hidden_activation` is what counts
    keys.setdefault("num_hidden_layers", 26)
    return read(keys, 10_000.0, lambda i, keys: i % 2 == 0)


def _read_3(keys: dict[str, Any]) -> dict[str, Any]:
    keys.pop("hidden_act", None)
    keys.setdefault("num_hidden_layers", 26)
    every = keys.pop("sliding_window_pattern", None) or keys.pop("_sliding_window_pattern", None) or 6
    keys.pop("_sliding_window_pattern", None)
    return read(keys, 1_000_000.0, lambda i, keys: (i + 1) % every != 0)


BOTH = OWN | {"norm_position": "both"}
LAYERS = (
    Option("layer_types", "pattern", ["other", "main"]),
    Option("sliding_window", "other_window", 4096),
    Option("query_pre_attn_scalar", "score_width", 256),
)
FIXED = {"use_bidirectional_attention": (None, False)}
FAMILIES = (
    family("gemma", "Gemma", OWN, options(10_000.0, **DEFAULTS, **GEMMA1), read=_read, write=write, fixed=FIXED),
    family(
        "gemma2", "Gemma2", BOTH,
        (
            *options(10_000.0, **DEFAULTS, **GEMMA2), *LAYERS,
            Option("attn_logit_softcapping", "score_cap", 50.0),
            Option("final_logit_softcapping", "logit_cap", 30.0),
        ),
        read=_read_2, write=write, fixed=FIXED, harmless=("cache_implementation",),
    ),
    family(
        "gemma3_text", "Gemma3", BOTH | {"qk_norm": "head", "other_rope": "unscaled"},
        (
            *options(1_000_000.0, **DEFAULTS | {"vocab_size": 262_208, "max_position_embeddings": 131_072}, **GEMMA2),
            *LAYERS,
            Option("attn_logit_softcapping", "score_cap", None),
            Option("final_logit_softcapping", "logit_cap", None),
            Option("rope_local_base_freq", "other_rope_theta", 10_000.0),
        ),
        read=_read_3, write=write_by_kind, fixed=FIXED, harmless=("cache_implementation",),
    ),
)  # fmt: skip
