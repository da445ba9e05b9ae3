"""Llama and Mistral as Hugging Face's `LlamaForCausalLM` and `MistralForCausalLM`."""

from __future__ import annotations

from jaxpt.hf.decoders import family, llama_tasks, options
from jaxpt.hf.options import Option
from jaxpt.hf.tasks import tasks

DEFAULTS = {"head_dim": None, "hidden_act": "silu"}

FAMILIES = (
    family(
        "llama", "Llama", {}, options(10_000.0, **DEFAULTS, attention_bias=False, mlp_bias=False), kind="llama",
        tasks=llama_tasks("Llama"), harmless=("pretraining_tp",),
    ),
    family(
        "mistral", "Mistral", {},
        (
            *options(
                10_000.0, **DEFAULTS, intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131_072
            ),
            Option("sliding_window", "window", 4096),
        ),
        kind="llama", tasks=tasks("Mistral", classes="score", tags="score"),
    ),
)  # fmt: skip
