"""Gemma 1, 2 and the text models of 3 as Hugging Face's `GemmaForCausalLM`, `Gemma2…` and `Gemma3ForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.errors import UserError
from jaxpt.hf import rope
from jaxpt.hf.decoders import LLAMA, family, options, read_layers, table, take_period, write_layers
from jaxpt.hf.model_types import IMAGES
from jaxpt.hf.options import Option
from jaxpt.hf.tasks import Task, tasks

GEMMA = {"norm": "rms_plus_one", "scale_embeddings": True}
DEFAULTS = {
    "vocab_size": 256000, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "attention_bias": False,
}  # fmt: skip
SIZES_1 = {"hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
           "num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip
SIZES_2 = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
           "num_key_value_heads": 4, "hidden_activation": "gelu_pytorch_tanh"}  # fmt: skip
NAMES = LLAMA | {
    "attention_output_norm": "post_attention_layernorm", "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}  # fmt: skip
TABLE = functools.partial(table, names=NAMES)


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """Old files say `gelu` and mean its approximation by tanh."""
    keys = rope.read(keys, 10_000.0)
    keys.pop("hidden_activation", None)
    return keys | ({"hidden_act": "gelu_pytorch_tanh"} if keys.get("hidden_act") == "gelu" else {})


def _read_2(keys: dict[str, Any]) -> dict[str, Any]:
    keys = read_layers(rope.read(keys, 10_000.0), 26, lambda i: i % 2 == 0)
    keys.pop("hidden_act", None)  # `hidden_activation` is what counts
    return keys


def _read_3(keys: dict[str, Any]) -> dict[str, Any]:
    keys = dict(keys)
    every = take_period(keys, "sliding_window_pattern", 6)
    noted = take_period(keys, "_sliding_window_pattern", every)
    if noted != every and keys.get("layer_types") is None:
        raise UserError(
            f"config.json: _sliding_window_pattern: {noted} is not read by transformers; set sliding_window_pattern or "
            "layer_types"
        )
    keys = read_layers(rope.read(keys, 1_000_000.0, by_kind=True), 26, lambda i: (i + 1) % every != 0)
    keys.pop("hidden_act", None)
    return keys


BOTH = GEMMA | {"norm_position": "both"}
LAYERS = (
    Option("layer_types", "pattern", ["other", "main"]),
    Option("sliding_window", "other_window", 4096),
    Option("query_pre_attn_scalar", "score_width", 256),
)
FIXED = {"use_bidirectional_attention": (None, False)}
FAMILIES = (
    family(
        "gemma", "Gemma", GEMMA, options(10_000.0, **DEFAULTS, **SIZES_1), read=_read, fixed=FIXED,
        tasks=tasks("Gemma", classes="score", tags="score", span=None),
    ),
    family(
        "gemma2", "Gemma2", BOTH,
        (
            *options(10_000.0, **DEFAULTS, **SIZES_2), *LAYERS,
            Option("attn_logit_softcapping", "score_cap", 50.0),
            Option("final_logit_softcapping", "logit_cap", 30.0),
        ),
        table=TABLE, tasks=tasks("Gemma2", classes="score", tags="score", span=None), read=_read_2,
        write=lambda keys, config: write_layers(rope.write(keys, config), config), fixed=FIXED,
        harmless=("cache_implementation", "sliding_window_size"),
    ),
    family(
        "gemma3_text", "Gemma3", BOTH | {"qk_norm": "head", "other_rope": "unscaled"},
        (
            *options(1_000_000.0, **DEFAULTS | {"vocab_size": 262_208, "max_position_embeddings": 131_072}, **SIZES_2),
            *LAYERS,
            Option("attn_logit_softcapping", "score_cap", None),
            Option("final_logit_softcapping", "logit_cap", None),
            Option("rope_local_base_freq", "other_rope_theta", 10_000.0),
        ),
        table=functools.partial(
            TABLE, renamed=((r"^(model\.language_model|language_model\.model)\.", "model."),
                            (r"^language_model\.lm_head\.", "lm_head.")),
            ignored=(IMAGES, r".*\.rotary_emb\.inv_freq"),
        ),
        tasks={"classes": Task("Gemma3TextForSequenceClassification", "score")}, read=_read_3,
        write=lambda keys, config: write_layers(rope.write_by_kind(keys, config), config), fixed=FIXED,
        harmless=("cache_implementation",),
    ),
)  # fmt: skip
