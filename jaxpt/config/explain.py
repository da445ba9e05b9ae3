"""pydantic's errors in one line of plain words: the key, what was given, what is wanted, the nearest right name."""

from __future__ import annotations

import json
from typing import Any, get_args

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
        return ".".join(key), f"unknown key {'.'.join(key)}{_right_key(key, tree, root)}"
    if details["type"] == "missing":
        return ".".join(key[:-1]), f"key {'.'.join(key)} is missing"
    # A union gives an error for each of its types: the deepest is nearest to what was meant.
    key = max((other for other, _ in mistakes if other[: len(key)] == key), key=len)
    same = [details for other, details in mistakes if other == key]
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
        template = _WANTED.get(details["type"])
        if template is None:
            return details["msg"].removeprefix("Value error, ")
        expected.append(template.format(**context))
    hint = ""
    if errors[0]["type"] == "literal_error" and isinstance(actual, str):
        hint = nearest(actual, errors[0]["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", "), "")
    elif isinstance(actual, float) and actual.is_integer():
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
