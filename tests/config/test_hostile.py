"""Hostile recipes: each is refused in one plain line, at once, and with little memory."""

import os
import resource
import time

import pytest

from jaxpt.config import load
from jaxpt.config.files import parse
from jaxpt.errors import UserError
from jaxpt.study import recipes
from tests.config.helpers import RECIPE

DEEP = 20_000


def bomb(levels=30, width=10):
    """Lists of aliases of lists of aliases."""
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels))]
    return "\n".join(lines)


def merges(levels=30, width=10):
    """Mappings merged from mappings that were merged."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * width)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


# {case: (text of the recipe, words of the message)}
TEXTS = {
    "alias bomb": (bomb(), "more than 100,000 values"),
    "alias bomb of strings": ("a: &a " + "x" * 100_000 + "\nb: [" + ", ".join(["*a"] * 9999) + "]", "of text"),
    "merge bomb": (merges(), "more than 100,000 values"),
    "a value in itself": ("a: &a [*a]", "contains itself"),
    "a mapping in itself": ("a: &a {b: *a}", "contains itself"),
    "a merge of itself": ("a: &a {<<: *a, b: 1}", "contains itself"),
    "deep lists": ("a: " + "[" * DEEP + "]" * DEEP, "nested too deeply"),
    "deep mappings": ("a: " + "{b: " * DEEP + "1" + "}" * DEEP, "nested too deeply"),
    "deep enough for json": ("a: " + "[" * 150 + "]" * 150, "nested too deeply"),
    "deep keys": ("? model." + "a." * DEEP + "b\n: 1", "unknown key model.a"),
    "many lines": ("a: 1\n" * 200_000, "more than 262,144 bytes; a recipe is a YAML file; data.path names texts"),
    "tag of Python": ("a: !!python/object/apply:os.system [true]", "not valid YAML"),
    "binary": ("a: !!binary aGk=", "a value that a recipe cannot hold"),
    "a set": ("a: !!set {b}", "a value that a recipe cannot hold"),
    "a list as key": ("? [a]\n: b", "not valid YAML"),
    "control characters": ("a: \x1b[31m", "not valid YAML"),
    "escaped control characters": ('model: {kind: "\\e[31m"}', "model.kind"),
    "infinite": ("a: 1e999", "a value that a recipe cannot hold"),
    "5,000 digits": ("seed: " + "9" * 5000, "a value that a recipe cannot hold"),
    "400 digits": (RECIPE + "seed: " + "9" * 400, "seed: wants"),
    "400 digits of layers": (RECIPE.replace("layers: 2", "layers: " + "9" * 400), "model.layers: wants"),
    "400 digits of steps": (RECIPE + "train: {steps: " + "9" * 400 + "}", "train.steps: wants"),
    "400 digits of a rate": (RECIPE + "optimizer: {learning_rate: " + "9" * 400 + "}", "optimizer.learning_rate"),
    "10^8 layers": (RECIPE.replace("layers: 2", "layers: 100000000"), "model.layers: wants a number not above 10000"),
    "10^12 ids": (
        RECIPE.replace("vocab_size: 100", "vocab_size: 1000000000000"),
        "model.vocab_size: wants a number below",
    ),
    "10^15 wide": (
        RECIPE.replace("embed_dim: 16", "embed_dim: 1000000000000000"),
        "model.embed_dim: wants a number below",
    ),
    "empty": ("", "wants a mapping"),
    "a list": ("[1]", "wants a mapping"),
    "base of numbers": ("base: [1]", "base: wants a path"),
    "base is a mapping": ("base: {a: 1}", "base: wants a path"),
    "base is a device": ("base: /dev/zero", "/dev/zero: not a regular file"),
    "base is a directory": ("base: .", "is a directory"),
    "base is missing": ("base: none.yaml", "none.yaml: No such file"),
    "base with NUL": ('base: "a\\0b"', "base"),
    "base of a megabyte": ("base: " + "x" * 100_000, "base"),
    "bases without end": ("base: [" + ", ".join(["b.yaml"] * 9999) + "]", "more than 100 files"),
}


def refused(path, words, *overrides):
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    assert words in str(caught.value)[:2000], str(caught.value)[:2000]
    assert time.process_time() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_recipe(name, tmp_path):
    text, words = TEXTS[name]
    (tmp_path / "b.yaml").write_text("seed: 1")
    (tmp_path / "r.yaml").write_text(text)
    refused(tmp_path / "r.yaml", words)


def test_bases_that_fan_out(tmp_path):
    for n in range(30):
        (tmp_path / f"{n}.yaml").write_text(f"base: [{', '.join([f'{n + 1}.yaml'] * 10)}]")
    (tmp_path / "30.yaml").write_text(RECIPE)
    refused(tmp_path / "0.yaml", "more than 100 files")


@pytest.mark.parametrize("name", ["recipe", "base"])
def test_a_pipe(name, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "r.yaml").write_text("base: pipe")
    refused(tmp_path / ("pipe" if name == "recipe" else "r.yaml"), "pipe: not a regular file")


@pytest.mark.parametrize(
    "item",
    [
        f"model.{'a.' * DEEP}b=1",
        f"seed={'9' * 400}",
        f"seed={'[' * DEEP}",
        "seed=&a [*a]",
        f"{'a' * 10**6}=1",
        "=",
        "=1",
    ],
)
def test_a_hostile_override(item, tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE)
    refused(tmp_path / "r.yaml", "", item, "train.steps=3")


def test_aliases_and_merges_of_people():
    text = "a: &a {x: 1, y: [1, 2]}\nb: {<<: *a, x: 2}\nc: [*a, *a]"
    assert parse(text, "r")["b"] == {"x": 2, "y": [1, 2]} and parse(text, "r")["c"][1]["x"] == 1


@pytest.mark.parametrize("key", ["init_from", "data", "model", "data.tokenizer"])
def test_a_section_of_a_fine_tuning_recipe_that_is_no_mapping(key):
    """They are read before the validation: model and tokenizer come from what a run starts from."""
    with pytest.raises(UserError, match=rf"{key}: wants a mapping of keys to values, got 'x'"):
        recipes.load("configs/finetune/glue/sst2.yaml", [f"{key}=x"])
    with pytest.raises(UserError, match=r"init_from\.path: wants a path, got 5"):
        recipes.load("configs/finetune/glue/sst2.yaml", ["init_from.path=5"])
