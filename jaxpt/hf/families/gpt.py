"""GPT (2018) as Hugging Face's `OpenAIGPTLMHeadModel`."""

from __future__ import annotations

from jaxpt.hf.options import Family, Option
from jaxpt.hf.table import Row, Table, conv1d, norm, vocabulary
from jaxpt.hf.tasks import tasks
from jaxpt.models.gpt import GPTConfig

OURS, THEIRS = "decoder/segment_0/block_0", "transformer.h.{layer}"


def table(config: GPTConfig) -> Table:
    """Weight table of GPT."""
    attention = tuple(f"{OURS}/attention/{name}" for name in ("query", "key", "value"))
    return Table(
        rows=(
            *vocabulary("transformer.tokens_embed.weight", True),
            Row("position_embed/table", "transformer.positions_embed.weight"),
            *conv1d(attention, f"{THEIRS}.attn.c_attn"),
            *conv1d(f"{OURS}/attention/output", f"{THEIRS}.attn.c_proj"),
            *norm(f"{OURS}/attention_norm", f"{THEIRS}.ln_1"),
            *conv1d(f"{OURS}/feed_forward/up", f"{THEIRS}.mlp.c_fc"),
            *conv1d(f"{OURS}/feed_forward/down", f"{THEIRS}.mlp.c_proj"),
            *norm(f"{OURS}/feed_forward_norm", f"{THEIRS}.ln_2"),
        ),
        ignored=(r"transformer\.h\.\d+\.attn\.bias", r"transformer\.position_ids"),
        prefix="transformer.",
    )


FAMILIES = (
    Family(
        model_type="openai-gpt",
        kind="gpt",
        classes="OpenAIGPTLMHeadModel",
        table=table,
        tasks=tasks("OpenAIGPT", classes="score", tags=None, span=None),
        options=(
            Option("vocab_size", "vocab_size", 40478),
            Option("n_positions", "max_positions", 512),
            Option("n_embd", "embed_dim", 768),
            Option("n_layer", "layers", 12),
            Option("n_head", "heads", 12),
            # In this class "gelu" means the tanh approximation.
            Option("afn", "activation", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
            Option("layer_norm_epsilon", "epsilon", 1e-5),
            Option("resid_pdrop", "dropout", 0.1),
        ),
        fixed={"tie_word_embeddings": True, "predict_special_tokens": True},
        dropouts=("embd_pdrop", "attn_pdrop"),
        harmless=(
            "n_ctx", "n_special", "summary_type", "summary_use_proj", "summary_activation",
            "summary_proj_to_labels",
        ),
        supports=lambda config: config.mlp_dim in (None, 4 * config.embed_dim),  # config.json has no key for it
    ),
)  # fmt: skip
