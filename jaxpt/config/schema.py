"""The JSON Schema of recipes, made from the tree."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from jaxpt.config.data import tokenizer_kinds
from jaxpt.config.kinds import Kind, kind_of, kinds, resolve
from jaxpt.config.tree import Config


def json_schema() -> dict[str, Any]:
    """A JSON Schema of recipes, so that editors complete them and point at mistakes.

    Nothing is required: a `base` may hold what a recipe leaves out.

    Returns:
      The schema, with a choice for each kind that the package has of a part, and one for anyone's own.
    """
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    definitions = schema["$defs"]
    for kind in open_parts(Config):
        own = {"type": "object", "properties": {"kind": {"type": "string", "pattern": r"\."}}, "required": ["kind"]}
        choices: list[dict[str, Any]] = []
        for name in kinds(kind.package, kind.base):
            cls = resolve(name, kind.package, kind.base, kind.key)
            choice = cls.model_json_schema()
            definitions |= {name: each for name, each in choice.pop("$defs", {}).items() if name not in definitions}
            choice["properties"]["kind"] = {"const": name}
            definitions[cls.__name__] = choice
            choices.append({"$ref": f"#/$defs/{cls.__name__}"})
        definitions[kind.base.__name__] = {"anyOf": [*choices, own]}
    kind = definitions["TokenizerConfig"]["properties"]["kind"]
    kind["anyOf"] = [{"enum": tokenizer_kinds()}, {"type": kind.pop("type"), "pattern": r"\."}]
    for optional in (schema, *definitions.values()):
        optional.pop("required", None)
    schema["properties"]["base"] = {
        "description": "Recipe(s) that this one starts from, relative to this file.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    return schema


def open_parts(cls: type[BaseModel]) -> dict[Kind, None]:
    """The parts of a tree whose class a `kind` names.

    Args:
      cls: the tree's class, such as `Config`.

    Returns:
      Their annotations as the keys of a mapping, from the top down; those of a kind's own keys are left out.
    """
    found: dict[Kind, None] = {}
    for field in cls.model_fields.values():
        if kind := kind_of(field):
            found |= {kind: None, **open_parts(kind.base)}
    return found
