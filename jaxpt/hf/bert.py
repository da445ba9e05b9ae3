"""Names of a BERT's weights in Hugging Face's `BertForPreTraining`."""

from __future__ import annotations

from jaxpt.hf.mapping import Row, Table, dense, layer_norm
from jaxpt.models.bert import BertConfig

OURS, THEIRS = "encoder/segment_0/block_0", "bert.encoder.layer.{layer}"


def table(config: BertConfig) -> Table:
    """The table of a BERT with both pretraining heads."""
    embeddings, head = "bert.embeddings", "cls.predictions"
    return Table(
        rows=(
            Row("token_embed/table", f"{embeddings}.word_embeddings.weight", tied=(f"{head}.decoder.weight",)),
            Row("position_embed/table", f"{embeddings}.position_embeddings.weight"),
            Row("type_embed/table", f"{embeddings}.token_type_embeddings.weight"),
            *layer_norm("embed_norm", f"{embeddings}.LayerNorm"),
            *dense(f"{OURS}/attention/query", f"{THEIRS}.attention.self.query"),
            *dense(f"{OURS}/attention/key", f"{THEIRS}.attention.self.key"),
            *dense(f"{OURS}/attention/value", f"{THEIRS}.attention.self.value"),
            *dense(f"{OURS}/attention/output", f"{THEIRS}.attention.output.dense"),
            *layer_norm(f"{OURS}/attention_norm", f"{THEIRS}.attention.output.LayerNorm"),
            *dense(f"{OURS}/feed_forward/up", f"{THEIRS}.intermediate.dense"),
            *dense(f"{OURS}/feed_forward/down", f"{THEIRS}.output.dense"),
            *layer_norm(f"{OURS}/feed_forward_norm", f"{THEIRS}.output.LayerNorm"),
            *dense("pooler/dense", "bert.pooler.dense"),
            *dense("mlm_head/dense", f"{head}.transform.dense"),
            *layer_norm("mlm_head/norm", f"{head}.transform.LayerNorm"),
            Row("mlm_head/bias", f"{head}.bias", tied=(f"{head}.decoder.bias",)),
            *dense("next_sentence_head/dense", "cls.seq_relationship"),
        ),
        ignored=(r"bert\.embeddings\.position_ids",),
    )
