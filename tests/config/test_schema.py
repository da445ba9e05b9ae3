"""The JSON Schema takes what the package takes."""

import os

import pytest

from jaxpt import config as configs
from jaxpt.config import Config, dump, kinds, load, resolve
from jaxpt.config.files import parse
from jaxpt.config.schema import open_parts
from tests.config.helpers import ROOT

CONFIGS = ROOT / "configs"
FILES = {"pretrain": "recipe", "finetune": "recipe", "smoke": "recipe", "studies": "study", "models": "model"}


def shipped():
    """(kind of file, path) of each."""
    return [(kind, path) for folder, kind in FILES.items() for path in sorted((CONFIGS / folder).rglob("*.yaml"))]


@pytest.fixture(scope="module")
def validators():
    jsonschema = pytest.importorskip("jsonschema")
    return {kind: jsonschema.Draft202012Validator(make()) for kind, (_, make) in configs.SCHEMAS.items()}


@pytest.mark.parametrize("kind", configs.SCHEMAS)
def test_the_schemas_in_the_repository_are_current(kind):
    saved = (CONFIGS / configs.SCHEMAS[kind][0]).read_text("utf-8")
    assert saved == configs.schema_text(kind), "run: jaxpt schema --write configs"


def test_every_file_names_its_schema():
    """In the first line, where editors look for it."""
    found = shipped()
    assert {kind for kind, _ in found} == set(configs.SCHEMAS)
    for kind, path in found:
        schema = os.path.relpath(CONFIGS / configs.SCHEMAS[kind][0], path.parent)
        assert path.read_text("utf-8").startswith(f"# yaml-language-server: $schema={schema}\n"), path


def test_every_file_is_valid(validators):
    for kind, path in shipped():
        tree = parse(path.read_text("utf-8"), str(path))
        assert not list(validators[kind].iter_errors(tree)), path


def test_mistakes_in_studies_and_models_are_pointed_at(validators):
    study = {"question": "q", "rows": [{"name": "a", "recipe": "a.yaml", "set": {"data.length": 64}, "paper": 83.2}]}
    assert validators["study"].is_valid({"base": "x.yaml", **study, "tokens": 1000})
    row = study["rows"][0]
    for mistake in ({"token": 1}, {"tokens": 1.5}, {"rows": [{**row, "st": {}}]}, {"rows": [{"recipe": "a.yaml"}]},
                    {"set": ["a"]}, {"evaluate": {"probe": {"path": "a"}}}):  # fmt: skip
        assert not validators["study"].is_valid({**study, **mistake}), mistake
    assert validators["model"].is_valid({"base": "bert_base.yaml", "model": {"layers": 3}})
    for mistake in ({"modle": {}}, {"train": {"steps": 1}}, {"model": {"kind": "bert", "widht": 1}}):
        assert not validators["model"].is_valid(mistake), mistake


def test_the_schema_takes_recipes_and_refuses_mistakes(validators):
    schema = validators["recipe"]
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
