"""Switch Transformers as Hugging Face's `SwitchTransformersForConditionalGeneration`.

Their sparse layers are i mod s = 1, not i mod s = s − 1 as released: equal for s = 2 and s = 1 alone. Their capacity is
a number of tokens of each row.
"""

from __future__ import annotations

from typing import Any

from jaxpt.errors import UserError
from jaxpt.hf.families.t5 import EMBEDDINGS, infer, stack
from jaxpt.hf.options import Family, Option
from jaxpt.hf.table import Table, vocabulary
from jaxpt.models.t5 import T5Config

SIDES = {"encoder": "num_layers", "decoder": "num_decoder_layers"}


def table(config: T5Config) -> Table:
    """Weight table of a Switch Transformer."""
    first, *copies = EMBEDDINGS
    rows = *vocabulary(first, config.tie_embeddings, *copies), *stack("encoder", config, "mlp")
    return Table((*rows, *stack("decoder", config, "mlp")))


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    """From numbers of sparse layers to the step between them."""
    keys = dict(keys)
    steps = {}
    for side, name in SIDES.items():
        layers = keys.get(name) or keys.get("num_layers", 12)
        sparse = keys.pop(f"num_sparse_{side}_layers", 3)
        keys.pop(f"{side}_sparse_step", None)
        if not isinstance(layers, int) or not isinstance(sparse, int) or sparse < 1 or layers < sparse:
            raise UserError(f"config.json: num_sparse_{side}_layers: wants a number from 1 to {name}, got {sparse!r}")
        steps[side] = layers // sparse
    if len({*steps.values()}) > 1:
        raise UserError(
            f"config.json: num_sparse_decoder_layers: one of {steps['decoder']} layers of the decoder is sparse, but "
            f"one of {steps['encoder']} of the encoder; one step for both is supported"
        )
    step = steps["encoder"]
    return keys | {"sparse_step": step, "first_sparse": 1 if step > 2 else None}


def _write(keys: dict[str, Any], config: T5Config) -> dict[str, Any]:
    keys = dict(keys)
    step = keys.pop("sparse_step")
    keys.pop("first_sparse")
    keys["num_decoder_layers"] = config.decoder_layers or config.layers
    keys |= {f"num_sparse_{side}_layers": keys[name] // step for side, name in SIDES.items()}
    keys |= {"expert_capacity": config.capacity or _UNLIMITED}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return keys | {"tie_word_embeddings": config.tie_embeddings} | ids


_UNLIMITED = 2**30
"""Capacity of a model that drops no token, or whose capacity Hugging Face cannot express: it depends on the length."""


def _infer(keys: dict[str, Any], tensors: Any) -> dict[str, Any]:
    capacity = keys.get("expert_capacity", 64)
    tied = infer(keys, tensors, bool(keys.get("tie_word_embeddings", True)))["tie_embeddings"]
    return {"tie_embeddings": tied, "capacity": None if capacity == _UNLIMITED else capacity}


def _supports(config: T5Config) -> bool:
    step = config.sparse_every
    first = step - 1 if config.first_sparse is None else config.first_sparse
    counts = config.layers, config.decoder_layers or config.layers
    return (
        config.experts is not None and config.experts_per_token == 1 and config.router == "softmax"
        and not (config.bias_per_layer or config.shared_experts or config.dense_layers or config.router_normalized)
        and config.router_scale == 1 and config.expert_dim in (None, config.mlp_dim)
        and config.scaled == config.tie_embeddings and config.pooling == "last"
        and first == 1 % step and all(count // (count // step) == step for count in counts if count >= step)
        and min(counts) >= step and config.feed_forward == "relu"
    )  # fmt: skip


FAMILIES = (
    Family(
        model_type="switch_transformers",
        kind="t5",
        extra_ids=None,
        classes="SwitchTransformersForConditionalGeneration",
        table=table,
        options=(
            Option("vocab_size", "vocab_size", 32128),
            Option("d_model", "embed_dim", 768),
            Option("d_kv", "head_dim", 64),
            Option("d_ff", "mlp_dim", 2048),
            Option("num_layers", "layers", 12),
            Option("num_decoder_layers", "decoder_layers", 12),
            Option("num_heads", "heads", 12),
            Option("num_experts", "experts", 8),
            Option("sparse_step", "sparse_every", 4),
            Option("first_sparse", "first_sparse", None),
            Option("router_jitter_noise", "router_jitter", 0.01),
            Option("router_z_loss_coef", "router_z_weight", 0.001),
            Option("router_aux_loss_coef", "balance_weight", 0.001),
            Option("relative_attention_num_buckets", "buckets", 32),
            Option("relative_attention_max_distance", "max_distance", 128),
            Option("dropout_rate", "dropout", 0.1),
            Option("layer_norm_epsilon", "epsilon", 1e-6),
            Option("dense_act_fn", "feed_forward", "relu", {"relu": "relu"}),
        ),
        fixed={"is_encoder_decoder": (True, False), "router_bias": False, "router_dtype": "float32"},
        harmless=(
            "tie_word_embeddings", "expert_capacity", "router_ignore_padding_tokens",
            "add_router_probs", "n_positions", "feed_forward_proj", "is_gated_act", "router_type",
            "batch_prioritized_routing", "num_selected_experts", "normalize_router_prob_before_dropping",
        ),
        decided=("tie_word_embeddings",),
        infer=_infer,
        read=_read,
        write=_write,
        supports=_supports,
        special_ids={"decoder_start": "pad"},
    ),
)  # fmt: skip
