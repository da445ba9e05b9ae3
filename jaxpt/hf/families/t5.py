"""T5 (1.0, 1.1), mT5 and UMT5 as Hugging Face's `…ForConditionalGeneration`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxpt.errors import UserError, shown
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import PROJECTIONS, Row, Table, layer, norm, vocabulary
from jaxpt.hf.tasks import Task, tasks
from jaxpt.models.t5 import T5Config

BIAS = "0.SelfAttention.relative_attention_bias.weight"


def stack(side: str, config: T5Config, dense: str = "DenseReluDense") -> tuple[Row, ...]:
    """Rows of the encoder or decoder.

    Args:
      side: "encoder" or "decoder".
      config: of the model.
      dense: their name of a feed-forward, which may be a mixture of experts.
    """
    rows: list[Row] = []
    for s, segment in enumerate(config.numbers(side)):
        for b, numbers in enumerate(segment):
            rows += _block(side, config, f"{side}/segment_{s}/block_{b}", tuple(numbers), dense)
    if not config.bias_per_layer:
        rows.append(Row(f"{side}_bias/table", f"{side}.block.0.layer.{BIAS}"))
    return (*rows, *norm(f"{side}_norm", f"{side}.final_layer_norm", bias=False))


def _block(side: str, config: T5Config, ours: str, layers: tuple[int, ...], dense: str) -> tuple[Row, ...]:
    """Rows of some layers; theirs is a list of two or three sublayers, each with its norm."""
    theirs = f"{side}.block.{{layer}}.layer"
    attentions = {"attention": "0.SelfAttention"}
    attentions |= {"cross_attention": "1.EncDecAttention"} if side == "decoder" else {}
    wide = {"up": "wi"} if config.feed_forward == "relu" else {"gate": "wi_0", "up": "wi_1"}
    last, is_sparse = f"{len(attentions)}.{dense}", config.is_sparse(layers[0])
    each = "experts.expert_{expert}." if is_sparse else ""
    names = {f"feed_forward/{mine}": f"{last}.{each}{name}" for mine, name in (wide | {"down": "wo"}).items()}
    names |= {"feed_forward/router": f"{last}.router.classifier"} if is_sparse else {}
    names |= {f"{part}_norm": f"{i}.layer_norm" for i, part in enumerate((*attentions, "feed_forward"))}
    for part, attention in attentions.items():
        names |= {f"{part}/{mine}": f"{attention}.{name}" for mine, name in zip(PROJECTIONS, "qkvo")}
    rows = layer(ours, theirs, names, bias=False, layers=layers)
    bias = Row(f"{ours}/position_bias/table", f"{theirs}.{BIAS}", layers=layers)
    return (*rows, bias) if config.bias_per_layer else rows


EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""Names of the embeddings; a file has one or several of them."""


def table(config: T5Config) -> Table:
    """Weight table of T5 with the options of `config`."""
    first, *copies = EMBEDDINGS
    return Table(
        rows=(
            *vocabulary(first, config.tie_embeddings, *copies),
            *stack("encoder", config),
            *stack("decoder", config),
        ),
        # The first release had an unused bias table in cross-attention.
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )


def infer(keys: Mapping[str, Any], tensors: Mapping[str, Any], scaled: bool, **more: Any) -> dict[str, Any]:
    """Infers from the tensors if embeddings are tied: recent files always claim that they are.

    A class without the projection to the vocabulary has only the claim: of old files and of ours it is true.
    """
    ends = ("ForConditionalGeneration", "WithLMHeadModel")
    embeddings = next((name for name in EMBEDDINGS if name in tensors), None)
    if embeddings is not None and "lm_head.weight" in tensors:
        tied = bool(np.array_equal(tensors["lm_head.weight"], tensors[embeddings]))
    elif "lm_head.weight" in tensors or any(name.endswith(ends) for name in keys.get("architectures") or ends):
        tied = True
    else:
        tied = scaled and keys.get("tie_word_embeddings", True)
    return {"tie_embeddings": tied, "scale_logits": None if scaled == tied else scaled, **more}


def _infer_scaled(keys: dict[str, Any], tensors: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Infers `scale_logits`: old files imply it by tied embeddings (T5 1.0), recent files have a key."""
    return infer(keys, tensors, keys.get("scale_decoder_outputs", keys.get("tie_word_embeddings", True)), **more)


def _is_t5(config: T5Config) -> bool:
    plain = not (config.bias_per_layer or config.share_layers or config.experts)
    return plain and config.pooling == "last"


FEED_FORWARDS = {
    "relu": ("relu", "relu", False), "gated-gelu": ("gated_gelu", "gelu_tanh", True),
    "gated-silu": ("gated_silu", "silu", True),
}  # fmt: skip
"""{feed_forward_proj: (ours, its activation, whether it has a gate)}"""


def _read(keys: dict[str, Any], feed_forward: str) -> dict[str, Any]:
    """Checks what files repeat of `feed_forward_proj`: transformers takes these keys before it.

    Args:
      keys: of config.json.
      feed_forward: default of `feed_forward_proj`.
    """
    named = keys.get("feed_forward_proj", feed_forward)
    if not isinstance(named, str) or named not in FEED_FORWARDS:
        return keys  # is refused later
    _, activation, is_gated = FEED_FORWARDS[named]
    spellings = [theirs for theirs, ours in ACTIVATIONS.items() if ours == activation]
    for key, allowed in (("dense_act_fn", spellings), ("is_gated_act", [is_gated])):
        if keys.get(key) not in (None, *allowed):
            raise UserError(
                f"config.json: {key}: {shown(keys[key])} contradicts feed_forward_proj {named}, which means "
                f"{json.dumps(allowed[0])}"
            )
    return keys


def _write(keys: dict[str, Any], config: T5Config) -> dict[str, Any]:
    # For versions before and after 5: untied embeddings used to imply no scaling.
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return keys | {"tie_word_embeddings": config.scaled, "scale_decoder_outputs": config.scaled, **ids}


def _tasks(name: str) -> dict[str, Task]:
    """The class for tokens has the encoder alone; that for answers has no prefix."""
    prefix = ("", "transformer.")
    head = ("classification_head.dense", "classification_head.out_proj")
    return tasks(name, classes=head, prefix=prefix) | {
        "tags": Task(f"{name}ForTokenClassification", "classifier", prefix=prefix, lacks=(r"decoder.*",)),
        "span": Task(f"{name}ForQuestionAnswering", "qa_outputs"),
    }


def _family(model_type: str, name: str, feed_forward: str, **more: Any) -> Family:
    return Family(
        model_type=model_type,
        kind="t5",
        extra_ids=None,
        classes=f"{name}ForConditionalGeneration",
        table=table,
        tasks=_tasks(name),
        options=(
            Option("vocab_size", "vocab_size", 250112 if "m" in model_type else 32128),
            Option("d_model", "embed_dim", 512),
            Option("d_kv", "head_dim", 64),
            Option("d_ff", "mlp_dim", 1024 if "m" in model_type else 2048),
            Option("num_layers", "layers", 8 if "m" in model_type else 6),
            Option("num_decoder_layers", "decoder_layers", None),
            Option("num_heads", "heads", 6 if "m" in model_type else 8),
            Option("relative_attention_num_buckets", "buckets", 32),
            Option("relative_attention_max_distance", "max_distance", 128),
            Option("dropout_rate", "dropout", 0.1),
            Option("layer_norm_epsilon", "epsilon", 1e-6),
            Option(
                "feed_forward_proj", "feed_forward", feed_forward,
                {theirs: ours for theirs, (ours, *_) in FEED_FORWARDS.items()},
            ),
        ),
        fixed={"is_encoder_decoder": (True, False)},  # their class for tokens says False
        harmless=(
            "tie_word_embeddings", "scale_decoder_outputs", "n_positions", "dense_act_fn", "is_gated_act",
            "scalable_attention",
        ),
        decided=("tie_word_embeddings", "scale_decoder_outputs"),
        read=functools.partial(_read, feed_forward=feed_forward),
        special_ids={"decoder_start": "pad"},
        **more,
    )  # fmt: skip


FAMILIES = (
    _family(
        "t5", "T5", "relu", infer=_infer_scaled, write=_write,
        supports=_is_t5,
    ),
    # mT5's class never scales.
    _family(
        "mt5", "MT5", "gated-gelu", infer=lambda keys, tensors: infer(keys, tensors, False), write=_write,
        supports=lambda config: _is_t5(config) and not config.scaled, only_of_origin=True,
    ),
    _family(
        "umt5", "UMT5", "gated-gelu", infer=functools.partial(_infer_scaled, bias_per_layer=True), write=_write,
        supports=lambda config: config.bias_per_layer and config.pooling == "last" and config.experts is None,
    ),
)  # fmt: skip
