"""pydantic's errors in one line of plain words: the key, what was given, what is wanted, the nearest right name."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from jaxpt.config.fields import Frozen
from jaxpt.config.kinds import Kind, kind_of, nearest
from jaxpt.config.plain import get
from jaxpt.config.tree import Config

RENAMED = {
    "train.accumulation": "train.grad_accum_steps",
    "mesh.sequence": "mesh.context",
    "mesh.stage": "mesh.pipeline",
    "model.next_sentence": "objective.next_sentence",
    "model.span_boundary": "objective.max_span",
    "model.span_position_dim": "objective.position_dim",
    "model.generator": "objective.generator",
    "model.sharing": "objective.sharing",
}
"""Keys that had another name."""

_MOST_DOTS = 8
"""Of a dotted key that is shown as nested mappings."""
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "none_required": "null",
    "string_type": "a string",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number not below {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number not above {le}",
    "literal_error": "one of {expected}",
}
_PATTERNS = {
    r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$": "a name of letters, digits, _, - and . that does not begin with .",
    r"^[A-Za-z0-9_.-]+$": "a name of letters, digits, _, - and .",
    r"^(![a-z0-9_]+|[a-z0-9_]+=.*)$": "option=value or !option",
}
"""Patterns of keys, in words."""


def explain(
    error: ValidationError, tree: Any, root: type[Frozen] = Config, above: tuple[str, ...] = ()
) -> tuple[str, str]:
    """What was wrong, in one line.

    Of several mistakes an unknown key comes first: it is often why another is missing.

    Args:
      error: what validation raised.
      tree: the plain values that were validated.
      root: the class of the whole tree.
      above: the key of the block that was validated; () for the whole tree.

    Returns:
      (dotted key, message that names the key).
    """
    mistakes = [(_key((*above, *details["loc"]), details["type"], tree), details) for details in error.errors()]
    mistakes.sort(key=lambda item: item[1]["type"] != "extra_forbidden")
    key, details = mistakes[0]
    if details["type"] == "extra_forbidden":
        is_dotted = 0 < key[-1].count(".") <= _MOST_DOTS
        hint = _nested(key, get(tree, key)) if is_dotted else _right_key(key, tree, root)
        return ".".join(key), f"unknown key {'.'.join(key)}{hint}"
    if details["type"] == "missing":
        return ".".join(key[:-1]), f"key {'.'.join(key)} is missing"
    # A union gives an error for each of its types: the deepest is nearest to what was meant.
    key = max((other for other, _ in mistakes if other[: len(key)] == key), key=len)
    same = [details for other, details in mistakes if other == key]
    if elements := _elements(same):
        return ".".join(key), _as_list(key, elements, _class_at(key[:-1], tree, root)[0])
    return ".".join(key), f"{'.'.join(key)}: {_wants(same)}" if key else _wants(same)


def _key(location: tuple[int | str, ...], mistake: str, tree: Any) -> tuple[str, ...]:
    """The error's place without the names of union members, which are no keys of the tree."""
    key: list[str] = []
    for part in location:
        if (isinstance(tree, dict) and part in tree) or (isinstance(tree, list) and isinstance(part, int)):
            tree = tree[part]
        elif mistake != "missing" or part != location[-1]:
            continue
        key.append(str(part))
    return tuple(key)


def _wants(errors: list[Any]) -> str:
    """ "wants a string or a list, got 3"."""
    expected, actual = [], errors[0]["input"]
    for details in errors:
        context = details.get("ctx", {})
        template = _WANTED.get(details["type"]) or _PATTERNS.get(context.get("pattern", ""))
        if template is None:
            return details["msg"].removeprefix("Value error, ")
        expected.append(template.format(**context))
    hint = ""
    if errors[0]["type"] == "literal_error" and isinstance(actual, str):
        hint = nearest(actual, errors[0]["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", "), "")
    elif errors[0]["type"] in ("int_type", "int_from_float") and isinstance(actual, float) and actual.is_integer():
        hint = f"; write {int(actual)}"
    elif isinstance(actual, str) and "number" in expected[0] and _is_number(actual):
        hint = f"; write {actual} without quotes"
    return f"wants {' or '.join(dict.fromkeys(expected))}, got {_show(actual)}{hint}"


def _is_number(text: str) -> bool:
    try:
        return bool(text) and float(text) == float(text)
    except ValueError:
        return False


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _nested(key: tuple[str, ...], value: Any) -> str:
    """How a dotted key of a file is written there."""
    first, *rest = ".".join(key).split(".")
    for part in reversed(rest):
        value = {part: value}
    return f"; dotted keys are for the command line and `set`; write {first}: {_flow(value)}"


def _elements(errors: list[Any]) -> dict[str, Any] | None:
    """{index: value} where overrides set elements of a list that is not there; None of another mistake."""
    given = errors[0]["input"]
    wants_list = any(details["type"] in ("tuple_type", "list_type") for details in errors)
    is_indexed = isinstance(given, dict) and given and all(str(name).isdecimal() for name in given)
    return given if wants_list and is_indexed else None


def _as_list(key: tuple[str, ...], elements: dict[str, Any], cls: type[Frozen] | None) -> str:
    """How a list is set whole; an element without a `kind` has that of the list's default."""
    default = cls.model_fields[key[-1]].default if cls and key[-1] in cls.model_fields else None
    whole = []
    for index, value in elements.items():
        known = default[int(index)] if isinstance(default, tuple) and int(index) < len(default) else None
        kind = {"kind": known["kind"]} if isinstance(known, dict) and "kind" in known else {}
        whole.append({**kind, **value} if isinstance(value, dict) else value)
    name = ".".join(key)
    return f"{name} is not in the recipe, so it has no element {next(iter(elements))}; write {name}='{_flow(whole)}'"


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf).strip()


# ---- the right key --------------------------------------------------------------------------------------------------


def _right_key(key: tuple[str, ...], tree: Any, root: type[Frozen]) -> str:
    """Of which kind it is no key; its name now, the kinds that have it, the nearest keys, or the name elsewhere."""
    if new := RENAMED.get(".".join(key)):
        return f"; it is called {new} now"
    cls, kind = _class_at(key[:-1], tree, root)
    known_keys, of_kind = list(cls.model_fields) if cls else [], ""
    if cls and kind and cls is not kind.base:
        of_kind = f" of kind {get(tree, key[:-1], {}).get('kind', kind.default)}"
        if others := kind.with_key(key[-1]):
            return f"{of_kind}, only of {', '.join(others)}; known here: {', '.join(known_keys)}"
    if close := nearest(key[-1], known_keys, "", within=key[:-1]):
        return of_kind + close
    elsewhere = [path for path in _all_keys((), tree, root) if path.rpartition(".")[2] == key[-1]]
    return of_kind + (f"; did you mean {' or '.join(elsewhere)}?" if elsewhere else nearest(key[-1], known_keys))


def _all_keys(key: tuple[str, ...], tree: Any, root: type[Frozen]) -> list[str]:
    cls, _ = _class_at(key, tree, root)
    below = [(*key, name) for name in (cls.model_fields if cls else ())]
    return [path for each in below for path in (".".join(each), *_all_keys(each, tree, root))]


def _class_at(key: tuple[str, ...], tree: Any, root: type[Frozen]) -> tuple[type[Frozen] | None, Kind | None]:
    """The class of the tree's part under a key, None where it is a value; the `Kind` where a `kind` names the class."""
    cls: Any = root
    kind: Kind | None = None
    for depth, part in enumerate(key):
        if not part.isdecimal():  # else one of a list
            field = cls.model_fields.get(part) if cls else None
            kind, cls = kind_of(field), _part(field)
        if kind:
            cls = kind.named(get(tree, key[: depth + 1], {}))
    return cls, kind


def _part(field: Any) -> type[Frozen] | None:
    """The part of the tree that a field holds, also within `tuple[Part, ...]` and `Part | None`."""
    candidates = [field.annotation, *get_args(field.annotation)] if field else []
    return next((cls for cls in candidates if isinstance(cls, type) and issubclass(cls, Frozen)), None)
