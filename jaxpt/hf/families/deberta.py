"""DeBERTa v2 and v3 as Hugging Face's `DebertaV2ForMaskedLM`, or `DebertaV2Model` without a head."""

from __future__ import annotations

from typing import Any

from jaxpt.errors import UserError, shown
from jaxpt.hf.families import bert
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import Row, Table, dense, layer, norm
from jaxpt.hf.tasks import tasks
from jaxpt.models.deberta import DebertaConfig


def _block(config: DebertaConfig) -> dict[str, str]:
    """Names of a layer's parts."""
    names = {f"attention/{name}": f"attention.self.{name}_proj" for name in ("query", "key", "value")}
    if not config.share_projections:
        names |= {"attention/position_key": "attention.self.pos_key_proj"} if config.content_to_position else {}
        names |= {"attention/position_query": "attention.self.pos_query_proj"} if config.position_to_content else {}
    return bert.BLOCK | names


def table(config: DebertaConfig) -> Table:
    """Weight table of DeBERTa."""
    embeddings, encoder = "deberta.embeddings", "deberta.encoder"
    positions = config.absolute_positions or config.mask_decoder
    rows = [
        Row("token_embed/table", f"{embeddings}.word_embeddings.weight"),
        *norm("embed_norm", f"{embeddings}.LayerNorm"),
    ]
    if positions:
        rows.append(Row("position_embed/table", f"{embeddings}.position_embeddings.weight"))
    if config.token_types:
        rows.append(Row("type_embed/table", f"{embeddings}.token_type_embeddings.weight"))
    if config.relative:
        rows.append(Row("relative_table", f"{encoder}.rel_embeddings.weight"))
        rows += norm("relative_norm", f"{encoder}.LayerNorm") if config.norm_relative else ()
    if config.convolution:
        rows += dense("convolution", f"{encoder}.conv.conv")
        rows += norm("convolution/norm", f"{encoder}.conv.LayerNorm")
    for name, layers in config.parts().items():
        ours, theirs = f"{name}/segment_0/block_0", "deberta.encoder.layer.{layer}"
        rows += layer(ours, theirs, _block(config), layers=tuple(layers))
    return Table(
        rows=tuple(rows),
        # The discriminator head of v3; an unused table of absolute positions.
        ignored=(*bert.IGNORED, r"mask_predictions\..*", *(() if positions else (r".*\.position_embeddings\.weight",))),
        prefix="deberta.",
        renamed=(
            (r"^lm_predictions\.lm_head\.(dense|LayerNorm)", r"cls.predictions.transform.\1"),
            (r"^lm_predictions\.lm_head\.bias", "cls.predictions.bias"),
        ),
    )


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    kinds = keys.pop("pos_att_type", None) or []
    kinds = [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else kinds
    norms = [kind.strip() for kind in (keys.get("norm_rel_ebd") or "none").lower().split("|")]
    for key, names, known in (("pos_att_type", kinds, ("c2p", "p2c")), ("norm_rel_ebd", norms, ("none", "layer_norm"))):
        if wrong := [name for name in names if name not in (*known, "")]:
            raise UserError(f"config.json: {key}: {shown(wrong[0])} is not supported, only {' or '.join(known)}")
    relative = keys.pop("relative_attention", False)
    limit = keys.get("max_position_embeddings", 512)
    if (number := keys.pop("max_relative_positions", -1)) not in (-1, 0, limit):
        raise UserError(
            f"config.json: max_relative_positions: {shown(number)} is not supported, only {shown(limit)}, as "
            "max_position_embeddings, or -1"
        )
    width, heads = keys.get("hidden_size") or 1536, keys.get("num_attention_heads") or 24
    if (size := keys.pop("attention_head_size", None)) is not None and size * heads != width:
        raise UserError("config.json: attention_head_size: only hidden_size / num_attention_heads is supported")
    return keys | {
        "pos_att_type.c2p": relative and "c2p" in kinds,
        "pos_att_type.p2c": relative and "p2c" in kinds,
        "position_buckets": buckets if (buckets := keys.get("position_buckets") or -1) > 0 else None,
        "conv_kernel_size": keys.get("conv_kernel_size") or None,
        "norm_rel_ebd": "layer_norm" in norms,
    }


def _write(keys: dict[str, Any], config: DebertaConfig) -> dict[str, Any]:
    return keys | {
        "relative_attention": config.relative,
        "pos_att_type": [kind for kind, used in keys["pos_att_type"].items() if used],
        "position_buckets": config.buckets or -1,
        "max_relative_positions": -1,
        "conv_kernel_size": config.convolution or 0,
        "norm_rel_ebd": "layer_norm" if config.norm_relative else "none",
        "legacy": True,
    }


POOLED = ("pooler.dense", "classifier")
FAMILIES = (
    Family(
        model_type="deberta-v2",
        kind="deberta",
        classes={("masked_lm",): "DebertaV2ForMaskedLM", (): "DebertaV2Model"},
        table=table,
        heads={"masked_lm": bert.HEADS["masked_lm"]},
        tasks=tasks("DebertaV2", classes=POOLED, choice=POOLED, fixed={"pooler_hidden_act": "gelu"}),
        options=(
            *bert.options(
                vocab_size=128100, hidden_size=1536, num_hidden_layers=24, num_attention_heads=24,
                intermediate_size=6144, layer_norm_eps=1e-7, type_vocab_size=0,
            ),
            Option("pos_att_type.c2p", "content_to_position", False),
            Option("pos_att_type.p2c", "position_to_content", False),
            Option("share_att_key", "share_projections", False),
            Option("norm_rel_ebd", "norm_relative", False),
            Option("position_buckets", "buckets", None),
            Option("position_biased_input", "absolute_positions", True),
            Option("conv_kernel_size", "convolution", None),
            Option("conv_act", "convolution_activation", "tanh", ACTIVATIONS),
        ),
        fixed={"tie_word_embeddings": True, "conv_groups": 1, "max_relative_positions": -1},
        harmless=(
            *bert.HARMLESS, "legacy", "pooler_hidden_act", "pooler_hidden_size",
        ),
        dropouts=bert.DROPOUTS,
        read=_read,
        write=_write,
    ),
)  # fmt: skip
