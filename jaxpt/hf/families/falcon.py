"""Falcon as Hugging Face's `FalconForCausalLM`, with ALiBi or rotary positions."""

from __future__ import annotations

from typing import Any

from jaxpt.errors import UserError, shown
from jaxpt.hf import rope
from jaxpt.hf.decoders import ATTENTION, family, table
from jaxpt.hf.options import ACTIVATIONS, Option
from jaxpt.hf.table import Table
from jaxpt.hf.tasks import tasks
from jaxpt.models.decoder_only import DecoderOnlyConfig

NAMES = {
    "token_embed": "transformer.word_embeddings", "layer": "transformer.h.{layer}", "final_norm": "transformer.ln_f",
    "head": "lm_head", **dict.fromkeys(ATTENTION, "self_attention.query_key_value"),
    "attention/output": "self_attention.dense", "feed_forward/up": "mlp.dense_h_to_4h",
    "feed_forward/down": "mlp.dense_4h_to_h", "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}  # fmt: skip
TWO_NORMS = {"attention_norm": "ln_attn", "feed_forward_norm": "ln_mlp"}
OPTIONS = (
    Option("vocab_size", "vocab_size", 65024),
    Option("hidden_size", "embed_dim", 4544),
    Option("ffn_hidden_size", "mlp_dim", 4 * 4544),
    Option("num_hidden_layers", "layers", 32),
    Option("num_attention_heads", "heads", 71),
    Option("num_kv_heads", "kv_heads", 1),
    Option("max_position_embeddings", "max_positions", 2048),
    Option("activation", "activation", "gelu", ACTIVATIONS),
    Option("layer_norm_epsilon", "epsilon", 1e-5),
    Option("tie_word_embeddings", "tie_embeddings", True),
    Option("hidden_dropout", "dropout", 0.0),
    Option("bias", "attention_bias", False),
    Option("bias", "mlp_bias", False),
    Option("alibi", "positions", False, {False: "rotary", True: "alibi_bfloat16"}),
    Option("parallel_norms", "parallel", "one_norm"),
)


def _table(config: DecoderOnlyConfig) -> Table:
    return table(config, NAMES | (TWO_NORMS if config.parallel == "two_norms" else {}), grouped=True)


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """Key heads, and norms of parallel blocks, are those of one of three architectures."""
    keys = rope.read({"hidden_size" if key == "n_embed" else key: value for key, value in keys.items()}, 10_000.0)
    heads, width = keys.get("num_attention_heads", 71), keys.get("hidden_size", 4544)
    is_new, is_parallel = keys.pop("new_decoder_architecture", False), keys.pop("parallel_attn", True)
    count, norms = keys.pop("num_kv_heads", None) or heads, keys.pop("num_ln_in_parallel_attn", None)
    is_single = keys.pop("multi_query", True)
    if norms not in (None, 1, 2) or (norms == 2 and not is_new):
        raise UserError(f"config.json: num_ln_in_parallel_attn: {shown(norms)} is not supported, only 1 or null"
                        + (", or 2 with new_decoder_architecture" if not is_new else " or 2"))  # fmt: skip
    keys["num_kv_heads"] = count if is_new else 1 if is_single else heads
    keys["parallel_norms"] = "no"
    if is_new or is_parallel:
        keys["parallel_norms"] = "two_norms" if is_new and norms != 1 else "one_norm"
    if keys.get("ffn_hidden_size") is None:
        keys["ffn_hidden_size"] = 4 * width if isinstance(width, int) else width
    return keys


def _write(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    keys, heads = rope.write(keys, config), config.kv_heads or config.heads
    is_new = config.parallel == "two_norms" or heads not in (1, config.heads)
    norms = {"no": None, "one_norm": 1, "two_norms": 2}[keys.pop("parallel_norms")]
    return keys | {
        "new_decoder_architecture": is_new, "num_kv_heads": heads if is_new else config.heads,
        "multi_query": heads == 1, "parallel_attn": config.parallel != "no",
        "num_ln_in_parallel_attn": norms if is_new else None,
    }  # fmt: skip


def _can(config: DecoderOnlyConfig) -> bool:
    is_new = (config.kv_heads or config.heads) not in (1, config.heads)
    return config.attention_bias == config.mlp_bias and not (is_new and config.parallel == "no")


FAMILIES = (
    family(
        "falcon", "Falcon", {"norm": "layer", "gated": False}, (*OPTIONS, *rope.options(10_000.0)), can=_can,
        table=_table, read=_read, write=_write, fixed={"apply_residual_connection_post_layernorm": False},
        dropouts=("attention_dropout",), tasks=tasks("Falcon", classes="score"),
    ),
)  # fmt: skip
