"""StableLM as Hugging Face's `StableLmForCausalLM`."""

from __future__ import annotations

import functools

from jaxpt.hf import rope
from jaxpt.hf.decoders import LLAMA, family, options, table
from jaxpt.hf.options import Option
from jaxpt.hf.tasks import tasks

DEFAULTS = {
    "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "num_key_value_heads": 32,
    "max_position_embeddings": 4096, "layer_norm_eps": 1e-5, "hidden_act": "silu", "partial_rotary_factor": 0.25,
}  # fmt: skip
NAMES = LLAMA | {
    "attention/query_norm": "self_attn.q_layernorm.norms.{piece}",
    "attention/key_norm": "self_attn.k_layernorm.norms.{piece}",
}  # fmt: skip

FAMILIES = (
    family(
        "stablelm", "StableLm", {"norm": "layer"},
        (
            *options(10_000.0, **DEFAULTS),
            Option("use_qkv_bias", "qkv_bias", False),
            Option("qk_layernorm", "qk_norm", False, {False: "none", True: "per_head"}),
            Option("use_parallel_residual", "parallel", False, {False: "no", True: "one_norm"}),
        ),
        table=functools.partial(table, names=NAMES),
        write=lambda keys, config: rope.write(keys, config) | {"use_qkv_bias": bool(config.qkv_bias)},
        dropouts=("hidden_dropout",), tasks=tasks("StableLm", classes="score", tags="score", span=None),
    ),
)  # fmt: skip
