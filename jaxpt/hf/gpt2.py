"""Names of a GPT-2's weights in Hugging Face's `GPT2LMHeadModel`, whose projections store [in, out] as ours do."""

from __future__ import annotations

from jaxpt.hf.mapping import Row, Table, layer_norm
from jaxpt.models.gpt2 import GPT2Config

OURS, THEIRS = "decoder/segment_0/block_0", "transformer.h.{layer}"


def _conv1d(ours: str | tuple[str, ...], theirs: str) -> tuple[Row, ...]:
    """Rows of a projection; several of ours are one of theirs."""
    paths = (ours,) if isinstance(ours, str) else ours
    return tuple(
        Row(tuple(f"{OURS}/{path}/{mine}" for path in paths), f"{THEIRS}.{theirs}.{name}")
        for mine, name in (("kernel", "weight"), ("bias", "bias"))
    )


def table(config: GPT2Config) -> Table:
    """The table of a GPT-2."""
    return Table(
        rows=(
            Row("token_embed/table", "transformer.wte.weight", tied=("lm_head.weight",)),
            Row("position_embed/table", "transformer.wpe.weight"),
            *layer_norm(f"{OURS}/attention_norm", f"{THEIRS}.ln_1"),
            *_conv1d(("attention/query", "attention/key", "attention/value"), "attn.c_attn"),
            *_conv1d("attention/output", "attn.c_proj"),
            *layer_norm(f"{OURS}/feed_forward_norm", f"{THEIRS}.ln_2"),
            *_conv1d("feed_forward/up", "mlp.c_fc"),
            *_conv1d("feed_forward/down", "mlp.c_proj"),
            *layer_norm("final_norm", "transformer.ln_f"),
        ),
        ignored=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
    )
