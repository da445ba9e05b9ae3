"""OLMo 2 and 3 as Hugging Face's `Olmo2ForCausalLM` and `Olmo3ForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.hf import rope
from jaxpt.hf.decoders import LLAMA, family, options, read_layers, table, write_layers
from jaxpt.hf.options import Option
from jaxpt.hf.tasks import tasks

OLMO2 = {"norm_position": "after", "qk_norm": "heads"}
DEFAULTS = {"vocab_size": 50304, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False}
NAMES = LLAMA | {
    "attention_output_norm": "post_attention_layernorm", "feed_forward_output_norm": "post_feedforward_layernorm"
}  # fmt: skip
TABLE = functools.partial(table, names=NAMES)


def _read_3(keys: dict[str, Any]) -> dict[str, Any]:
    return read_layers(rope.read(keys, 500_000.0, by_kind=True), 32, lambda i: (i + 1) % 4 != 0)


FAMILIES = (
    family(
        "olmo2", "Olmo2", OLMO2, options(10_000.0, **DEFAULTS), table=TABLE,
        tasks=tasks("Olmo2", classes="score", tags=None, span=None),
    ),
    family(
        "olmo3", "Olmo3", OLMO2 | {"other_rope": "unscaled"},
        (
            *options(500_000.0, **DEFAULTS),
            Option("layer_types", "pattern", ["other", "other", "other", "main"]),
            Option("sliding_window", "other_window", 4096),
            Option("rope_local_base_freq", "other_rope_theta", 500_000.0),
        ),
        table=TABLE, tasks=tasks("Olmo3", classes="score", tags=None, span=None), read=_read_3,
        write=lambda keys, config: write_layers(rope.write_by_kind(keys, config), config),
    ),
)  # fmt: skip
