"""GPT-2 as Hugging Face's `GPT2LMHeadModel`, whose projections are [in, out], as in jaxpt."""

from __future__ import annotations

from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import Row, Table, conv1d, norm, vocabulary
from jaxpt.hf.tasks import tasks
from jaxpt.models.gpt2 import GPT2Config

OURS, THEIRS = "decoder/segment_0/block_0", "transformer.h.{layer}"
BLOCK = (
    *norm(f"{OURS}/attention_norm", f"{THEIRS}.ln_1"),
    *conv1d(tuple(f"{OURS}/attention/{name}" for name in ("query", "key", "value")), f"{THEIRS}.attn.c_attn"),
    *conv1d(f"{OURS}/attention/output", f"{THEIRS}.attn.c_proj"),
    *norm(f"{OURS}/feed_forward_norm", f"{THEIRS}.ln_2"),
    *conv1d(f"{OURS}/feed_forward/up", f"{THEIRS}.mlp.c_fc"),
    *conv1d(f"{OURS}/feed_forward/down", f"{THEIRS}.mlp.c_proj"),
)
"""Rows of a layer."""


def table(config: GPT2Config) -> Table:
    """Weight table of GPT-2."""
    return Table(
        rows=(
            *vocabulary("transformer.wte.weight", config.tie_embeddings),
            Row("position_embed/table", "transformer.wpe.weight"),
            *BLOCK,
            *norm("final_norm", "transformer.ln_f"),
        ),
        ignored=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
        prefix="transformer.",
    )


FAMILIES = (
    Family(
        model_type="gpt2",
        kind="gpt2",
        classes="GPT2LMHeadModel",
        table=table,
        tasks=tasks("GPT2", classes="score"),
        options=(
            Option("vocab_size", "vocab_size", 50257),
            Option("n_positions", "max_positions", 1024),
            Option("n_embd", "embed_dim", 768),
            Option("n_layer", "layers", 12),
            Option("n_head", "heads", 12),
            Option("n_inner", "mlp_dim", None),
            Option("activation_function", "activation", "gelu_new", ACTIVATIONS),
            Option("layer_norm_epsilon", "epsilon", 1e-5),
            Option("resid_pdrop", "dropout", 0.1),
            Option("tie_word_embeddings", "tie_embeddings", True),
        ),
        fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        dropouts=("embd_pdrop", "attn_pdrop"),
        harmless=(
            "n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj",
            "summary_activation", "summary_proj_to_labels",
        ),
    ),
)  # fmt: skip
