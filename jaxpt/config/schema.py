"""The JSON Schema of recipes, made from the tree."""

from __future__ import annotations

from typing import Any

from jaxpt.config.kinds import kinds, resolve
from jaxpt.config.tree import Config, EvaluatorConfig, ModelConfig, ObjectiveConfig


def json_schema() -> dict[str, Any]:
    """A JSON Schema of recipes, so that editors complete them and point at mistakes.

    Nothing is required: a `base` may hold what a recipe leaves out.

    Returns:
      The schema, with a choice for each model, objective and evaluator of the package, and one for anyone's own.
    """
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    definitions = schema["$defs"]
    for part, base in (("model", ModelConfig), ("objective", ObjectiveConfig), ("evals", EvaluatorConfig)):
        package = f"jaxpt.{part.removesuffix('s')}s"
        own = {"type": "object", "properties": {"kind": {"type": "string", "pattern": r"\."}}, "required": ["kind"]}
        choices: list[dict[str, Any]] = []
        for name in kinds(package, base):
            cls = resolve(name, package, base)
            choice = cls.model_json_schema()
            definitions |= choice.pop("$defs", {})
            choice["properties"]["kind"] = {"const": name}
            definitions[cls.__name__] = choice
            choices.append({"$ref": f"#/$defs/{cls.__name__}"})
        definitions[base.__name__] = {"anyOf": [*choices, own]}
        if part != "evals":  # a list
            schema["properties"][part] = {"$ref": f"#/$defs/{base.__name__}"}
    for optional in (schema, *definitions.values()):
        optional.pop("required", None)
    schema["properties"]["base"] = {
        "description": "Recipe(s) that this one starts from, relative to this file.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    return schema
