"""What `model_type` of config.json says: the text model of one that reads images too, and the kin of unknown ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from jaxpt.errors import UserError, shown

TEXT_MODELS = {"gemma3": "gemma3_text"}
"""{model_type of a model of texts and images: that of its text model}"""
TEXT_CLASSES = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification",
}
IMAGES = r"(model\.)*(vision_tower|multi_modal_projector)\..*"
"""Names of the tensors that read images."""

_EXPERTS = "a mixture of experts"
KIN = {
    "nomic_bert": ("bert", "rotary_emb_fraction: rotary positions and a gated feed-forward after BERT's norms"),
    "new": ("bert", "rope_theta: rotary positions and a gated feed-forward after BERT's norms (GTE)"),
    "gte": ("bert", "rope_theta: rotary positions and a gated feed-forward after BERT's norms"),
    "mpnet": ("bert", "relative_attention_num_buckets: T5's position bias in an encoder like BERT"),
    "t5gemma": ("gemma2", "encoder: Gemma's blocks in an encoder and a decoder"),
    "m2m_100": ("mbart", "sinusoidal positions instead of a table (M2M-100, NLLB)"),
    "nllb-moe": ("mbart", f"num_experts: {_EXPERTS}"),
    "pegasus": ("bart", "static_position_embeddings: sinusoidal positions"),
    "marian": ("bart", "static_position_embeddings: sinusoidal positions, and a vocabulary for each side"),
    "qwen2_moe": ("qwen3_moe", "shared_expert_intermediate_size: a shared expert with a gate"),
    "gpt_oss": ("mixtral", "layer_types: attention sinks, and biases of the experts"),
    "deepseek_v2": ("llama", f"kv_lora_rank: multi-head latent attention, and {_EXPERTS}"),
    "deepseek_v3": ("llama", f"kv_lora_rank: multi-head latent attention, and {_EXPERTS}"),
    "olmo": ("llama", "clip_qkv: norms without weights, and clipped projections"),
    "gemma3n": ("gemma3_text", "laurel_rank: other residuals, and embeddings for each layer"),
    "gemma3n_text": ("gemma3_text", "laurel_rank: other residuals, and embeddings for each layer"),
}
"""{model_type that is not supported: (the nearest one that is, what that one does not have)}"""


def text_model(keys: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The config.json of the text model of one that reads images too; of others it is unchanged.

    Args:
      keys: of config.json.
      path: of config.json, for messages.

    Raises:
      UserError: `text_config` is no mapping.
    """
    model_type = keys.get("model_type")
    if not isinstance(model_type, str) or model_type not in TEXT_MODELS:
        return dict(keys)
    text = keys.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise UserError(f"{path}: text_config: wants a mapping, got {shown(text)}")
    whole = {
        key: x for key, x in keys.items()
        if x is not None and (key.endswith("_token_id") or key in ("dtype", "torch_dtype", "tie_word_embeddings"))
    }  # fmt: skip
    named = keys.get("architectures")
    classes = [TEXT_CLASSES.get(name, name) if isinstance(name, str) else name for name in named or ()]
    labels = {key: keys[key] for key in ("id2label", "label2id", "num_labels", "problem_type") if key in keys}
    return {**text, **whole, **labels, "architectures": classes, "model_type": TEXT_MODELS[model_type]}


def class_of_file(name: str, model_type: Any) -> str:
    """Their class that loads a directory: of a text model, that of the model that reads images too, if it is in there.

    Args:
      name: of the class of the text model.
      model_type: of config.json.
    """
    whole = {text: image for image, text in TEXT_CLASSES.items()}
    return whole.get(name, name) if isinstance(model_type, str) and model_type in TEXT_MODELS else name


def unsupported(model_type: Any, known: Collection[str]) -> str:
    """Why a model_type is not read: its nearest kin and what that lacks, or all that are read.

    Args:
      model_type: of config.json.
      known: those that are read.
    """
    if isinstance(model_type, str) and model_type in KIN:
        kin, lacking = KIN[model_type]
        return f"model_type {shown(model_type)} is not supported: the nearest that is, {kin}, does not have {lacking}"
    return f"model_type {shown(model_type)} is not supported, only {', '.join(sorted(known))}"
