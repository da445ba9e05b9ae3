"""The JSON Schema takes what the package takes."""

import json

import pytest

from jaxpt import config as configs
from jaxpt.config import Config, dump, kinds, load, resolve
from jaxpt.config.files import parse
from jaxpt.config.schema import open_parts
from tests.config.helpers import ROOT


def test_the_schema_in_the_repository_is_current():
    saved = json.loads((ROOT / "configs" / "schema.json").read_text("utf-8"))
    assert saved == configs.json_schema(), "run: jaxpt schema > configs/schema.json"


def test_the_schema_takes_every_recipe_and_refuses_mistakes():
    jsonschema = pytest.importorskip("jsonschema")
    schema = jsonschema.Draft202012Validator(configs.json_schema())
    recipes = [
        parse(path.read_text("utf-8"), str(path)) for path in sorted((ROOT / "configs").glob("[mps][orm]*/*.yaml"))
    ]
    assert recipes
    for tree in recipes:
        schema.validate(tree)
    good = dump(load(next((ROOT / "configs" / "smoke").glob("*.yaml"))))
    schema.validate(good)
    schema.validate(
        {"data": {"source": "lab.mine"}, "optimizer": {"learning_rate": 1e-3, "schedule": {"kind": "lab.mine", "a": 1}}}
    )
    schema.validate(
        {"base": "x.yaml", "model": {"kind": "lab.mine", "anything": 1}, "train": {"phases": [{"set": {"a": 1}}]}}
    )
    for part, key, value in (
        ("train", "stepz", 1),
        ("optimizer", "b3", 0.9),
        ("optimizer", "kind", "adm"),
        ("data", "source", "jsnl"),
        ("train", "steps", "1"),
        ("model", "kind", "brt"),
        ("model", "widht", 1),
    ):
        assert not schema.is_valid({**good, part: {**good[part], key: value}})


def test_no_two_kinds_have_classes_of_one_name():
    """The schema's definitions go by these names."""
    parts = open_parts(Config)
    wanted = {"task", "model", "model.adapter", "objective", "optimizer", "optimizer.schedule", "evals"}
    assert {kind.key for kind in parts} == wanted
    names = [resolve(name, k.package, k.base).__name__ for k in parts for name in kinds(k.package, k.base)]
    assert len(names) == len(set(names))
