"""`config.json` to our configuration and back: one table per family, beside the one of its weights.

A key of config.json is one of four: an option of ours, fixed (it changes the arithmetic and we have one value of it),
harmless, or unknown. Another value of a fixed key and an unknown key are errors that name the key.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from jaxpt.config import ModelConfig, resolve
from jaxpt.config.plain import leaves, put
from jaxpt.errors import UserError
from jaxpt.hf.mapping import HeadTable, Table, with_heads
from jaxpt.models.network import Network

# Theirs → ours; the first of several is the one that is written.
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

# Keys of any family that change no output of the model.
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
    "language", "license", "_num_labels", "reference_compile",
))  # fmt: skip
# Keys of any family that would change the arithmetic.
FIXED: Mapping[str, Any] = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "quantization_config": None,
    "pruned_heads": ({},),
}


@dataclasses.dataclass(frozen=True)
class Option:
    """A key of config.json and the field of ours that it sets."""

    theirs: str
    """Their key; that of a nested mapping is dotted."""
    ours: str
    default: Any
    """Theirs, where config.json is silent."""
    values: Mapping[Any, Any] | None = None
    """{theirs: ours} where they are spelled differently."""


@dataclasses.dataclass(frozen=True)
class Family:
    """All that ties one `model_type` of Hugging Face's to one kind of ours."""

    model_type: str
    kind: str
    """Module of `jaxpt.models`."""
    classes: str | Mapping[tuple[str, ...], str]
    """Their class with all the weights that ours has: of each set of heads, in the order of `heads`."""
    table: Callable[[Any], Table]
    """Names of the backbone's weights, from our configuration."""
    options: tuple[Option, ...]
    heads: Mapping[str, Callable[[Any], HeadTable]] = dataclasses.field(default_factory=dict)
    """Names of the weights of each head that they know, from our configuration."""
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """{key: the one value that we have}; a tuple holds several equivalent ones, the first is written."""
    harmless: tuple[str, ...] = ()
    read: Callable[[dict[str, Any]], dict[str, Any]] = lambda keys: keys
    """Their keys, old spellings made new, where more than a table is needed."""
    write: Callable[[dict[str, Any], Any], dict[str, Any]] = lambda keys, config: keys
    """The way back: (their keys, our configuration) → their keys."""
    infer: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda keys, tensors: {}
    """(their keys, their tensors) → fields of ours that show in the tensors alone."""
    supports: Callable[[Any], bool] = lambda config: True
    """Whether a configuration of this kind is to be written as this model_type."""

    def known(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of some heads that it has, in its order."""
        return tuple(name for name in self.heads if name in set(names))

    def network(self, config: ModelConfig, heads: Iterable[str] = ()) -> Network:
        """A backbone with heads of these names, each declared by the module of `jaxpt.heads` of that name."""
        modules = {name: importlib.import_module(f"jaxpt.heads.{name}") for name in self.known(heads)}
        return Network(config.build(), {name: module.declare(config)[name] for name, module in modules.items()})

    def table_of(self, network: Network) -> Table:
        """Names of all weights of a network."""
        config = network.config
        return with_heads(self.table(config), {name: self.heads[name](config) for name in self.known(network.heads)})

    def class_of(self, network: Network) -> str:
        """Name of their class for a network.

        Raises:
          UserError: they have none with these heads.
        """
        if isinstance(self.classes, str):
            return self.classes
        heads = self.known(network.heads)
        if heads not in self.classes:
            have = "; ".join(" + ".join(heads) or "none" for heads in self.classes)
            named = " + ".join(heads)
            raise UserError(f"Hugging Face has no {self.model_type} with the heads {named}, only with: {have}")
        return self.classes[heads]


def from_json(
    family: Family, given: Mapping[str, Any], tensors: Mapping[str, Any], ignore: tuple[str, ...] = ()
) -> ModelConfig:
    """Our configuration of a model.

    Args:
      family: what `given["model_type"]` names.
      given: what config.json holds.
      tensors: {name: array} of the model; a few options show in them alone.
      ignore: unknown keys that may be passed over.

    Returns:
      The configuration; dtype and remat are left at their defaults.

    Raises:
      UserError: an unknown key, a value that we do not have, or a field that does not fit.
    """
    keys = family.read(dict(given))
    inferred = family.infer(keys, tensors)
    keys = dict(leaves(keys))
    fixed = {**FIXED, **family.fixed}
    options = {option.theirs: option for option in family.options}
    harmless = {*HARMLESS, *family.harmless, *ignore}
    for key, value in keys.items():
        if key in options or value is None or key.split(".")[0] in harmless:
            continue
        if key not in fixed:
            near = difflib.get_close_matches(key, [*options, *fixed], n=1, cutoff=0.7)
            hint = f" (near {near[0]})" if near else ""
            raise UserError(
                f"config.json: {key}: {value!r} is not known for model_type {family.model_type}{hint}; "
                f"if it changes no output, pass --ignore {key}"
            )
        allowed = fixed[key] if isinstance(fixed[key], tuple) else (fixed[key],)
        if value not in allowed:
            raise UserError(f"config.json: {key}: {value!r} is not supported, only {_or(allowed)}")
    fields = {option.ours: _ours(option, keys.get(option.theirs, option.default)) for option in family.options}
    try:
        return resolve(family.kind, "jaxpt.models", ModelConfig)(**{**fields, **inferred})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or family.kind
        raise UserError(f"config.json: {where}: {first['msg'].removeprefix('Value error, ')}") from None


def to_json(family: Family, network: Network) -> dict[str, Any]:
    """What config.json says of a configuration.

    Args:
      family: what the model is written as.
      network: our backbone with its heads.

    Returns:
      Plain values; every option and every fixed key is written out.
    """
    config = network.config
    flat: dict[str, Any] = {"model_type": family.model_type, "architectures": [family.class_of(network)]}
    # Their classes have ids of published vocabularies as defaults, which may lie beyond this one.
    flat |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    flat |= {key: value[0] if isinstance(value, tuple) else value for key, value in family.fixed.items()}
    flat |= {option.theirs: _theirs(option, getattr(config, option.ours)) for option in family.options}
    keys: dict[str, Any] = {}
    for key, value in flat.items():
        put(keys, key, value, "config.json")
    return family.write(keys, config)


def _ours(option: Option, value: Any) -> Any:
    if option.values is None:
        return tuple(value) if isinstance(value, list) else value
    if value not in option.values:
        raise UserError(f"config.json: {option.theirs}: {value!r} is not supported, only {_or(option.values)}")
    return option.values[value]


def _theirs(option: Option, value: Any) -> Any:
    if option.values is None:
        return list(value) if isinstance(value, tuple) else value
    return next(theirs for theirs, ours in option.values.items() if ours == value)


def _or(values: Any) -> str:
    return " or ".join(json.dumps(value) for value in values)
