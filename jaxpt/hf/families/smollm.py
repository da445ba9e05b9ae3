"""SmolLM 3 as Hugging Face's `SmolLM3ForCausalLM`; SmolLM 1 and 2 are Llama."""

from __future__ import annotations

from typing import Any

from jaxpt.hf import rope
from jaxpt.hf.decoders import MAX_LAYERS, check_layers, family, llama_tasks, options, shortest, take_period
from jaxpt.hf.options import Option
from jaxpt.models.decoder_only import DecoderOnlyConfig

DEFAULTS = {
    "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
    "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """In `no_rope_layers`, 1 is a layer with rotary positions; a window counts only with `use_sliding_window`."""
    keys = rope.read(keys, 2_000_000.0)
    keys.pop("layer_types", None)
    count, every = keys.get("num_hidden_layers", 36), take_period(keys, "no_rope_layer_interval", 4)
    if not isinstance(count, int) or not 0 < count <= MAX_LAYERS:
        return keys  # the number is refused later
    rotated = keys.get("no_rope_layers")
    rotated = [int((i + 1) % every != 0) for i in range(count)] if rotated is None else rotated
    check_layers("no_rope_layers", rotated, count, kinds=(0, 1))
    return keys | {"no_rope_layers": shortest(["main" if x else "other" for x in rotated])}


def _write(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    return rope.write(keys, config) | {"no_rope_layers": [int(kind == "main") for kind in config.layer_kinds()]}


FAMILIES = (
    family(
        "smollm3", "SmolLM3", {"other_rope": "none"},
        (*options(2_000_000.0, **DEFAULTS), Option("no_rope_layers", "pattern", ["main"])),
        read=_read, write=_write, fixed={"use_sliding_window": False},
        harmless=("sliding_window", "max_window_layers", "pretraining_tp"),
        tasks=llama_tasks("SmolLM3"),
    ),
)  # fmt: skip
