"""OPT as Hugging Face's `OPTForCausalLM`."""

from __future__ import annotations

from typing import Any

from jaxpt.errors import UserError
from jaxpt.hf.mapping import Row, Table, dense, layer_norm
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.tasks import tasks
from jaxpt.models.opt import OPTConfig

OURS, THEIRS = "decoder/segment_0/block_0", "model.decoder.layers.{layer}"


def table(config: OPTConfig) -> Table:
    """Weight table of OPT."""
    attention = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    projections = (dense(f"{OURS}/attention/{mine}", f"{THEIRS}.self_attn.{name}") for mine, name in attention.items())
    tied = ("lm_head.weight",) if config.tie_embeddings else ()
    return Table(
        rows=(
            Row("token_embed/table", "model.decoder.embed_tokens.weight", tied=tied),
            Row("position_embed/table", "model.decoder.embed_positions.weight"),
            *(row for rows in projections for row in rows),
            *layer_norm(f"{OURS}/attention_norm", f"{THEIRS}.self_attn_layer_norm"),
            *dense(f"{OURS}/feed_forward/up", f"{THEIRS}.fc1"),
            *dense(f"{OURS}/feed_forward/down", f"{THEIRS}.fc2"),
            *layer_norm(f"{OURS}/feed_forward_norm", f"{THEIRS}.final_layer_norm"),
            *layer_norm("final_norm", "model.decoder.final_layer_norm"),
            *(() if config.tie_embeddings else dense("head", "lm_head", bias=False)),
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
