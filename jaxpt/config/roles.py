"""What a resume may change: the role of every field. What is kept on disk, and its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from jaxpt.config.check import dump
from jaxpt.config.data import DataConfig
from jaxpt.config.fields import Frozen, Kept, Unaffected
from jaxpt.config.plain import leaves
from jaxpt.config.tree import Config


def differences(old: Config, new: Config, role: str = "identity") -> list[tuple[str, Any, Any]]:
    """Keys of one role whose values differ.

    Args:
      old: a saved configuration.
      new: the one asked for.
      role: identity (the default of a field: a resume under another value is refused), content (a path, whose files'
        digests decide), execution (free to change) or extensible (the end of the run).

    Returns:
      (dotted key, old value, new value) for each, in the tree's order; None where a side has no such key.
    """
    a, b = _values(old), _values(new)
    a, b = _without_filled(a, b), _without_filled(b, a)
    roles = _roles(old) | _roles(new)
    return [
        (key, a.get(key), b.get(key))
        for key in a | b
        if a.get(key) != b.get(key) and roles.get(key, "identity") == role
    ]


def _without_filled(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """The values but for empty mappings that the other side fills: its keys say what differs."""
    return {
        key: value for key, value in values.items()
        if value != {} or key in others or not any(other.startswith(f"{key}.") for other in others)
    }  # fmt: skip


def cache_key_fields(part: Frozen, kept: Kept, prefix: str = "") -> dict[str, Any]:
    """The fields on which something that is kept on disk depends: all that do not say `unaffected`.

    Prepared records depend on no execution field either; a compiled step may.

    Args:
      part: a configuration or a part of one.
      kept: "records" or "program".
      prefix: of the keys.

    Returns:
      {dotted key: plain value}.
    """
    fields: dict[str, Any] = {}
    for name, field in type(part).model_fields.items():
        if any(isinstance(mark, Unaffected) and kept in mark.kept for mark in field.metadata):
            continue
        if kept == "records" and _role(field) == "execution":
            continue
        value = getattr(part, name)
        if isinstance(value, Frozen):
            fields |= cache_key_fields(value, kept, f"{prefix}{name}.")
        else:
            fields[prefix + name] = part.model_dump(mode="json", include={name}, warnings=False)[name]
    return fields


def _values(config: Config) -> dict[str, Any]:
    tree = dump(config)
    if phases := tree["train"]["phases"]:
        phases[-1]["steps"] = None  # train.steps says where the last phase ends
    # Tasks by name and place, so that each of their fields has its own role.
    tree["data"]["mixture"] = {f"{n}.{task['name']}": task for n, task in enumerate(tree["data"]["mixture"])}
    return dict(leaves(tree))


def _roles(part: Frozen, prefix: str = "") -> dict[str, str]:
    roles: dict[str, str] = {}
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Frozen):
            roles |= _roles(value, f"{prefix}{name}.")
            continue
        if isinstance(part, DataConfig) and name == "mixture":
            for n, task in enumerate(part.mixture):
                roles |= _roles(task, f"{prefix}{name}.{n}.{task.name}.")
        roles[prefix + name] = _role(field)
    return roles


def _role(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("role", "identity")) if isinstance(extra, dict) else "identity"
