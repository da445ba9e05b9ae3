"""OLMo 2 and 3 as Hugging Face's `Olmo2ForCausalLM` and `Olmo3ForCausalLM`."""

from __future__ import annotations

from typing import Any

from jaxpt.hf.decoders import family, options, read, write, write_by_kind
from jaxpt.hf.options import Option

OWN = {"norm_position": "after", "qk_norm": "heads"}
DEFAULTS = {"vocab_size": 50304, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False}


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    keys = read(keys, 10_000.0, lambda i, keys: False)
    return {key: value for key, value in keys.items() if key != "layer_types"}


def _read_3(keys: dict[str, Any]) -> dict[str, Any]:
    return read(keys, 500_000.0, lambda i, keys: (i + 1) % 4 != 0)


FAMILIES = (
    family("olmo2", "Olmo2", OWN, options(10_000.0, **DEFAULTS), read=_read, write=write),
    family(
        "olmo3", "Olmo3", OWN | {"other_rope": "unscaled"},
        (
            *options(500_000.0, **DEFAULTS),
            Option("layer_types", "pattern", ["other", "other", "other", "main"]),
            Option("sliding_window", "other_window", 4096),
            Option("rope_local_base_freq", "other_rope_theta", 500_000.0),
        ),
        read=_read_3, write=write_by_kind,
    ),
)  # fmt: skip
