"""What families of `jaxpt.models.decoder_only` have in common: their weight table, common keys and kinds of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError, shown
from jaxpt.hf import rope
from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import Row, Table, dense, norm
from jaxpt.hf.tasks import Task, tasks
from jaxpt.models.decoder_only import DecoderOnlyConfig
from jaxpt.models.moe import TRAINING_FIELDS

MAX_LAYERS = 10_000
ATTENTION = ("attention/query", "attention/key", "attention/value")
FEED_FORWARD = ("feed_forward/gate", "feed_forward/up", "feed_forward/down")
LLAMA = {
    "token_embed": "model.embed_tokens", "layer": "model.layers.{layer}", "final_norm": "model.norm", "head": "lm_head",
    "attention/query": "self_attn.q_proj", "attention/key": "self_attn.k_proj", "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj", "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm", "feed_forward/gate": "mlp.gate_proj", "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj", "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}  # fmt: skip
"""{our module: Llama's}; those in a layer without the layer."""
EXPERTS = {
    "router": "mlp.gate", "expert/gate": "mlp.experts.{expert}.gate_proj", "expert/up": "mlp.experts.{expert}.up_proj",
    "expert/down": "mlp.experts.{expert}.down_proj",
}  # fmt: skip
"""{our module in a sparse layer: that of Qwen and OLMoE}."""


def table(config: DecoderOnlyConfig, names: Mapping[str, str] = LLAMA, grouped: bool = False, **more: Any) -> Table:
    """Weight table of a family.

    Args:
      config: of the model.
      names: {our module: theirs}. Modules with the same name are one tensor of theirs, one after the other.
      grouped: queries, keys and values of one tensor stand together for each key head.
      **more: fields of `Table`.
    """
    groups = (config.kv_heads or config.heads) if grouped else 1
    rows: list[Row] = []
    for s, segment in enumerate(config.numbers()):
        for b, numbers in enumerate(segment):
            where = f"{config.family}/segment_{s}/block_{b}", names["layer"], tuple(numbers)
            rows += _layer_rows(config, names, where, groups)
    embed, head = names["token_embed"], names["head"]
    has_bias = config.norm == "layer"
    tied = (f"{head}.weight",) if config.tie_embeddings else ()
    more = {"ignored": (r".*\.rotary_emb\.inv_freq",), "prefix": embed.partition(".")[0] + "."} | more
    return Table(
        rows=(
            Row("token_embed/table", f"{embed}.weight", tied=tied),
            *(norm("embed_norm", names["embed_norm"], has_bias) if config.embed_norm else ()),
            *(() if config.tie_embeddings else dense("head", head, bias=False)),
            *rows,
            *norm("final_norm", names["final_norm"], has_bias),
        ),
        **more,
    )  # fmt: skip


def _layer_rows(
    config: DecoderOnlyConfig, names: Mapping[str, str], where: tuple[str, str, tuple[int, ...]], groups: int
) -> list[Row]:
    """Rows of the layers of one block; `where` has our prefix, theirs, and the layers' numbers."""
    ours, theirs, layers = where
    qkv_bias = config.attention_bias if config.qkv_bias is None else config.qkv_bias
    biases = dict.fromkeys(ATTENTION, qkv_bias) | {"attention/output": config.attention_bias}
    is_sparse = config.is_sparse(layers[0])
    if not is_sparse:
        biases |= dict.fromkeys(FEED_FORWARD if config.gated else FEED_FORWARD[1:], config.mlp_bias)
    modules: dict[str, list[str]] = {}
    for module in biases:
        modules.setdefault(names[module], []).append(module)
    rows: list[Row] = []
    for name, parts in modules.items():
        paths = tuple(f"{ours}/{part}" for part in parts)
        count = groups if len(parts) > 1 else 1
        rows += dense(paths, f"{theirs}.{name}", biases[parts[0]], layers=layers, groups=count)
    for module in ("feed_forward/router", *FEED_FORWARD) if is_sparse else ():
        name = names["router"] if module.endswith("router") else names[f"expert/{module.partition('/')[2]}"]
        rows += dense(f"{ours}/{module}", f"{theirs}.{name}", False, layers=layers)
    for module in _norms(config):
        rows += norm(f"{ours}/{module}", f"{theirs}.{names[module]}", config.norm == "layer", layers=layers)
    if config.qk_norm != "none":
        for module, heads in (("query", config.heads), ("key", config.kv_heads or config.heads)):
            pieces = heads if config.qk_norm == "per_head" else 1
            name = names[f"attention/{module}_norm"]
            rows += norm(f"{ours}/attention/{module}_norm", f"{theirs}.{name}", False, layers=layers, pieces=pieces)
    return rows


def _norms(config: DecoderOnlyConfig) -> tuple[str, ...]:
    """Names of the norms of a block, but for those of queries and keys."""
    before = ("attention_norm",) if config.parallel == "one_norm" else ("attention_norm", "feed_forward_norm")
    after = ("attention_output_norm", "feed_forward_output_norm")
    return {"before": before, "after": after, "both": (*before, *after)}[config.norm_position]


def options(theta: float, **defaults: Any) -> tuple[Option, ...]:
    """The keys of the families whose config.json is like Llama's.

    Args:
      theta: their default of `rope_theta`.
      **defaults: their other defaults, by their keys.
    """
    common = (
        Option("vocab_size", "vocab_size", 32000),
        Option("hidden_size", "embed_dim", 4096),
        Option("intermediate_size", "mlp_dim", 11008),
        Option("num_hidden_layers", "layers", 32),
        Option("num_attention_heads", "heads", 32),
        Option("num_key_value_heads", "kv_heads", None),
        Option("max_position_embeddings", "max_positions", 2048),
        Option("tie_word_embeddings", "tie_embeddings", False),
        Option("attention_dropout", "dropout", 0.0),
    )
    more = {
        "head_dim": "head_dim", "attention_bias": "attention_bias", "mlp_bias": "mlp_bias", "rms_norm_eps": "epsilon",
        "layer_norm_eps": "epsilon", "partial_rotary_factor": "rotary_share",
    }  # fmt: skip
    if "layer_norm_eps" not in defaults:
        defaults.setdefault("rms_norm_eps", 1e-6)
    changed = [Option(o.theirs, o.ours, defaults.pop(o.theirs, o.default)) for o in common]
    activations = [
        Option(key, "activation", default, {default: ACTIVATIONS[default]} | ACTIVATIONS)
        for key in ("hidden_act", "hidden_activation")
        if (default := defaults.pop(key, None))
    ]
    others = (Option(key, more[key], value) for key, value in defaults.items())
    return (*changed, *activations, *rope.options(theta), *others)


def read_layers(keys: dict[str, Any], count: int, is_other: Callable[[int], bool]) -> dict[str, Any]:
    """Their keys with our names of the kinds of layers.

    Args:
      keys: of config.json.
      count: default of their number of layers.
      is_other: layer number → whether the layer has a window, in a file without `layer_types`.

    Raises:
      UserError: `layer_types` has an unknown kind, or another number of layers.
    """
    keys = dict(keys)
    count, types = keys.get("num_hidden_layers", count), keys.pop("layer_types", None)
    if not isinstance(count, int) or not 0 < count <= MAX_LAYERS:
        return keys  # the number is refused later
    if types is None:
        types = [rope.SLIDING if is_other(i) else rope.FULL for i in range(count)]
    known = {rope.FULL: "main", rope.SLIDING: "other"}
    check_layers("layer_types", types, count, (*known,))
    if rope.SLIDING not in types:
        keys["sliding_window"] = None
    return keys | {"layer_types": shortest([known[kind] for kind in types])}


def check_layers(key: str, of_layers: list[Any], count: int, kinds: tuple[Any, ...]) -> None:
    """Raises UserError if a key does not name one of the kinds for each layer."""
    if unknown := [kind for kind in of_layers if kind not in kinds]:
        allowed = " or ".join(map(str, kinds))
        raise UserError(f"config.json: {key}: {shown(unknown[0])} is not supported, only {allowed}")
    if len(of_layers) != count:
        raise UserError(f"config.json: {key}: names {len(of_layers)} layers, but num_hidden_layers is {count}")


def take_period(keys: dict[str, Any], key: str, default: int) -> int:
    """Removes a key of one layer in every n; gives n.

    Raises:
      UserError: n is no number above 0.
    """
    period = keys.pop(key, None)
    if period is None:
        return default
    if period < 1:
        raise UserError(f"config.json: {key}: wants a number above 0, got {shown(period)}")
    return period


def shortest(kinds: list[str]) -> list[str]:
    """The shortest pattern that gives the kinds when it is repeated.

    Example:
      >>> shortest(["a", "b", "a", "b", "a"])
      ['a', 'b']
    """
    return next(kinds[:n] for n in range(1, len(kinds) + 1) if all(k == kinds[i % n] for i, k in enumerate(kinds)))


def write_layers(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    """Inverse of `read_layers`.

    Raises:
      UserError: other layers have no window, but other rotary positions.
    """
    names, kinds = {"main": rope.FULL, "other": rope.SLIDING}, config.layer_kinds()
    if config.window_of("other") is None:
        if "other" in kinds and config.rope_of("other") != config.rope_of("main"):
            raise UserError(
                "model.other_window: is null, but other layers have other rotary positions, which transformers has "
                f"only in layers with a window; set other_window, for example to max_positions ({config.max_positions})"
            )
        names["other"] = rope.FULL
        keys = keys | {"sliding_window": config.max_positions}  # not used; most of their classes want a number
    return keys | {"layer_types": [names[kind] for kind in kinds]}


def llama_tasks(name: str) -> dict[str, Task]:
    """The classes of a family that has Llama's, with another prefix of the backbone in the class of spans.

    Args:
      name: prefix of their classes.
    """
    span = Task(f"{name}ForQuestionAnswering", "qa_outputs", prefix=("model.", "transformer."))
    return tasks(name, classes="score", tags="score", span=None) | {"span": span}


def family(
    model_type: str, name: str, differences: Mapping[str, Any], options: tuple[Option, ...], kind: str = "decoder_only",
    can: Callable[[DecoderOnlyConfig], bool] = lambda config: True, **more: Any,
) -> Family:  # fmt: skip
    """A family of the decoder.

    Args:
      model_type: theirs.
      name: prefix of their classes.
      differences: {our field: value} that makes the architecture.
      options: their keys.
      kind: of ours.
      can: further condition for a configuration that they can express.
      **more: fields of `Family`.
    """

    def supports(config: DecoderOnlyConfig) -> bool:
        config = _with_defaults(config)
        free = {option.ours for option in options} | ModelConfig.model_fields.keys() | TRAINING_FIELDS
        fields = {name: field.default for name, field in type(config).model_fields.items() if name not in free}
        values = {option.ours: option.values.values() for option in options if option.values is not None}
        return (
            all(getattr(config, name) == value for name, value in (fields | dict(differences)).items())
            and all(getattr(config, name) in allowed for name, allowed in values.items())
            and can(config)
        )

    more = {
        "kinds": ("llama", "decoder_only"), "classes": f"{name}ForCausalLM", "table": table,
        "read": lambda keys: rope.read(keys, 10_000.0), "write": rope.write,
    } | more  # fmt: skip
    fields = {option.ours for option in options}
    if "rope_theta" in fields and "rotary_share" not in fields:
        more["fixed"] = {"partial_rotary_factor": 1.0, **more.get("fixed", {})}
    write = more.pop("write")
    return Family(
        model_type=model_type, kind=kind, options=options, infer=lambda keys, tensors: dict(differences),
        supports=supports, write=lambda keys, config: _with_sizes(write(keys, config), config), **more,
    )  # fmt: skip


def _with_sizes(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    """The keys with the sizes that follow from others: not all of their classes take a null, and some read another."""
    sizes = {
        "num_key_value_heads": config.kv_heads or config.heads, "head_dim": config.width,
        "query_pre_attn_scalar": config.score_width or config.width,
        "moe_intermediate_size": config.expert_dim or config.mlp_dim,
    }  # fmt: skip
    return keys | {key: size for key, size in sizes.items() if key in keys}


def _with_defaults(config: DecoderOnlyConfig) -> DecoderOnlyConfig:
    """The configuration without fields that are what follows from the others."""
    plain = {
        "kv_heads": config.heads, "head_dim": config.embed_dim / config.heads, "qkv_bias": config.attention_bias,
    }  # fmt: skip
    return config.model_copy(update={name: None for name, value in plain.items() if getattr(config, name) == value})
