"""GPT (2018) as Hugging Face's `OpenAIGPTLMHeadModel`."""

from __future__ import annotations

from jaxpt.hf.families.gpt2 import BLOCK
from jaxpt.hf.options import Family, Option
from jaxpt.hf.table import Row, Table, vocabulary
from jaxpt.hf.tasks import tasks

TABLE = Table(
    rows=(
        *vocabulary("transformer.tokens_embed.weight", True),
        Row("position_embed/table", "transformer.positions_embed.weight"),
        *BLOCK,
    ),
    ignored=(r"transformer\.h\.\d+\.attn\.bias", r"transformer\.position_ids"),
    prefix="transformer.",
)
FAMILIES = (
    Family(
        model_type="openai-gpt",
        kind="gpt",
        classes="OpenAIGPTLMHeadModel",
        table=lambda config: TABLE,
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
