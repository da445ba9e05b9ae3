"""Llama and Mistral as Hugging Face's `LlamaForCausalLM` or `MistralForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.errors import UserError
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import PROJECTIONS, Table, layer, norm, vocabulary
from jaxpt.hf.tasks import Task, tasks
from jaxpt.models.llama import LlamaConfig

ATTENTION = {f"attention/{ours}": f"self_attn.{theirs}_proj" for ours, theirs in zip(PROJECTIONS, "qkvo")}
FEED_FORWARD = {f"feed_forward/{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
NORMS = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}


def table(config: LlamaConfig) -> Table:
    """Weight table of Llama."""
    block = functools.partial(layer, "decoder/segment_0/block_0", "model.layers.{layer}")
    return Table(
        rows=(
            *vocabulary("model.embed_tokens.weight", config.tie_embeddings),
            *block(ATTENTION, config.attention_bias),
            *block(FEED_FORWARD, config.mlp_bias),
            *block(NORMS, bias=False),
            *norm("final_norm", "model.norm", bias=False),
        ),
        ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
        prefix="model.",
    )


_REQUIRED = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
"""{rope_type: the numbers that it needs}."""


def read_rope(keys: dict[str, Any]) -> dict[str, Any]:
    """Moves rotary positions into one key, `rope_parameters`, as in version 5.

    Raises:
      UserError: a scaled kind of positions lacks a number; none is made up.
    """
    old = {"rope_theta", "rope_scaling"} & set(keys)
    rope = {"rope_theta": keys.pop("rope_theta", 10_000.0), **(keys.pop("rope_scaling", None) or {})} if old else {}
    rope |= keys.pop("rope_parameters", None) or {}
    if "type" in rope:
        rope.setdefault("rope_type", rope.pop("type"))
        rope.pop("type", None)
    kind = rope.get("rope_type")
    for key in _REQUIRED.get(kind, ()) if isinstance(kind, str) else ():
        if rope.get(key) is None:
            raise UserError(f"config.json: rope_parameters.{key}: is missing; rope_type {kind} needs it")
    if kind == "llama3":
        positions = keys.get("max_position_embeddings")
        if positions is not None:  # as transformers does
            rope.setdefault("original_max_position_embeddings", positions)
        if rope.get("original_max_position_embeddings") is None:
            raise UserError(
                "config.json: rope_parameters.original_max_position_embeddings: is missing; rope_type llama3 needs it"
            )
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if all(isinstance(x, (int, float)) for x in (low, high)) and high <= low:
            raise UserError(
                f"config.json: rope_parameters.high_freq_factor: wants more than low_freq_factor ({low}), got {high}"
            )
    return keys | ({"rope_parameters": rope} if rope else {})


def write_rope(keys: dict[str, Any], config: LlamaConfig) -> dict[str, Any]:
    """Writes rotary positions for versions before and after 5, without unused keys."""
    rope = keys["rope_parameters"]
    used = {"default": (), "linear": ("factor",)}.get(rope["rope_type"], tuple(rope))
    rope = {key: value for key, value in rope.items() if key in ("rope_theta", "rope_type", *used)}
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    old = {"rope_theta": rope["rope_theta"], "rope_scaling": None if rope["rope_type"] == "default" else scaling}
    return keys | {"rope_parameters": rope} | old


def _options(heads: int | None, positions: int) -> tuple[Option, ...]:
    scaling = {"default": "none", "linear": "linear", "llama3": "llama3"}
    return (
        Option("vocab_size", "vocab_size", 32000),
        Option("hidden_size", "embed_dim", 4096),
        Option("intermediate_size", "mlp_dim", 11008 if heads is None else 14336),
        Option("num_hidden_layers", "layers", 32),
        Option("num_attention_heads", "heads", 32),
        Option("num_key_value_heads", "kv_heads", heads),
        Option("head_dim", "head_dim", None),
        Option("max_position_embeddings", "max_positions", positions),
        Option("hidden_act", "activation", "silu", ACTIVATIONS),
        Option("rms_norm_eps", "epsilon", 1e-6),
        Option("tie_word_embeddings", "tie_embeddings", False),
        Option("attention_dropout", "dropout", 0.0),
        Option("rope_parameters.rope_theta", "rope_theta", 10_000.0),
        Option("rope_parameters.rope_type", "rope_scaling", "default", scaling),
        Option("rope_parameters.factor", "rope_factor", 1.0),
        Option("rope_parameters.low_freq_factor", "rope_low_frequency", 1.0),
        Option("rope_parameters.high_freq_factor", "rope_high_frequency", 4.0),
        Option("rope_parameters.original_max_position_embeddings", "rope_original_positions", 8192),
    )


FIXED = {"partial_rotary_factor": 1.0, "rope_parameters.partial_rotary_factor": 1.0}

FAMILIES = (
    Family(
        model_type="llama",
        kind="llama",
        classes="LlamaForCausalLM",
        table=table,
        tasks=tasks("Llama", classes="score", tags="score")
        | {"span": Task("LlamaForQuestionAnswering", "qa_outputs", prefix=("model.", "transformer."))},
        options=(
            *_options(None, 2048),
            Option("attention_bias", "attention_bias", False),
            Option("mlp_bias", "mlp_bias", False),
        ),
        fixed=FIXED,
        harmless=("pretraining_tp",),
        read=read_rope,
        write=write_rope,
        supports=lambda config: config.window is None,
    ),
    Family(
        model_type="mistral",
        kind="llama",
        classes="MistralForCausalLM",
        table=table,
        tasks=tasks("Mistral", classes="score", tags="score"),
        options=(*_options(8, 131_072), Option("sliding_window", "window", 4096)),
        fixed=FIXED,
        read=read_rope,
        write=write_rope,
        supports=lambda config: not (config.attention_bias or config.mlp_bias),
    ),
)
