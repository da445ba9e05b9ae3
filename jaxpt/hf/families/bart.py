"""BART and mBART as Hugging Face's `BartForConditionalGeneration` or `MBartForConditionalGeneration`."""

from __future__ import annotations

from typing import Any

from jaxpt.hf.mapping import Row, Table, dense, layer_norm
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.tasks import tasks
from jaxpt.models.bart import BartConfig


def _stack(side: str, config: BartConfig) -> tuple[Row, ...]:
    ours, theirs = f"{side}/segment_0/block_0", f"model.{side}.layers.{{layer}}"
    attentions = {"attention": "self_attn"} | ({"cross_attention": "encoder_attn"} if side == "decoder" else {})
    projections = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    rows: list[Row] = [Row(f"{side}_positions/table", f"model.{side}.embed_positions.weight")]
    for mine, name in attentions.items():
        for part, other in projections.items():
            rows += dense(f"{ours}/{mine}/{part}", f"{theirs}.{name}.{other}")
        rows += layer_norm(f"{ours}/{mine}_norm", f"{theirs}.{name}_layer_norm")
    rows += dense(f"{ours}/feed_forward/up", f"{theirs}.fc1")
    rows += dense(f"{ours}/feed_forward/down", f"{theirs}.fc2")
    rows += layer_norm(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm")
    rows += layer_norm(f"{side}_embed_norm", f"model.{side}.layernorm_embedding")
    return (*rows, *(layer_norm(f"{side}_norm", f"model.{side}.layer_norm") if config.pre_norm else ()))


def table(config: BartConfig) -> Table:
    """Weight table of BART or mBART."""
    tied = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    return Table(
        rows=(
            Row("token_embed/table", "model.shared.weight", tied=tied),
            *_stack("encoder", config),
            *_stack("decoder", config),
        ),
        ignored=(r"model\.(en|de)coder\.version",),
        prefix="model.",
        zeros={"final_logits_bias": (1, config.vocab_size)},
    )


def _family(model_type: str, name: str, pre_norm: bool) -> Family:
    """The two differ in the position of the norms."""
    return Family(
        model_type=model_type,
        kind="bart",
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
