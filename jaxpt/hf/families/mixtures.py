"""Mixtures of experts: Mixtral, Qwen 3 MoE and OLMoE as Hugging Face's `…ForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.errors import UserError
from jaxpt.hf import rope
from jaxpt.hf.decoders import EXPERTS, LLAMA, MAX_LAYERS, family, llama_tasks, options, table
from jaxpt.hf.options import Option
from jaxpt.hf.tasks import tasks
from jaxpt.models.decoder_only import DecoderOnlyConfig

FUSED = ("gate_proj", "up_proj", "down_proj")
TABLE = functools.partial(table, names=LLAMA | EXPERTS, fused_experts=FUSED)
_W = {"gate": "w1", "up": "w3", "down": "w2"}
_MIXTRAL = {"router": "block_sparse_moe.gate"} | {
    f"expert/{ours}": f"block_sparse_moe.experts.{{expert}}.{theirs}" for ours, theirs in _W.items()
}
_MIXTRAL_TABLE = functools.partial(
    table, names=LLAMA | _MIXTRAL, fused_experts=tuple(_W.values()), renamed=((r"\.mlp\.", ".block_sparse_moe."),)
)
HARMLESS = ("output_router_logits",)


def _read_qwen(keys: dict[str, Any]) -> dict[str, Any]:
    """Reads the keys of Qwen 3 MoE: the window counts only with `use_sliding_window`."""
    keys = rope.read(keys, 10_000.0)
    is_used = keys.pop("use_sliding_window", False)
    keys.pop("max_window_layers", None)
    if (count := keys.pop("num_local_experts", None)) is not None:  # as transformers 5.24 writes it
        keys.setdefault("num_experts", count)
    keys["sliding_window"] = keys.get("sliding_window", 4096) if is_used else None
    dense, layers = keys.get("mlp_only_layers") or [], keys.get("num_hidden_layers", 24)
    if isinstance(layers, int) and layers <= MAX_LAYERS and all(i in dense for i in range(layers)):
        raise UserError("config.json: mlp_only_layers: names all layers, so there are no experts; this is a qwen3")
    return keys | {"mlp_only_layers": dense}


def _write_qwen(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    return rope.write(keys, config) | {"use_sliding_window": config.window is not None}


def _router(experts: str, count: int, per_token: int, weight: float) -> tuple[Option, ...]:
    return (
        Option(experts, "experts", count),
        Option("num_experts_per_tok", "experts_per_token", per_token),
        Option("router_aux_loss_coef", "balance_weight", weight),
    )


FAMILIES = (
    family(
        "mixtral", "Mixtral", {"router_normalized": True},
        (
            *options(
                1_000_000.0, intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131_072,
                rms_norm_eps=1e-5, head_dim=None, hidden_act="silu",
            ),
            Option("sliding_window", "window", None),
            Option("router_jitter_noise", "router_jitter", 0.0),
            *_router("num_local_experts", 8, 2, 0.001),
        ),
        table=_MIXTRAL_TABLE, tasks=tasks("Mixtral", classes="score", tags="score"), harmless=HARMLESS,
        can=lambda config: config.experts is not None, read=lambda keys: rope.read(keys, 1_000_000.0),
    ),
    family(
        "qwen3_moe", "Qwen3Moe", {"qk_norm": "head"},
        (
            *options(
                10_000.0, vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=24,
                num_key_value_heads=4, max_position_embeddings=32768, hidden_act="silu", head_dim=None,
                attention_bias=False,
            ),
            Option("sliding_window", "window", None),
            Option("moe_intermediate_size", "expert_dim", 768),
            Option("norm_topk_prob", "router_normalized", False),
            Option("decoder_sparse_step", "sparse_every", 1),
            Option("mlp_only_layers", "dense_layers", ()),
            *_router("num_experts", 128, 8, 0.001),
        ),
        table=TABLE, tasks=llama_tasks("Qwen3Moe"), harmless=HARMLESS,
        can=lambda config: config.experts is not None, read=_read_qwen, write=_write_qwen,
    ),
    family(
        "olmoe", "Olmoe", {"qk_norm": "heads"},
        (
            *options(
                10_000.0, vocab_size=50304, hidden_size=2048, intermediate_size=2048, num_hidden_layers=16,
                num_attention_heads=16, max_position_embeddings=4096, rms_norm_eps=1e-5, hidden_act="silu",
                attention_bias=False,
            ),
            Option("clip_qkv", "clip_qkv", None),
            Option("norm_topk_prob", "router_normalized", False),
            *_router("num_experts", 64, 8, 0.01),
        ),
        table=TABLE, tasks={}, harmless=HARMLESS, can=lambda config: config.experts is not None,
    ),
)  # fmt: skip
