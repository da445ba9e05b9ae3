"""XGLM as Hugging Face's `XGLMForCausalLM`."""

from __future__ import annotations

import functools
from typing import Any

from jaxpt.errors import UserError, shown
from jaxpt.hf.decoders import family, table
from jaxpt.hf.options import ACTIVATIONS, Option
from jaxpt.models.decoder_only import FIRST_SINUSOID

NAMES = {
    "token_embed": "model.embed_tokens", "layer": "model.layers.{layer}", "final_norm": "model.layer_norm",
    "head": "lm_head", "attention/query": "self_attn.q_proj", "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj", "attention/output": "self_attn.out_proj", "feed_forward/up": "fc1",
    "feed_forward/down": "fc2", "attention_norm": "self_attn_layer_norm", "feed_forward_norm": "final_layer_norm",
}  # fmt: skip
DIFFERENCES = {
    "positions": "sinusoids", "norm": "layer", "gated": False, "attention_bias": True, "mlp_bias": True,
}  # fmt: skip


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """The table of sinusoids has zeros in the row of the padding id; position 0 is row 2."""
    padding = keys.get("pad_token_id", 1)
    if isinstance(padding, int) and padding >= FIRST_SINUSOID:
        raise UserError(f"config.json: pad_token_id: {shown(padding)} is not supported, only 0, 1 or null")
    return keys


FAMILIES = (
    family(
        "xglm", "XGLM", DIFFERENCES,
        (
            Option("vocab_size", "vocab_size", 256008),
            Option("d_model", "embed_dim", 1024),
            Option("ffn_dim", "mlp_dim", 4096),
            Option("num_layers", "layers", 24),
            Option("attention_heads", "heads", 16),
            Option("max_position_embeddings", "max_positions", 2048),
            Option("activation_function", "activation", "gelu", ACTIVATIONS),
            Option("scale_embedding", "scale_embeddings", True),
            Option("dropout", "dropout", 0.1),
            Option("tie_word_embeddings", "tie_embeddings", True),
        ),
        can=lambda config: config.epsilon == 1e-5,  # config.json has no key for it
        fixed={"pad_token_id": 1},
        table=functools.partial(table, names=NAMES, ignored=(r"model\.embed_positions\.weights",)), read=_read,
        write=lambda keys, config: keys, dropouts=("attention_dropout", "activation_dropout"),
        harmless=("init_std", "layerdrop"),
    ),
)  # fmt: skip
