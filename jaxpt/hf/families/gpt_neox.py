"""GPT-NeoX and Pythia as Hugging Face's `GPTNeoXForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.errors import UserError, shown
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


NAMES_OF_POSITIONS = {"rotary_emb_base": ("rope_theta", 10_000.0), "rotary_pct": ("partial_rotary_factor", 0.25)}
"""{their key: (its name in other families, default)}"""


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """These files have their names of the base and of the share of rotated coordinates; version 4 wrote both names."""
    keys = dict(keys)
    nested = keys.get("rope_scaling") or keys.get("rope_parameters") or {}
    counting = {}
    for key, (name, default) in NAMES_OF_POSITIONS.items():
        counting[name] = default if keys.get(key) is None else keys[key]
        given, value = keys.pop(name, None), nested.get(name, counting[name])
        if given not in (None, value):
            raise UserError(
                f"config.json: {name}: {shown(given)} is not read by transformers, which takes {key} ({shown(value)}); "
                f"set {key}"
            )
    keys["rope_theta"] = counting["rope_theta"]
    keys.pop("rotary_emb_base", None)
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
