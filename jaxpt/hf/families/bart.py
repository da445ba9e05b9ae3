"""BART and mBART as Hugging Face's `BartForConditionalGeneration` or `MBartForConditionalGeneration`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import PROJECTIONS, Row, Table, layer, norm, vocabulary
from jaxpt.hf.tasks import tasks
from jaxpt.models.bart import BartConfig


def _attention(ours: str, theirs: str) -> dict[str, str]:
    names = zip(PROJECTIONS, ("q_proj", "k_proj", "v_proj", "out_proj"))
    return {f"{ours}/{mine}": f"{theirs}.{name}" for mine, name in names} | {f"{ours}_norm": f"{theirs}_layer_norm"}


ENCODER = _attention("attention", "self_attn") | {
    "feed_forward/up": "fc1", "feed_forward/down": "fc2", "feed_forward_norm": "final_layer_norm",
}  # fmt: skip
DECODER = ENCODER | _attention("cross_attention", "encoder_attn")


def _stack(side: str, block: Mapping[str, str], config: BartConfig) -> tuple[Row, ...]:
    return (
        Row(f"{side}_positions/table", f"model.{side}.embed_positions.weight"),
        *layer(f"{side}/segment_0/block_0", f"model.{side}.layers.{{layer}}", block),
        *norm(f"{side}_embed_norm", f"model.{side}.layernorm_embedding"),
        *(norm(f"{side}_norm", f"model.{side}.layer_norm") if config.pre_norm else ()),
    )


def table(config: BartConfig) -> Table:
    """Weight table of BART or mBART."""
    copies = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    return Table(
        rows=(
            *vocabulary("model.shared.weight", True, *copies),
            *_stack("encoder", ENCODER, config),
            *_stack("decoder", DECODER, config),
        ),
        ignored=(r"model\.(en|de)coder\.version",),
        prefix="model.",
        zeros={"final_logits_bias": (1, config.vocab_size)},
    )


def _family(model_type: str, name: str, pre_norm: bool) -> Family:
    """The two differ in the position of the norms; mBART's decoder starts with a language."""
    return Family(
        model_type=model_type,
        kind="bart",
        objective=model_type,
        classes=f"{name}ForConditionalGeneration",
        table=table,
        tasks=tasks(name, classes=("classification_head.dense", "classification_head.out_proj"), tags=None),
        options=(
            Option("vocab_size", "vocab_size", 50265),
            Option("d_model", "embed_dim", 1024),
            Option("encoder_layers", "layers", 12),
            Option("decoder_layers", "decoder_layers", 12),
            Option("encoder_attention_heads", "heads", 16),
            Option("decoder_attention_heads", "decoder_heads", 16),
            Option("encoder_ffn_dim", "mlp_dim", 4096),
            Option("decoder_ffn_dim", "decoder_mlp_dim", 4096),
            Option("max_position_embeddings", "max_positions", 1024),
            Option("activation_function", "activation", "gelu", ACTIVATIONS),
            Option("scale_embedding", "scale_embeddings", False),
            Option("dropout", "dropout", 0.1),
        ),
        fixed={
            "is_encoder_decoder": True, "tie_word_embeddings": True, "normalize_before": pre_norm,
            "add_final_layer_norm": pre_norm, "normalize_embedding": True, "add_bias_logits": False,
            "static_position_embeddings": False, "extra_pos_embeddings": 2,
        },
        dropouts=("attention_dropout",),
        harmless=(
            "init_std", "num_hidden_layers", "force_bos_token_to_be_generated",
        ),
        infer=lambda keys, tensors: {"pre_norm": pre_norm},
        write=_write,
        supports=lambda config: config.pre_norm == pre_norm,
        special_ids={"forced_eos": "eos"} | ({} if pre_norm else {"decoder_start": "eos", "forced_bos": "bos"}),
    )  # fmt: skip


def _write(keys: dict[str, Any], config: BartConfig) -> dict[str, Any]:
    """Writes the decoder's sizes, which do not default to the encoder's in Hugging Face."""
    return keys | {
        "decoder_layers": config.decoder_layers or config.layers,
        "decoder_attention_heads": config.decoder_heads or config.heads,
        "decoder_ffn_dim": config.decoder_mlp_dim or config.mlp_dim,
        "decoder_start_token_id": None,  # their defaults, too, are ids of published vocabularies
        "forced_eos_token_id": None,
    }


FAMILIES = (_family("bart", "Bart", False), _family("mbart", "MBart", True))
