"""Converts between `config.json` and jaxpt's configuration, with one table per family. "Theirs" is Hugging Face.

A key of config.json is an option of ours, fixed (it changes the output and only one value is supported), harmless, or
unknown. An unknown key and another value of a fixed key are errors that name the key.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from jaxpt.config import ModelConfig, resolve
from jaxpt.config.explain import explain
from jaxpt.config.kinds import strictly
from jaxpt.config.plain import leaves, put
from jaxpt.errors import UserError, printable, shown
from jaxpt.hf.table import HeadTable, Table, with_heads
from jaxpt.hf.tasks import WORDS, Problem, Task, labels_to_json
from jaxpt.models.heads import classes
from jaxpt.models.network import Head, Network

# Theirs → ours; the first of several is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

# Keys of any family that do not change the model's output.
HARMLESS = frozenset((
    "_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache",
    "return_dict", "output_hidden_states", "output_attentions", "output_past", "torchscript", "use_bfloat16",
    "initializer_range", "initializer_factor", "finetuning_task", "id2label", "label2id", "problem_type",
    "num_labels", "task_specific_params", "prefix", "tokenizer_class", "bos_token_id", "eos_token_id", "pad_token_id",
    "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id", "decoder_start_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "max_length", "min_length",
    "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k",
    "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "remove_invalid_values", "exponential_decay_length_penalty", "classifier_dropout", "gradient_checkpointing",
    "attn_implementation", "_attn_implementation", "chunk_size_feed_forward", "tf_legacy_loss",
    "language", "license", "_num_labels", "reference_compile", "_commit_hash", "transformers.js_config", "auto_map",
    # What versions of transformers, Unsloth and exporters to JavaScript note about a run of theirs.
    "_attn_implementation_autoset", "_attn_implementation_internal", "_flash_attn_2_enabled", "unsloth_version",
    "unsloth_fixed", "transformers_weights", "is_llama_config", "model_max_length", "xla_device",
))  # fmt: skip
# Keys of any family that would change the model's output.
FIXED: Mapping[str, Any] = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": ({},),
    "tie_encoder_decoder": False,
}
_NUMBER = (int, float)
TYPES: Mapping[str, type | tuple[type, ...]] = {
    "architectures": list, "id2label": dict, "label2id": dict, "problem_type": str, "layer_types": list,
    "rope_scaling": dict, "rope_parameters": dict, "rope_theta": _NUMBER, "sliding_window": int,
    "pos_att_type": (str, list), "norm_rel_ebd": str, "relative_attention": bool, "attention_head_size": int,
    "max_relative_positions": int, "position_buckets": int, "conv_kernel_size": int, "hidden_size": int,
    "num_attention_heads": int, "max_position_embeddings": int, "tie_word_embeddings": bool,
    "use_sliding_window": bool, "max_window_layers": int, "sliding_window_pattern": int, "_sliding_window_pattern": int,
    "no_rope_layers": list, "no_rope_layer_interval": int, "mlp_only_layers": list, "new_decoder_architecture": bool,
    "parallel_attn": bool, "multi_query": bool, "scale_decoder_outputs": bool, "clamp_len": int, "mem_len": int,
    "reuse_len": int, "word_embed_proj_dim": int,
}  # fmt: skip
"""Types of the keys that are read before the others; the types of those are our fields'."""


@dataclasses.dataclass(frozen=True)
class Option:
    """A key of config.json and the field of ours that it sets."""

    theirs: str
    """Their key; dotted if nested."""
    ours: str
    default: Any
    """Their default, if config.json does not have the key."""
    values: Mapping[Any, Any] | None = None
    """{their value: our value}, if they differ."""


@dataclasses.dataclass(frozen=True)
class Family:
    """Maps one `model_type` of Hugging Face to one model kind of jaxpt."""

    model_type: str
    kind: str
    """Module of `jaxpt.models`."""
    classes: str | Mapping[tuple[str, ...], str]
    """Their class, or {heads in the order of `heads`: class}."""
    table: Callable[[Any], Table]
    """Makes the weight table of the backbone from our configuration."""
    options: tuple[Option, ...]
    heads: Mapping[str, Callable[[Any], HeadTable]] = dataclasses.field(default_factory=dict)
    """{supported head: makes its weight table from our configuration}."""
    tasks: Mapping[str, Task] = dataclasses.field(default_factory=dict)
    """{head for fine-tuning: their class}."""
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """{key: the supported value}; a tuple contains equivalent values, the first is written."""
    harmless: tuple[str, ...] = ()
    read: Callable[[dict[str, Any]], dict[str, Any]] = lambda keys: keys
    """Preprocesses their keys, for example from old formats."""
    write: Callable[[dict[str, Any], Any], dict[str, Any]] = lambda keys, config: keys
    """Inverse of `read`: (their keys, our configuration) → their keys."""
    infer: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda keys, tensors: {}
    """(their keys, their tensors) → our fields that only the tensors determine."""
    supports: Callable[[Any], bool] = lambda config: True
    """True if this model_type can express a configuration of this kind."""
    kinds: tuple[str, ...] = ()
    """More kinds of which it may express a configuration."""
    only_of_origin: bool = False
    """True: a model is written as this model_type only if it was read as such."""
    dropouts: tuple[str, ...] = ()
    """Their other rates of what is the one `dropout` of ours."""
    objective: str | None = None
    """Objective of an imported model; by default that of encoders, decoders or encoder-decoders."""
    extra_ids: int | None = 0
    """Sentinels that the tokenizer adds to its model; None: as many as its files say (T5)."""
    special_ids: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """{more of their keys of special tokens: "pad", "bos" or "eos"}."""
    decided: tuple[str, ...] = ()
    """Keys that the tensors decide, whatever the origin's config.json says."""

    def known(self, names: Iterable[str]) -> tuple[str, ...]:
        """Filters the heads that their class has: with a head for fine-tuning it and its pooler, otherwise all known.

        Raises:
          UserError: there is no class with the head for fine-tuning.
        """
        names = tuple(names)
        head = classes.name_of(names)
        if head is None:
            return tuple(name for name in self.heads if name in names)
        if head not in self.tasks:
            have = ", ".join(WORDS[name] for name in self.tasks) or "none"
            raise UserError(f"{head}: Hugging Face has no {self.model_type} for {WORDS[head]}, only for: {have}")
        return (*(("pooler",) if self.tasks[head].pooler else ()), head)

    def network(
        self, config: ModelConfig, heads: Iterable[str] | Mapping[str, Head] = (), outputs: int | None = None
    ) -> Network:
        """A backbone with heads; `jaxpt.models.heads.NAME` declares each head.

        Args:
          config: configuration of the backbone.
          heads: names of the heads, or heads by name.
          outputs: number of logits of a head for fine-tuning; by default that of the head in `heads`.
        """
        head = classes.name_of(heads)
        if head is not None:
            self.known(heads)
            if outputs is None and isinstance(heads, Mapping):
                outputs = classes.outputs_of(heads)
            return Network(config.build(), classes.declare(config, head, outputs))
        modules = {name: importlib.import_module(f"jaxpt.models.heads.{name}") for name in self.known(heads)}
        return Network(config.build(), {name: module.declare(config)[name] for name, module in modules.items()})

    def table_of(self, network: Network) -> Table:
        """The weight table of a network."""
        config, known = network.config, self.known(network.heads)
        head = classes.name_of(known)
        if head is not None:
            return self.tasks[head].table(head, self.table(config), config)
        table = with_heads(self.table(config), {name: self.heads[name](config) for name in known})
        if "pooler" in known or "pooler" not in self.heads:
            return table
        # Some files have the pooler of the pretraining, and not the head that reads it.
        pooler = tuple(re.escape(row.theirs) for row in self.heads["pooler"](config).rows)
        return dataclasses.replace(table, ignored=(*table.ignored, *pooler))

    def class_of(self, network: Network) -> str:
        """Name of their class for a network.

        Raises:
          UserError: there is no class with these heads.
        """
        heads = self.known(network.heads)
        if head := classes.name_of(heads):
            return self.tasks[head].name
        if isinstance(self.classes, str):
            return self.classes
        if heads not in self.classes:
            have = "; ".join(" + ".join(heads) or "none" for heads in self.classes)
            named = " + ".join(heads)
            raise UserError(f"Hugging Face has no {self.model_type} with the heads {named}, only with: {have}")
        return self.classes[heads]


def from_json(
    family: Family, given: Mapping[str, Any], tensors: Mapping[str, Any], ignore: tuple[str, ...] = ()
) -> ModelConfig:
    """Converts config.json to our configuration.

    Args:
      family: family of `given["model_type"]`.
      given: content of config.json.
      tensors: {name: array} of the model; they determine a few options.
      ignore: unknown keys to ignore.

    Returns:
      The configuration, with default dtype and remat.

    Raises:
      UserError: an unknown key, an unsupported value, or an invalid configuration.
    """
    _check_types(given)
    keys = family.read(dict(given))
    inferred = family.infer(keys, tensors)
    keys = dict(leaves(keys))
    fixed = {**FIXED, **family.fixed}
    options = {option.theirs: option for option in family.options}
    harmless = {*HARMLESS, *family.harmless, *ignore}
    unknown: dict[str, Any] = {}
    for key, value in keys.items():
        if key in options or value is None or any(above in harmless for above in _and_above(key)) or is_rate(key):
            continue
        if key not in fixed:
            unknown[printable(key, 160)] = value
            continue
        allowed = fixed[key] if isinstance(fixed[key], tuple) else (fixed[key],)
        if value not in allowed:
            raise UserError(f"config.json: {key}: {shown(value)} is not supported, only {_or(allowed)}")
    if unknown:
        raise UserError(_of_unknown(unknown, family, [*options, *fixed]))
    fields = fields_of(family, keys) | inferred
    cls = resolve(family.kind, "jaxpt.models", ModelConfig)
    try:
        return strictly(cls, fields)
    except ValidationError as error:
        raise UserError(f"config.json: {_in_their_words(explain(error, fields, cls)[1], family)}") from None


def _of_unknown(unknown: Mapping[str, Any], family: Family, known: Sequence[str]) -> str:
    """Names unknown keys of config.json."""
    named, hints = [], []
    for key, value in unknown.items():
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
        named.append(f"{key}: {shown(value)}")
        hints.append(f" (did you mean {near[0]}?)" if near else "")
    ignored = " ".join(f"--ignore {key}" for key in unknown)
    if len(named) == 1:
        return (
            f"config.json: {named[0]} is unknown for model_type {family.model_type}{hints[0]}; if it does not change "
            f"the output, pass {ignored}"
        )
    *others, last = map("".join, zip(named, hints))
    return (
        f"config.json: {', '.join(others)} and {last} are unknown for model_type {family.model_type}; if they do not "
        f"change the output, pass {ignored}"
    )


def _check_types(keys: Mapping[str, Any]) -> None:
    """Raises UserError if a key that is read before the others has another type, or the weights are quantized."""
    if keys.get("quantization_config") is not None:
        raise UserError(
            "config.json: quantization_config: quantized weights are not supported; import the unquantized model"
        )
    for key, expected in TYPES.items():
        value = keys.get(key)
        if value is not None and (
            not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool)
        ):
            names = expected if isinstance(expected, tuple) else (expected,)
            wants = " or ".join(_WORDS[name] for name in names if name is not int or float not in names)
            raise UserError(f"config.json: {key}: wants {wants}, got {shown(value)}")
    if not all(isinstance(name, str) for name in keys.get("architectures") or ()):
        raise UserError(f"config.json: architectures: wants names of classes, got {shown(keys['architectures'])}")


_WORDS = {
    list: "a list", dict: "a mapping", str: "a string", float: "a number", int: "a whole number", bool: "true or false"
}  # fmt: skip


def is_rate(key: str) -> bool:
    """Whether a key is a rate of dropout: of training alone."""
    return "drop" in key


def _and_above(key: str) -> Iterator[str]:
    """A dotted key and those above it: a.b.c, a.b and a."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _in_their_words(message: str, family: Family) -> str:
    """A message about our fields with the keys of config.json in their place."""
    theirs = {option.ours: option.theirs for option in family.options}
    # A field without an underscore may be a common word: it is a key only in front of a colon.
    return re.sub(r"[a-z]\w*_\w+|[a-z]\w*(?=:)", lambda match: theirs.get(match[0], match[0]), message)


def to_json(
    family: Family, network: Network, labels: Sequence[str] | None = None, problem: Problem | None = None
) -> dict[str, Any]:
    """Converts our configuration to config.json.

    Args:
      family: the target family.
      network: the backbone with its heads.
      labels: names of a fine-tuned head's logits.
      problem: the loss of a fine-tuned head for whole texts.

    Returns:
      Plain values of all options and fixed keys.
    """
    config, head = network.config, classes.name_of(network.heads)
    flat: dict[str, Any] = {"model_type": family.model_type, "architectures": [family.class_of(network)]}
    # Their defaults are ids of published vocabularies, which may exceed this vocabulary.
    flat |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    flat |= {key: value[0] if isinstance(value, tuple) else value for key, value in family.fixed.items()}
    flat |= dict.fromkeys(family.dropouts, config.dropout)
    flat |= {option.theirs: _theirs(option, getattr(config, option.ours)) for option in family.options}
    keys: dict[str, Any] = {}
    for key, value in flat.items():
        put(keys, key, value, "config.json")
    keys = family.write(keys, config)
    keys |= family.tasks[head].fixed if head else {}
    return keys | labels_to_json(head, classes.outputs_of(network.heads), labels, problem)


def fields_of(family: Family, keys: Mapping[str, Any]) -> dict[str, Any]:
    """{our field: value} of the keys of config.json, which are dotted if nested."""
    return {option.ours: _ours(option, keys.get(option.theirs, option.default)) for option in family.options}


def _ours(option: Option, value: Any) -> Any:
    if option.ours == "dropout" and value == 1:
        return 0.0  # all of it: nothing would be learned; the origin's rate is kept for the export
    if option.values is None:
        return tuple(value) if isinstance(value, list) else value
    if not isinstance(value, (str, bool)) or value not in option.values:
        raise UserError(f"config.json: {option.theirs}: {shown(value)} is not supported, only {_or(option.values)}")
    return option.values[value]


def _theirs(option: Option, value: Any) -> Any:
    if option.values is None:
        return list(value) if isinstance(value, tuple) else value
    return next(theirs for theirs, ours in option.values.items() if ours == value)


def _or(values: Any) -> str:
    return " or ".join(json.dumps(value) for value in values)
