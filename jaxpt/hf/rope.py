"""Rotary positions in config.json: the keys of each kind of scaling, of transformers before and after version 5.

Version 5 has one mapping, `rope_parameters`, or one for each kind of layer. Before it there were `rope_theta`,
`rope_scaling` and `rope_local_base_freq`.
"""

from __future__ import annotations

import math
from typing import Any

from jaxpt.errors import UserError, shown
from jaxpt.hf.options import Option
from jaxpt.models.decoder_only import DecoderOnlyConfig

SCALING = {
    "default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn", "longrope": "longrope",
}  # fmt: skip
"""{their `rope_type`: ours}"""
_USED = {
    "default": (), "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "truncate", "original_max_position_embeddings"),
    "longrope": ("factor", "short_factor", "long_factor", "attention_factor", "original_max_position_embeddings"),
}  # fmt: skip
"""{rope_type: its keys}"""
_REQUIRED = {
    "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}  # fmt: skip
"""{rope_type: the keys that have no default}"""
FULL, SLIDING = "full_attention", "sliding_attention"


def options(theta: float) -> tuple[Option, ...]:
    """The keys of rotary positions, after `read`.

    Args:
      theta: their default of `rope_theta`.
    """
    return (
        Option("rope_parameters.rope_theta", "rope_theta", theta),
        Option("rope_parameters.rope_type", "rope_scaling", "default", SCALING),
        Option("rope_parameters.factor", "rope_factor", 1.0),
        Option("rope_parameters.low_freq_factor", "rope_low_frequency", 1.0),
        Option("rope_parameters.high_freq_factor", "rope_high_frequency", 4.0),
        Option("rope_parameters.original_max_position_embeddings", "rope_original_positions", 8192),
        Option("rope_parameters.beta_fast", "rope_fast_turns", 32.0),
        Option("rope_parameters.beta_slow", "rope_slow_turns", 1.0),
        Option("rope_parameters.truncate", "rope_whole_pairs", True),
        Option("rope_parameters.attention_factor", "rope_amplitude", None),
        Option("rope_parameters.short_factor", "rope_short_factors", ()),
        Option("rope_parameters.long_factor", "rope_long_factors", ()),
    )


def read(keys: dict[str, Any], theta: float, by_kind: bool = False) -> dict[str, Any]:
    """Moves rotary positions into one mapping, `rope_parameters`, of layers with full attention.

    The base of layers with a window becomes `rope_local_base_freq`, the share of rotated coordinates
    `partial_rotary_factor`.

    Args:
      keys: of config.json.
      theta: their default of `rope_theta`.
      by_kind: the family's `rope_parameters` have a mapping for each kind of layer.

    Raises:
      UserError: a scaled kind of positions lacks a number, layers with a window are scaled, two keys contradict each
        other, or a key stands where transformers does not read it.
    """
    scaling, nested = keys.get("rope_scaling"), keys.get("rope_parameters")
    if scaling and nested:
        # As transformers: `rope_scaling` as a whole, or over what is there of layers with full attention.
        counting = nested | {FULL: {**_kind(nested, FULL), **scaling}} if by_kind else scaling
        _check_equal(*(_read(keys | {"rope_scaling": None, "rope_parameters": rope}, theta, by_kind)
                       for rope in (counting, nested)), theta)  # fmt: skip
    return _read(keys, theta, by_kind)


def _check_equal(scaling: dict[str, Any], nested: dict[str, Any], theta: float) -> None:
    """Raises UserError if `rope_scaling` and `rope_parameters`, each read for itself, mean different positions."""
    counting, other = (_meaning(keys, theta) for keys in (scaling, nested))
    for key, value in counting.items():
        if other.get(key, value) != value:
            raise UserError(
                f"config.json: rope_scaling and rope_parameters differ: {key} is {shown(value)} and "
                f"{shown(other[key])}; transformers reads rope_scaling; remove one of them"
            )


def _meaning(keys: dict[str, Any], theta: float) -> dict[str, Any]:
    """The values of the keys that the kind of positions uses, with their defaults."""
    rope = keys.get("rope_parameters", {})
    kind = rope.get("rope_type", "default")
    used = _USED[kind] if isinstance(kind, str) and kind in _USED else rope
    defaults = {option.theirs.partition(".")[2]: option.default for option in options(theta)}
    values = {key: rope.get(key, defaults.get(key)) for key in ("rope_type", "rope_theta", *used)}
    return values | {"partial_rotary_factor": keys.get("partial_rotary_factor")}


def _read(keys: dict[str, Any], theta: float, by_kind: bool) -> dict[str, Any]:
    """`read` of keys of which `rope_scaling` and `rope_parameters` mean the same."""
    keys = dict(keys)
    old = {"rope_theta", "rope_scaling"} & set(keys)
    rope = {"rope_theta": keys.pop("rope_theta", theta), **(keys.pop("rope_scaling", None) or {})} if old else {}
    nested = keys.pop("rope_parameters", None) or {}
    rope |= _of_full_layers(keys, nested, {"rope_theta": theta} | rope) if by_kind else nested
    if "type" in rope:
        rope.setdefault("rope_type", rope.pop("type"))
        rope.pop("type", None)
    original = keys.pop("original_max_position_embeddings", None)
    rope = {key: value for key, value in rope.items() if value is not None}
    if (share := rope.pop("partial_rotary_factor", None)) is not None:
        keys["partial_rotary_factor"] = share
    if rope.get("rope_type") in ("llama3", "yarn", "longrope"):
        rope |= {} if original is None else {"original_max_position_embeddings": original}
        _complete(rope, keys.get("max_position_embeddings"))
    else:
        _require(rope)
    return keys | ({"rope_parameters": rope} if rope else {})


def _kind(rope: dict[str, Any], kind: str) -> dict[str, Any]:
    """The mapping of a kind of layer."""
    if not isinstance(of_kind := rope.get(kind) or {}, dict):
        raise UserError(f"config.json: rope_parameters.{kind}: wants a mapping, got {shown(of_kind)}")
    return dict(of_kind)


def _of_full_layers(keys: dict[str, Any], rope: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of layers with full attention; those with a window leave their base in `keys`.

    `old` is what keys outside of `rope_parameters` say.
    """
    full, sliding = _kind(rope, FULL), _kind(rope, SLIDING)
    kind = sliding.get("rope_type", sliding.get("type", "default"))
    if kind != "default":
        raise UserError(
            f"config.json: rope_parameters.{SLIDING}.rope_type: {shown(kind)} is not supported, only default"
        )
    if "rope_theta" in sliding:
        keys["rope_local_base_freq"] = sliding["rope_theta"]
    full.pop("truncate", None)  # version 5 reads it beside the kinds of layers
    beside = {key: x for key, x in rope.items() if key not in (FULL, SLIDING) and x is not None}
    out = full | ({"truncate": beside.pop("truncate")} if "truncate" in beside else {})
    counting = {"rope_type": "default"} | old | full
    for key, value in beside.items():
        if counting.get(key) != value:
            raise UserError(
                f"config.json: rope_parameters.{key}: {shown(value)} is not read by transformers beside the kinds of "
                f"layers; move it into rope_parameters.{FULL}"
            )
    return out


def _require(rope: dict[str, Any]) -> None:
    """Raises UserError if a number is missing, or a factor is there that the kind does not have."""
    kind = rope.get("rope_type", "default")
    if kind == "default" and rope.get("factor", 1.0) != 1.0:
        raise UserError(
            f"config.json: rope_parameters.factor: {shown(rope['factor'])} has no rope_type that scales by it"
        )
    for key in _REQUIRED.get(kind, ()) if isinstance(kind, str) else ():
        if rope.get(key) is None:
            raise UserError(f"config.json: rope_parameters.{key}: is missing; rope_type {kind} needs it")


def _complete(rope: dict[str, Any], positions: Any) -> None:
    """Fills in what follows from other keys, as transformers does."""
    _require(rope)
    kind = rope["rope_type"]
    if positions is not None:
        rope.setdefault("original_max_position_embeddings", positions)
    if (original := rope.get("original_max_position_embeddings")) is None:
        raise UserError(
            f"config.json: rope_parameters.original_max_position_embeddings: is missing; rope_type {kind} needs it"
        )
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if _are_numbers(low, high) and high <= low:
            raise UserError(
                f"config.json: rope_parameters.high_freq_factor: wants more than low_freq_factor ({low}), got {high}"
            )
    if kind == "longrope" and positions is None and not {"factor", "attention_factor"} & rope.keys():
        raise UserError(
            "config.json: max_position_embeddings: is missing; rope_type longrope needs it, or rope_parameters.factor"
        )
    if kind == "longrope" and "factor" not in rope and _are_numbers(positions, original) and original:
        rope["factor"] = positions / original
    scales = rope.pop("mscale", None), rope.pop("mscale_all_dim", None)
    if kind == "yarn" and all(scales) and _are_numbers(rope["factor"], *scales):
        first, second = (_amplitude(rope["factor"], scale) for scale in scales)
        rope.setdefault("attention_factor", first / second)


def _amplitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(x, (int, float)) for x in values)


def write(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    """Inverse of `read`, for versions of transformers before and after 5, without unused keys."""
    rope = keys["rope_parameters"]
    used = {"rope_theta", "rope_type", *_USED[rope["rope_type"]]}
    rope = {key: value for key, value in rope.items() if key in used and value is not None}
    scaling = None if rope["rope_type"] == "default" else {k: v for k, v in rope.items() if k != "rope_theta"}
    return keys | {"rope_parameters": rope, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}


def write_by_kind(keys: dict[str, Any], config: DecoderOnlyConfig) -> dict[str, Any]:
    """As `write`, with a mapping for each kind of layer."""
    rope = write(keys, config)["rope_parameters"]
    theta = config.other_rope_theta or config.rope_theta
    nested = {FULL: rope, SLIDING: {"rope_type": "default", "rope_theta": theta}}
    if not rope.pop("truncate", True):
        nested["truncate"] = False
    keys.pop("rope_local_base_freq", None)
    return keys | {"rope_parameters": nested}
