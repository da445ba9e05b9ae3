"""What families of `jaxpt.models.decoder_only` have in common: names of weights, keys of positions and of layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError, shown
from jaxpt.hf.families.llama import ATTENTION, FEED_FORWARD, read_rope
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import Row, Table, dense, layer, norm, vocabulary
from jaxpt.hf.tasks import tasks
from jaxpt.models.decoder_only import DecoderOnlyConfig

NORMS = {
    "before": {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"},
    "after": {
        "attention_output_norm": "post_attention_layernorm", "feed_forward_output_norm": "post_feedforward_layernorm"
    },
    "both": {
        "attention_norm": "input_layernorm", "attention_output_norm": "post_attention_layernorm",
        "feed_forward_norm": "pre_feedforward_layernorm", "feed_forward_output_norm": "post_feedforward_layernorm",
    },
}  # fmt: skip
QK_NORMS = {"attention/query_norm": "self_attn.q_norm", "attention/key_norm": "self_attn.k_norm"}
OUTPUT = {"attention/output": ATTENTION["attention/output"]}
QKV = {ours: theirs for ours, theirs in ATTENTION.items() if ours not in OUTPUT}

FUSED = {
    "self_attn.qkv_proj": ("attention/query", "attention/key", "attention/value"),
    "mlp.gate_up_proj": ("feed_forward/gate", "feed_forward/up"),
}


def table(config: DecoderOnlyConfig, is_fused: bool = False) -> Table:
    """Weight table of the families whose names are Llama's.

    Args:
      config: of the model.
      is_fused: queries, keys and values are one tensor of theirs, and gate and up another (Phi).
    """
    rows, stack = list[Row](), config.family
    qkv_bias = config.attention_bias if config.qkv_bias is None else config.qkv_bias
    for s, segment in enumerate(config.numbers()):
        for b, numbers in enumerate(segment):
            block = functools.partial(
                layer, f"{stack}/segment_{s}/block_{b}", "model.layers.{layer}", layers=tuple(numbers)
            )
            for theirs, ours in (FUSED if is_fused else {}).items():
                paths = tuple(f"{stack}/segment_{s}/block_{b}/{path}" for path in ours)
                rows += dense(paths, f"model.layers.{{layer}}.{theirs}", bias=False, layers=tuple(numbers))
            left = {ours for of_row in FUSED.values() for ours in of_row} if is_fused else ()
            for names, bias in ((QKV, qkv_bias), (OUTPUT, config.attention_bias), (FEED_FORWARD, config.mlp_bias)):
                rows += block({ours: theirs for ours, theirs in names.items() if ours not in left}, bias)
            rows += block(NORMS[config.norm_position] | ({} if config.qk_norm == "none" else QK_NORMS), bias=False)
    return Table(
        rows=(
            *vocabulary("model.embed_tokens.weight", config.tie_embeddings),
            *rows,
            *norm("final_norm", "model.norm", bias=False),
        ),
        ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
        prefix="model.",
    )


_ROPE = {
    "default": (), "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "truncate", "original_max_position_embeddings"),
    "longrope": ("factor", "short_factor", "long_factor", "attention_factor", "original_max_position_embeddings"),
}  # fmt: skip
"""{rope_type: its keys}."""


def options(theta: float, **defaults: Any) -> tuple[Option, ...]:
    """The keys that all families have.

    Args:
      theta: their default of `rope_theta`.
      **defaults: their other defaults, by their keys.
    """
    scaling = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
    common = (
        Option("vocab_size", "vocab_size", 32000),
        Option("hidden_size", "embed_dim", 4096),
        Option("intermediate_size", "mlp_dim", 11008),
        Option("num_hidden_layers", "layers", 32),
        Option("num_attention_heads", "heads", 32),
        Option("num_key_value_heads", "kv_heads", None),
        Option("max_position_embeddings", "max_positions", 2048),
        Option("rms_norm_eps", "epsilon", 1e-6),
        Option("tie_word_embeddings", "tie_embeddings", False),
        Option("attention_dropout", "dropout", 0.0),
    )
    rope = (
        Option("rope_parameters.rope_theta", "rope_theta", theta),
        Option("rope_parameters.rope_type", "rope_scaling", "default", scaling),
        Option("rope_parameters.factor", "rope_factor", 1.0),
        Option("rope_parameters.low_freq_factor", "rope_low_frequency", 1.0),
        Option("rope_parameters.high_freq_factor", "rope_high_frequency", 4.0),
        Option("rope_parameters.original_max_position_embeddings", "rope_original_positions", 8192),
        Option("rope_parameters.beta_fast", "rope_fast_turns", 32.0),
        Option("rope_parameters.beta_slow", "rope_slow_turns", 1.0),
        Option("rope_parameters.truncate", "rope_whole_pairs", True),
        Option("rope_parameters.attention_factor", "rope_amplitude", None),
    )
    given = [Option(o.theirs, o.ours, defaults.pop(o.theirs, o.default), o.values) for o in common]
    more = {"head_dim": "head_dim", "attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}
    activation = [
        Option(key, "activation", default, {default: ACTIVATIONS[default]} | ACTIVATIONS)
        for key in ("hidden_act", "hidden_activation")
        if (default := defaults.pop(key, None))
    ]
    return (*given, *activation, *rope, *(Option(key, more[key], value) for key, value in defaults.items()))


def read(keys: dict[str, Any], theta: float, is_other: Callable[[int, dict[str, Any]], bool]) -> dict[str, Any]:
    """Their keys with one mapping of rotary positions and our names of the kinds of layers.

    Args:
      keys: of config.json.
      theta: their default of `rope_theta`.
      is_other: (layer number, keys) → whether the layer has a window, in a file without `layer_types`.
    """
    nested = keys.get("rope_parameters") or {}
    by_kind = isinstance(nested, dict) and not nested.keys().isdisjoint(("full_attention", "sliding_attention"))
    if by_kind:
        other = nested.get("sliding_attention") or {}
        if other.get("rope_type", "default") != "default":
            raise UserError(
                f"config.json: rope_parameters.sliding_attention.rope_type: {shown(other['rope_type'])} is not "
                "supported, only default"
            )
        keys["rope_parameters"] = nested.get("full_attention")
        if "rope_theta" in other:
            keys["rope_local_base_freq"] = other["rope_theta"]
    if keys.get("rope_scaling") and "rope_theta" not in keys:
        keys["rope_theta"] = theta
    keys = read_rope(keys)
    rope = keys.get("rope_parameters") or {}
    if rope.get("rope_type") == "yarn":
        rope.setdefault("original_max_position_embeddings", keys.get("max_position_embeddings"))
        if rope.get("factor") is None:
            raise UserError("config.json: rope_parameters.factor: is missing; rope_type yarn needs it")
    count, types = keys.get("num_hidden_layers") or 32, keys.pop("layer_types", None)
    if types is None:
        types = ["sliding_attention" if is_other(i, keys) else "full_attention" for i in range(count)]
    known = {"full_attention": "main", "sliding_attention": "other"}
    if unknown := [kind for kind in types if kind not in known]:
        raise UserError(f"config.json: layer_types: {shown(unknown[0])} is not supported, only {' or '.join(known)}")
    return keys | {"layer_types": shortest([known[kind] for kind in types])}


def shortest(kinds: list[str]) -> list[str]:
    """The shortest pattern that gives the kinds when it is repeated.

    Example:
      >>> shortest(["a", "b", "a", "b", "a"])
      ['a', 'b']
    """
    return next(kinds[:n] for n in range(1, len(kinds) + 1) if all(k == kinds[i % n] for i, k in enumerate(kinds)))


def write(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    """Inverse of `read`, for versions of transformers before and after 5."""
    rope = keys["rope_parameters"]
    used = {"rope_theta", "rope_type", "partial_rotary_factor", *_ROPE[rope["rope_type"]]}
    rope = {key: value for key, value in rope.items() if key in used and value is not None}
    scaling = None if rope["rope_type"] == "default" else {k: v for k, v in rope.items() if k != "rope_theta"}
    keys |= {"rope_parameters": rope, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    names = {"main": "full_attention", "other": "sliding_attention"}
    if "layer_types" in keys:
        keys["layer_types"] = [names[kind] for kind in config.layer_kinds()]
    return keys


def write_by_kind(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    """As `write`, with rotary positions for each kind of layer."""
    keys = write(keys, config)
    theta = config.other_rope_theta or config.rope_theta
    other = {"rope_type": "default", "rope_theta": theta}
    keys["rope_parameters"] = {"full_attention": keys["rope_parameters"], "sliding_attention": other}
    for key in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
        keys.pop(key, None)
    return keys


def family(model_type: str, name: str, own: Mapping[str, Any], options: tuple[Option, ...], **more: Any) -> Family:
    """A family of the decoder.

    Args:
      model_type: theirs.
      name: prefix of their classes.
      own: {our field: value} that makes the architecture.
      options: their keys.
      **more: fields of `Family`.
    """

    def supports(config: DecoderOnlyConfig) -> bool:
        free = {option.ours for option in options} | ModelConfig.model_fields.keys()
        fields = {name: field.default for name, field in type(config).model_fields.items() if name not in free}
        return all(getattr(config, name) == value for name, value in (fields | dict(own)).items())

    fields = {
        "kind": "decoder_only", "classes": f"{name}ForCausalLM", "table": table,
        "tasks": tasks(name, classes="score", tags="score"),
    }  # fmt: skip
    return Family(
        model_type=model_type, options=options, infer=lambda keys, tensors: dict(own), supports=supports,
        **fields | more,
    )  # fmt: skip
