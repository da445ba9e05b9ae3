"""Phi 3, 3.5 and 4 as Hugging Face's `Phi3ForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.hf import rope
from jaxpt.hf.decoders import ATTENTION, LLAMA, family, options, table
from jaxpt.hf.options import Option
from jaxpt.hf.tasks import tasks
from jaxpt.models.decoder_only import DecoderOnlyConfig

DEFAULTS = {
    "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "partial_rotary_factor": 1.0,
}  # fmt: skip
FIXED = {
    "attention_bias": False, "mlp_bias": False, "lm_head_bias": False, "full_attn_mod": 1, "interpolate_factor": 1,
}  # fmt: skip
"""Keys of published files that transformers does not read; with other values the code of the file's repository would
compute something else."""
NAMES = LLAMA | dict.fromkeys(ATTENTION, "self_attn.qkv_proj") | {
    "feed_forward/gate": "mlp.gate_up_proj", "feed_forward/up": "mlp.gate_up_proj"
}  # fmt: skip


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """In these files `su` and `yarn` mean longrope; lengths that they leave out are the class's."""
    keys = {"original_max_position_embeddings": 4096, "max_position_embeddings": 4096, **keys}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(scaling := keys.get(name), dict):
            types = {key: "longrope" for key in ("type", "rope_type") if scaling.get(key) in ("su", "yarn")}
            keys[name] = scaling | types
    return rope.read(keys, 10_000.0)


def _write(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    original = config.rope_original_positions if config.rope_scaling == "longrope" else config.max_positions
    return rope.write(keys, config) | {"original_max_position_embeddings": original}


FAMILIES = (
    family(
        "phi3", "Phi3", {}, (*options(10_000.0, **DEFAULTS), Option("sliding_window", "window", None)),
        can=lambda config: config.rope_scaling in ("none", "linear", "longrope"),
        table=functools.partial(table, names=NAMES), read=_read, write=_write, fixed=FIXED,
        tasks=tasks("Phi3", classes="score", tags="score", span=None),
    ),
)  # fmt: skip
