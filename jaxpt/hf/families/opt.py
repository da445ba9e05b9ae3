"""OPT as Hugging Face's `OPTForCausalLM`."""

from __future__ import annotations

from typing import Any

from jaxpt.errors import UserError
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import Row, Table, layer, norm, vocabulary
from jaxpt.hf.tasks import tasks
from jaxpt.models.opt import OPTConfig

BLOCK = {
    "attention/query": "self_attn.q_proj", "attention/key": "self_attn.k_proj", "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.out_proj", "attention_norm": "self_attn_layer_norm", "feed_forward/up": "fc1",
    "feed_forward/down": "fc2", "feed_forward_norm": "final_layer_norm",
}  # fmt: skip


def table(config: OPTConfig) -> Table:
    """Weight table of OPT."""
    return Table(
        rows=(
            *vocabulary("model.decoder.embed_tokens.weight", config.tie_embeddings),
            Row("position_embed/table", "model.decoder.embed_positions.weight"),
            *layer("decoder/segment_0/block_0", "model.decoder.layers.{layer}", BLOCK),
            *norm("final_norm", "model.decoder.final_layer_norm"),
        ),
        prefix="model.",
    )


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    width = keys.get("hidden_size", 768)
    if (keys.pop("word_embed_proj_dim", None) or width) != width:
        raise UserError("config.json: word_embed_proj_dim: only hidden_size is supported")
    return keys


FAMILIES = (
    Family(
        model_type="opt",
        kind="opt",
        classes="OPTForCausalLM",
        table=table,
        tasks=tasks("OPT", classes="score", tags=None),
        options=(
            Option("vocab_size", "vocab_size", 50272),
            Option("hidden_size", "embed_dim", 768),
            Option("num_hidden_layers", "layers", 12),
            Option("num_attention_heads", "heads", 12),
            Option("ffn_dim", "mlp_dim", 3072),
            Option("max_position_embeddings", "max_positions", 2048),
            Option("activation_function", "activation", "relu", ACTIVATIONS),
            Option("dropout", "dropout", 0.1),
            Option("tie_word_embeddings", "tie_embeddings", True),
        ),
        fixed={
            "do_layer_norm_before": True, "_remove_final_layer_norm": False, "enable_bias": True,
            "layer_norm_elementwise_affine": True,
        },
        dropouts=("attention_dropout",),
        harmless=("init_std",),
        read=_read,
        write=lambda keys, config: keys | {
            "ffn_dim": config.mlp_dim or 4 * config.embed_dim, "word_embed_proj_dim": config.embed_dim,
        },
        supports=lambda config: config.epsilon == 1e-5,  # config.json has no key for it
    ),
)  # fmt: skip
