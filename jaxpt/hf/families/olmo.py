"""OLMo 2 as Hugging Face's `Olmo2ForCausalLM`."""

from __future__ import annotations

from typing import Any

from jaxpt.hf.decoders import family, options, read, write

OWN = {"norm_position": "after", "qk_norm": "heads"}
OPTIONS = options(10_000.0, vocab_size=50304, rms_norm_eps=1e-5, hidden_act="silu", attention_bias=False)


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    keys = read(keys, 10_000.0, lambda i, keys: False)
    return {key: value for key, value in keys.items() if key != "layer_types"}


FAMILIES = (family("olmo2", "Olmo2", OWN, OPTIONS, read=_read, write=write),)
