"""JSON Schemas of recipes, studies and models, made from the classes that read them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from jaxpt.config.data import tokenizer_kinds
from jaxpt.config.kinds import Kind, kind_of, kinds, resolve
from jaxpt.config.studies import Study
from jaxpt.config.tree import Config
from jaxpt.runtime.disk import write_text

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_BASE = {
    "description": "File(s) that this one starts from, relative to it.",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}


def json_schema() -> dict[str, Any]:
    """A JSON Schema of recipes, so that editors complete them and point at mistakes.

    Nothing is required: a `base` may hold what a recipe leaves out.

    Returns:
      The schema, with a choice for each kind that the package has of a part, and one for anyone's own.
    """
    schema = Config.model_json_schema()
    schema["$schema"] = _DIALECT
    definitions = schema["$defs"]
    for kind in open_parts(Config):
        custom = {"type": "object", "properties": {"kind": {"type": "string", "pattern": r"\."}}, "required": ["kind"]}
        choices: list[dict[str, Any]] = []
        for name in kinds(kind.package, kind.base):
            cls = resolve(name, kind.package, kind.base, kind.key)
            choice = cls.model_json_schema()
            definitions |= {name: each for name, each in choice.pop("$defs", {}).items() if name not in definitions}
            choice["properties"]["kind"] = {"const": name}
            definitions[cls.__name__] = choice
            choices.append({"$ref": f"#/$defs/{cls.__name__}"})
        definitions[kind.base.__name__] = {"anyOf": [*choices, custom]}
    kind = definitions["TokenizerConfig"]["properties"]["kind"]
    kind["anyOf"] = [{"enum": tokenizer_kinds()}, {"type": kind.pop("type"), "pattern": r"\."}]
    for optional in (schema, *definitions.values()):
        optional.pop("required", None)
    schema["properties"]["base"] = _BASE
    return schema


def study_schema() -> dict[str, Any]:
    """A JSON Schema of the files of studies; a `base` may hold what one leaves out."""
    schema = Study.model_json_schema()
    schema["$schema"] = _DIALECT
    schema.pop("required")
    schema["properties"]["base"] = _BASE
    return schema


def model_schema() -> dict[str, Any]:
    """A JSON Schema of the files of models: recipes with nothing but `model`."""
    schema = json_schema()
    schema["title"], schema["description"] = "Model", "Sizes of a model, for the `base` of recipes."
    schema["properties"] = {name: schema["properties"][name] for name in ("base", "model")}
    schema["$defs"] = _used(schema["$defs"], schema["properties"])
    return schema


SCHEMAS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "recipe": ("schema.json", json_schema),
    "study": ("study.schema.json", study_schema),
    "model": ("model.schema.json", model_schema),
}
"""{kind of file: (name of its schema in `configs`, the function that makes it)}."""


def schema_text(kind: str) -> str:
    """A schema as it is written: a line for each class and for each key of the file.

    Args:
      kind: one of `SCHEMAS`.

    Returns:
      JSON.
    """

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def block(entries: dict[str, Any]) -> str:
        return "{\n" + ",\n".join(f"    {text(name)}: {text(value)}" for name, value in entries.items()) + "\n  }"

    parts = {
        name: block(value) if name in ("$defs", "properties") else text(value)
        for name, value in SCHEMAS[kind][1]().items()
    }
    return "{\n" + ",\n".join(f"  {text(name)}: {value}" for name, value in parts.items()) + "\n}\n"


def write_schemas(directory: Path) -> list[Path]:
    """Writes all schemas into a directory.

    Args:
      directory: `configs` of the repository, or one of recipes of your own.

    Returns:
      The files.

    Raises:
      OSError: one cannot be written.
    """
    files = [directory / name for name, _ in SCHEMAS.values()]
    for file, kind in zip(files, SCHEMAS):
        write_text(file, schema_text(kind))
    return files


def _used(definitions: dict[str, Any], part: Any) -> dict[str, Any]:
    """The definitions that a part of a schema refers to, also by way of others, in their order."""
    used_names: set[str] = set()
    waiting = [part]
    while waiting:
        names = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(waiting.pop()))) - used_names
        used_names |= names
        waiting += [definitions[name] for name in names]
    return {name: value for name, value in definitions.items() if name in used_names}


def open_parts(cls: type[BaseModel]) -> dict[Kind, None]:
    """The parts of a tree whose class a `kind` names.

    Args:
      cls: the tree's class, such as `Config`.

    Returns:
      Their annotations as the keys of a mapping, from the top down; those of a kind's own keys are left out.
    """
    parts: dict[Kind, None] = {}
    for field in cls.model_fields.values():
        if kind := kind_of(field):
            parts |= {kind: None, **open_parts(kind.base)}
    return parts
