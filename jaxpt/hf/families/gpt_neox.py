"""GPT-NeoX and Pythia as Hugging Face's `GPTNeoXForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.hf import rope
from jaxpt.hf.decoders import ATTENTION, family, table
from jaxpt.hf.options import ACTIVATIONS, Option
from jaxpt.hf.tasks import tasks
from jaxpt.models.decoder_only import DecoderOnlyConfig

NAMES = {
    "token_embed": "gpt_neox.embed_in", "layer": "gpt_neox.layers.{layer}", "final_norm": "gpt_neox.final_layer_norm",
    "head": "embed_out", **dict.fromkeys(ATTENTION, "attention.query_key_value"), "attention/output": "attention.dense",
    "feed_forward/up": "mlp.dense_h_to_4h", "feed_forward/down": "mlp.dense_4h_to_h",
    "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm",
}  # fmt: skip
TABLE = functools.partial(
    table, names=NAMES, grouped=True, renamed=((r"^lm_head\.", "embed_out."),),
    ignored=(r".*\.rotary_emb\.inv_freq", r".*\.attention\.(masked_)?bias"),
)  # fmt: skip
OPTIONS = (
    Option("vocab_size", "vocab_size", 50432),
    Option("hidden_size", "embed_dim", 6144),
    Option("num_hidden_layers", "layers", 44),
    Option("num_attention_heads", "heads", 64),
    Option("intermediate_size", "mlp_dim", 24576),
    Option("max_position_embeddings", "max_positions", 2048),
    Option("hidden_act", "activation", "gelu", ACTIVATIONS),
    Option("layer_norm_eps", "epsilon", 1e-5),
    Option("tie_word_embeddings", "tie_embeddings", False),
    Option("hidden_dropout", "dropout", 0.0),
    Option("attention_bias", "attention_bias", True),
    Option("use_parallel_residual", "parallel", True, {True: "two_norms", False: "no"}),
    Option("rotary_pct", "rotary_share", 0.25),
)


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """These files have their names of the base and of the share of rotated coordinates."""
    keys = dict(keys)
    if "rotary_emb_base" in keys:
        keys["rope_theta"] = keys.pop("rotary_emb_base")
    keys = rope.read(keys, 10_000.0)
    share = keys.pop("partial_rotary_factor", None)
    return keys if share is None else keys | {"rotary_pct": share}


def _write(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    keys = rope.write(keys, config)
    return keys | {"rotary_emb_base": keys.pop("rope_theta")}


FAMILIES = (
    family(
        "gpt_neox", "GPTNeoX", {"norm": "layer", "gated": False, "mlp_bias": True},
        (*OPTIONS, *rope.options(10_000.0)), table=TABLE, read=_read, write=_write, dropouts=("attention_dropout",),
        tasks=tasks("GPTNeoX", classes="score"),
    ),
)  # fmt: skip
