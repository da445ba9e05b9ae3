"""Phi 3, 3.5 and 4 as Hugging Face's `Phi3ForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.hf.decoders import family, options, read, table, write
from jaxpt.hf.options import Option
from jaxpt.models.decoder_only import DecoderOnlyConfig

DEFAULTS = {
    "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
SCALING = Option("rope_parameters.rope_type", "rope_scaling", "default", {"default": "none", "longrope": "longrope"})


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """In these files `su` and `yarn` mean longrope, whose factor follows from the two lengths."""
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := keys.get(name), dict):
            for key in ("type", "rope_type"):
                rope = rope | ({key: "longrope"} if rope.get(key) in ("su", "yarn") else {})
            keys[name] = rope
    share, original = keys.pop("partial_rotary_factor", 1.0), keys.pop("original_max_position_embeddings", 4096)
    keys = read(keys, 10_000.0, lambda i, keys: False)
    keys.pop("layer_types")
    rope = keys.setdefault("rope_parameters", {})
    rope.setdefault("partial_rotary_factor", share)
    rope.setdefault("original_max_position_embeddings", original)
    if rope.get("rope_type") == "longrope" and rope.get("factor") is None:
        rope["factor"] = keys.get("max_position_embeddings", 4096) / rope["original_max_position_embeddings"]
    return keys


def _write(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    keys = write(keys, config)
    original = config.rope_original_positions if config.rope_scaling == "longrope" else config.max_positions
    return keys | {"partial_rotary_factor": config.rotary_share, "original_max_position_embeddings": original}


OPTIONS = (
    *(SCALING if option.theirs == SCALING.theirs else option for option in options(10_000.0, **DEFAULTS)),
    Option("rope_parameters.short_factor", "rope_short_factors", []),
    Option("rope_parameters.long_factor", "rope_long_factors", []),
    Option("rope_parameters.partial_rotary_factor", "rotary_share", 1.0),
    Option("sliding_window", "window", None),
)
FAMILIES = (
    family(
        "phi3", "Phi3", {}, OPTIONS, table=functools.partial(table, is_fused=True), read=_read, write=_write,
    ),
)  # fmt: skip
