"""ModernBERT as `ModernBertForMaskedLM` or `ModernBertModel`, its decoder as `ModernBertDecoderForCausalLM`."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxpt.errors import UserError, shown
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import HeadTable, Row, Table, dense, layer, norm
from jaxpt.hf.tasks import tasks
from jaxpt.models.modernbert import ModernBertConfig
from jaxpt.models.modernbert_decoder import ModernBertDecoderConfig


def _block(ours: str, numbers: range, config: ModernBertConfig) -> tuple[Row, ...]:
    theirs, at = "model.layers.{layer}", {"layers": tuple(numbers)}
    attention = {f"{ours}/attention/{name}": f"{name[0]}_proj" for name in ("query", "key", "value")}
    fused = {tuple(attention): "Wqkv"}
    feed_forward = tuple(f"{ours}/feed_forward/{name}" for name in ("gate", "up"))
    norms = ({} if numbers[0] == 0 else {"attention_norm": "attn_norm"}) | {"feed_forward_norm": "mlp_norm"}
    return (
        *(
            row
            for paths, name in (fused if config.family == "encoder" else attention).items()
            for row in dense(paths, f"{theirs}.attn.{name}", config.attention_bias, **at)
        ),
        *dense(f"{ours}/attention/output", f"{theirs}.attn.Wo", config.attention_bias, **at),
        *dense(feed_forward, f"{theirs}.mlp.Wi", config.mlp_bias, **at),
        *dense(f"{ours}/feed_forward/down", f"{theirs}.mlp.Wo", config.mlp_bias, **at),
        *layer(ours, theirs, norms, config.norm_bias, **at),
    )


def table(config: ModernBertConfig) -> Table:
    """Weight table of ModernBERT."""
    blocks = (
        row
        for s, segment in enumerate(config.patterns())
        for b, numbers in enumerate(segment)
        for row in _block(f"{config.family}/segment_{s}/block_{b}", numbers, config)
    )
    return Table(
        rows=(
            Row("token_embed/table", "model.embeddings.tok_embeddings.weight"),
            *norm("embed_norm", "model.embeddings.norm", config.norm_bias),
            *blocks,
            *norm("final_norm", "model.final_norm", config.norm_bias),
        ),
        prefix="model.",
    )


def _head(ours: str, theirs: str, config: ModernBertConfig) -> tuple[Row, ...]:
    return (
        *dense(f"{ours}dense", f"{theirs}.dense", config.head_bias),
        *norm(f"{ours}norm", f"{theirs}.norm", config.norm_bias),
        *((Row(f"{ours}bias", "decoder.bias"),) if config.vocab_bias else ()),
    )


def _masked_lm(config: ModernBertConfig) -> HeadTable:
    return HeadTable(_head("", "head", config), tied=("decoder.weight",))


def decoder_table(config: ModernBertDecoderConfig) -> Table:
    """Weight table of the decoder, whose head is a part of it."""
    embeddings, *body = table(config).rows
    embeddings = dataclasses.replace(embeddings, tied=("decoder.weight",))
    return Table((embeddings, *body, *_head("lm_head/", "lm_head", config)), prefix="model.")


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """Converts layer types and rotary bases to flat keys, as before version 5."""
    if (half := keys.pop("sliding_window", None)) is not None:
        keys["local_attention"] = 2 * half
    types = keys.pop("layer_types", None)
    every = keys.setdefault("global_attn_every_n_layers", 3)
    if types is not None:
        every = next((i for i, kind in enumerate(types) if i and kind == "full_attention"), len(types))
        if types != ["sliding_attention" if i % every else "full_attention" for i in range(len(types))]:
            raise UserError(
                "config.json: layer_types: only a global layer every n layers, beginning with the first, is supported"
            )
        keys["global_attn_every_n_layers"] = every
    thetas = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
    if unknown := [key for key in keys.get("rope_parameters") or {} if key not in thetas]:
        raise UserError(f"config.json: rope_parameters.{unknown[0]}: is not supported, only {' and '.join(thetas)}")
    for kind, flat in thetas.items():
        rope = (keys.get("rope_parameters") or {}).get(kind)
        rope = {} if rope is None else rope
        if not isinstance(rope, dict):
            raise UserError(f"config.json: rope_parameters.{kind}: wants a mapping, got {shown(rope)}")
        if unknown := [key for key in rope if key not in ("rope_type", "rope_theta")]:
            raise UserError(f"config.json: rope_parameters.{kind}.{unknown[0]}: is not supported, only rope_theta")
        if rope.get("rope_type", "default") != "default":
            raise UserError(
                f"config.json: rope_parameters.{kind}.rope_type: {shown(rope['rope_type'])} is not supported, "
                "only default"
            )
        if "rope_theta" in rope:
            keys[flat] = rope["rope_theta"]
    return {key: value for key, value in keys.items() if key != "rope_parameters"}


def _write(keys: dict[str, Any], config: ModernBertConfig) -> dict[str, Any]:
    every = config.global_every
    types = ["sliding_attention" if i % every else "full_attention" for i in range(config.layers)]
    thetas = {"full_attention": config.global_theta, "sliding_attention": config.local_theta}
    rope = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}
    ids = dict.fromkeys(("cls_token_id", "sep_token_id"))  # their defaults are ids of the published vocabulary
    return keys | {"layer_types": types, "rope_parameters": rope} | ids


def _write_decoder(keys: dict[str, Any], config: ModernBertDecoderConfig) -> dict[str, Any]:
    # Their class wants numbers; an export writes those of the vocabulary instead, where there is one.
    return _write(keys, config) | dict.fromkeys((f"{name}_token_id" for name in ("pad", "bos", "cls", "sep")), 0)


POOLED = ("head.dense", "classifier")
OPTIONS = (
    Option("vocab_size", "vocab_size", 50368),
    Option("hidden_size", "embed_dim", 768),
    Option("intermediate_size", "mlp_dim", 1152),
    Option("num_hidden_layers", "layers", 22),
    Option("num_attention_heads", "heads", 12),
    Option("hidden_activation", "activation", "gelu", ACTIVATIONS),
    Option("classifier_activation", "head_activation", "gelu", ACTIVATIONS),
    Option("max_position_embeddings", "max_positions", 8192),
    Option("norm_eps", "epsilon", 1e-5),
    Option("norm_bias", "norm_bias", False),
    Option("attention_bias", "attention_bias", False),
    Option("mlp_bias", "mlp_bias", False),
    Option("classifier_bias", "head_bias", False),
    Option("decoder_bias", "vocab_bias", True),
    Option("local_attention", "window", 128),
    Option("global_attn_every_n_layers", "global_every", 3),
    Option("global_rope_theta", "global_theta", 160_000.0),
    Option("local_rope_theta", "local_theta", 10_000.0),
    Option("embedding_dropout", "dropout", 0.0),
)
MODERNBERT = Family(
    model_type="modernbert",
    kind="modernbert",
    classes={("masked_lm",): "ModernBertForMaskedLM", (): "ModernBertModel"},
    table=table,
    heads={"masked_lm": _masked_lm},
    tasks=tasks("ModernBert", classes=POOLED, choice=POOLED, tags=POOLED, span=POOLED, norm="head.norm"),
    options=(*OPTIONS, Option("classifier_pooling", "pooling", "cls", {"cls": "first", "mean": "mean"})),
    fixed={"tie_word_embeddings": True, "position_embedding_type": "absolute", "sparse_prediction": False},
    dropouts=("attention_dropout", "mlp_dropout"),
    harmless=(
        "deterministic_flash_attn", "layer_norm_eps",
        "initializer_cutoff_factor", "sparse_pred_ignore_index", "repad_logits_with_grad", "reference_compile",
    ),
    read=_read,
    write=_write,
)  # fmt: skip
DECODER = dataclasses.replace(
    MODERNBERT,
    model_type="modernbert-decoder",
    kind="modernbert_decoder",
    classes="ModernBertDecoderForCausalLM",
    table=decoder_table,
    heads={},
    tasks=tasks(
        "ModernBertDecoder", classes=POOLED, tags=None, span=None, norm="head.norm",
        lacks=("lm_head/.*",),
    ),
    options=OPTIONS,
    fixed={"tie_word_embeddings": True},
    write=_write_decoder,
    special_ids={"cls": "bos", "sep": "eos"},
    harmless=(*MODERNBERT.harmless, "classifier_pooling", "sparse_prediction", "position_embedding_type"),
)  # fmt: skip
FAMILIES = (MODERNBERT, DECODER)
