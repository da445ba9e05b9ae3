"""DistilBERT as Hugging Face's `DistilBertForMaskedLM`."""

from __future__ import annotations

from jaxpt.hf.families import bert
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import Row, Table, layer
from jaxpt.hf.tasks import tasks
from jaxpt.models.distilbert import DistilBertConfig

BLOCK = {
    "attention/query": "attention.q_lin", "attention/key": "attention.k_lin", "attention/value": "attention.v_lin",
    "attention/output": "attention.out_lin", "attention_norm": "sa_layer_norm", "feed_forward/up": "ffn.lin1",
    "feed_forward/down": "ffn.lin2", "feed_forward_norm": "output_layer_norm",
}  # fmt: skip


def table(config: DistilBertConfig) -> Table:
    """Weight table of DistilBERT."""
    layers = layer(bert.OURS, "distilbert.transformer.layer.{layer}", BLOCK)
    rows = (*bert.embeddings("distilbert.embeddings", types=False), *layers)
    return Table(rows, ignored=bert.IGNORED, prefix="distilbert.")


FAMILIES = (
    Family(
        model_type="distilbert",
        kind="distilbert",
        classes={("masked_lm",): "DistilBertForMaskedLM", (): "DistilBertModel"},
        table=table,
        heads={
            "masked_lm": lambda config: bert.masked_lm(
                "vocab_transform", "vocab_layer_norm", Row("bias", "vocab_projector.bias"), "vocab_projector.weight"
            )
        },
        tasks=tasks("DistilBert", classes=("pre_classifier", "classifier"), choice=("pre_classifier", "classifier")),
        options=(
            Option("vocab_size", "vocab_size", 30522),
            Option("dim", "embed_dim", 768),
            Option("n_layers", "layers", 6),
            Option("n_heads", "heads", 12),
            Option("hidden_dim", "mlp_dim", 3072),
            Option("max_position_embeddings", "max_positions", 512),
            Option("activation", "activation", "gelu", ACTIVATIONS),
            Option("dropout", "dropout", 0.1),
        ),
        fixed={"tie_word_embeddings": True},
        # Sinusoidal positions are stored as a table.
        dropouts=("attention_dropout",),
        harmless=("sinusoidal_pos_embds", "tie_weights_"),
        supports=lambda config: config.epsilon == 1e-12,  # config.json has no key for it
    ),
)
