"""Names of a T5's weights, 1.0 and 1.1, in Hugging Face's `T5ForConditionalGeneration`."""

from __future__ import annotations

from jaxpt.hf.mapping import Row, Table, dense
from jaxpt.models.t5 import T5Config


def _attention(ours: str, theirs: str) -> tuple[Row, ...]:
    names = {"query": "q", "key": "k", "value": "v", "output": "o"}
    return tuple(row for mine, name in names.items() for row in dense(f"{ours}/{mine}", f"{theirs}.{name}", bias=False))


def _stack(side: str, config: T5Config) -> tuple[Row, ...]:
    """Rows of the encoder or the decoder; there a layer is a list of two or three blocks, each with its norm."""
    ours, theirs = f"{side}/segment_0/block_0", f"{side}.block.{{layer}}.layer"
    parts = {"attention": "SelfAttention"} | ({"cross_attention": "EncDecAttention"} if side == "decoder" else {})
    rows: list[Row] = []
    for i, (mine, name) in enumerate(parts.items()):
        rows += _attention(f"{ours}/{mine}", f"{theirs}.{i}.{name}")
        rows.append(Row(f"{ours}/{mine}_norm/scale", f"{theirs}.{i}.layer_norm.weight"))
    last = len(parts)
    gated = config.feed_forward == "gated_gelu"
    wide = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
    for mine, name in (wide | {"down": "wo"}).items():
        rows += dense(f"{ours}/feed_forward/{mine}", f"{theirs}.{last}.DenseReluDense.{name}", bias=False)
    rows.append(Row(f"{ours}/feed_forward_norm/scale", f"{theirs}.{last}.layer_norm.weight"))
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return (*rows, Row(f"{side}_bias/table", bias), Row(f"{side}_norm/scale", f"{side}.final_layer_norm.weight"))


def table(config: T5Config) -> Table:
    """The table of a T5 with the options of `config`."""
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tied = (*copies, "lm_head.weight") if config.tie_embeddings else copies
    head = () if config.tie_embeddings else dense("head", "lm_head", bias=False)
    return Table(
        rows=(
            Row("token_embed/table", "shared.weight", tied=tied),
            *_stack("encoder", config),
            *_stack("decoder", config),
            *head,
        ),
        # The first release had a bias table in cross-attention, which nothing reads.
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )
