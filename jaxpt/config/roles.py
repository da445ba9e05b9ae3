"""What a resume may change: every field is identity, execution or extensible."""

from __future__ import annotations

from typing import Any

from jaxpt.config.check import dump
from jaxpt.config.fields import Frozen
from jaxpt.config.plain import leaves
from jaxpt.config.tree import Config


def differences(old: Config, new: Config, role: str = "identity") -> list[tuple[str, Any, Any]]:
    """Keys of one role whose values differ.

    Args:
      old: a saved configuration.
      new: the one asked for.
      role: identity (the default of a field: a resume under another value is refused), execution (free to change) or
        extensible (the end of the run).

    Returns:
      (dotted key, old value, new value) for each, in the tree's order; None where a side has no such key.
    """
    a, b = _values(old), _values(new)
    roles = _roles(old) | _roles(new)
    return [
        (key, a.get(key), b.get(key))
        for key in a | b
        if a.get(key) != b.get(key) and roles.get(key, "identity") == role
    ]


def _values(config: Config) -> dict[str, Any]:
    tree = dump(config)
    if phases := tree["train"]["phases"]:
        phases[-1]["steps"] = None  # train.steps says where the last phase ends
    return dict(leaves(tree))


def _roles(part: Frozen, prefix: str = "") -> dict[str, str]:
    roles: dict[str, str] = {}
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Frozen):
            roles |= _roles(value, f"{prefix}{name}.")
        elif isinstance(field.json_schema_extra, dict):
            roles[prefix + name] = str(field.json_schema_extra.get("role", "identity"))
    return roles
