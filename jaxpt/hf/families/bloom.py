"""BLOOM as Hugging Face's `BloomForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.hf.decoders import ATTENTION, family, table
from jaxpt.hf.options import Option
from jaxpt.hf.tasks import tasks

NAMES = {
    "token_embed": "transformer.word_embeddings", "embed_norm": "transformer.word_embeddings_layernorm",
    "layer": "transformer.h.{layer}", "final_norm": "transformer.ln_f", "head": "lm_head",
    **dict.fromkeys(ATTENTION, "self_attention.query_key_value"), "attention/output": "self_attention.dense",
    "feed_forward/up": "mlp.dense_h_to_4h", "feed_forward/down": "mlp.dense_4h_to_h",
    "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm",
}  # fmt: skip
DIFFERENCES = {
    "positions": "alibi", "norm": "layer", "embed_norm": True, "gated": False, "activation": "gelu_tanh",
    "attention_bias": True, "mlp_bias": True,
}  # fmt: skip
SPELLINGS = {"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
"""{another name of a key: its name here}"""


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """The feed-forward is four times as wide as the hidden states."""
    keys = {SPELLINGS.get(key, key): value for key, value in keys.items() if value is not None}
    width = keys.get("hidden_size", 64)
    return keys | {"ffn_hidden_size": 4 * width if isinstance(width, int) else width}


FAMILIES = (
    family(
        "bloom", "Bloom", DIFFERENCES,
        (
            Option("vocab_size", "vocab_size", 250880),
            Option("hidden_size", "embed_dim", 64),
            Option("ffn_hidden_size", "mlp_dim", 256),
            Option("n_layer", "layers", 2),
            Option("n_head", "heads", 8),
            Option("seq_length", "max_positions", 2048),
            Option("layer_norm_epsilon", "epsilon", 1e-5),
            Option("hidden_dropout", "dropout", 0.0),
            Option("tie_word_embeddings", "tie_embeddings", True),
        ),
        can=lambda config: config.mlp_dim == 4 * config.embed_dim,
        table=functools.partial(table, names=NAMES, grouped=True), read=_read,
        write=lambda keys, config: {key: value for key, value in keys.items() if key != "ffn_hidden_size"},
        fixed={"apply_residual_connection_post_layernorm": False, "slow_but_exact": False},
        dropouts=("attention_dropout",), tasks=tasks("Bloom", classes="score"),
        harmless=("pretraining_tp", "masked_softmax_fusion", "bias_dropout_fusion", "attention_softmax_in_fp32",
                  "offset_alibi", "skip_bias_add", "skip_bias_add_qkv"),
    ),
)  # fmt: skip
