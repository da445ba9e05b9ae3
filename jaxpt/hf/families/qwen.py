"""Qwen 2, 2.5 and 3 as Hugging Face's `Qwen2ForCausalLM` and `Qwen3ForCausalLM`."""

from __future__ import annotations

from typing import Any

from jaxpt.hf import rope
from jaxpt.hf.decoders import family, llama_tasks, options, read_layers, write_layers
from jaxpt.hf.options import Option
from jaxpt.models.decoder_only import DecoderOnlyConfig

DEFAULTS = {
    "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
    "hidden_act": "silu",
}  # fmt: skip
LAYERS = (Option("layer_types", "pattern", ["main"]), Option("sliding_window", "other_window", None))


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """A window counts only if it is used, in the layers from `max_window_layers` on."""
    keys = rope.read(keys, 10_000.0)
    first, window = keys.pop("max_window_layers", None), keys.pop("sliding_window", 4096)
    is_used = keys.pop("use_sliding_window", False) and window is not None
    keys = read_layers(keys, 32, lambda i: is_used and i >= (28 if first is None else first))
    return keys | {"sliding_window": window if is_used and "other" in keys.get("layer_types", ()) else None}


def _write(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    keys = write_layers(rope.write(keys, config), config)
    return keys | {"use_sliding_window": config.other_window is not None}


FAMILIES = (
    family(
        "qwen2", "Qwen2", {"qkv_bias": True}, (*options(10_000.0, **DEFAULTS), *LAYERS), tasks=llama_tasks("Qwen2"),
        read=_read, write=_write, harmless=("use_mrope",),
    ),
    family(
        "qwen3", "Qwen3", {"qk_norm": "head"},
        (*options(10_000.0, **DEFAULTS, head_dim=128, attention_bias=False), *LAYERS), tasks=llama_tasks("Qwen3"),
        read=_read, write=_write,
    ),
)  # fmt: skip
