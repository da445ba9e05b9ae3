"""Recipes are read as they were written, bases below them."""

import doctest
import json
import os
import re

import pytest

from jaxpt.config import files, load, to_yaml
from jaxpt.errors import UserError
from tests.config.helpers import RECIPE, ROOT, mistake, write


def test_defaults_and_run_dir(recipe):
    config = load(recipe)
    assert config.run_dir == "runs/recipe"
    assert config.model.kind == "bert" and config.objective.kind == "masked_lm"
    assert config.train.steps == 1000


def test_tree_is_frozen_and_hashable(recipe):
    override = "train.phases=[{steps: 10}, {set: {data.length: 64, data: {path: [a, b]}}}]"
    config = load(recipe, [override, "data.path=[x, y]"])
    assert hash(config) == hash(load(recipe, [override, "data.path=[x, y]"]))
    assert config != load(recipe, [override])
    for part in (config, config.model, config.data.tokenizer):
        with pytest.raises(Exception, match="frozen"):
            part.kind = "other"


def test_base_is_merged_under_the_recipe(tmp_path):
    write(tmp_path / "lib" / "model.yaml", RECIPE + "seed: 1\noptimizer: {b1: 0.8, b2: 0.9}")
    write(tmp_path / "other.yaml", "seed: 2\ntrain: {steps: 7}")
    path = write(tmp_path / "r.yaml", "base: [lib/model.yaml, other.yaml]\noptimizer: {b2: 0.95}")
    config = load(path)
    assert (config.seed, config.train.steps) == (2, 7)
    assert (config.optimizer.b1, config.optimizer.b2) == (0.8, 0.95)


def test_bases_of_bases_are_relative_to_their_own_file_and_may_meet(tmp_path):
    write(tmp_path / "a" / "root.yaml", RECIPE)
    write(tmp_path / "a" / "left.yaml", "base: root.yaml\nseed: 3")
    write(tmp_path / "a" / "right.yaml", "base: root.yaml\ntrain: {steps: 5}")
    config = load(write(tmp_path / "r.yaml", "base: [a/left.yaml, a/right.yaml]"))
    assert (config.seed, config.train.steps) == (3, 5)


def test_another_kind_starts_afresh_in_a_file(tmp_path):
    write(tmp_path / "base.yaml", RECIPE + "optimizer: {kind: adamw, b1: 0.8, learning_rate: 3.0}")
    config = load(write(tmp_path / "r.yaml", "base: base.yaml\noptimizer: {kind: lion}"))
    assert config.optimizer.b1 == 0.9 and config.optimizer.learning_rate == 1e-3


def test_an_empty_mapping_on_the_command_line_empties_the_one_of_the_recipe(tmp_path):
    text = "train: {lora: {rank: 4}, phases: [{steps: 10, set: {data.length: 64, objective.mask_rate: 0.3}}, {}]}"
    path = write(tmp_path / "r.yaml", RECIPE + text)
    assert load(path, ["train.lora={alpha: 4}"]).train.lora.rank == 4
    train = load(path, ["train.lora={}", "train.phases.0.set={}"]).train
    assert train.lora.rank == 8 and train.phases[0].set == () and train.phases[0].steps == 10


def test_circular_base(tmp_path):
    write(tmp_path / "d" / "a.yaml", "base: ../d/b.yaml")
    path = write(tmp_path / "d" / "b.yaml", "base: ../d/a.yaml")
    assert re.search(r"b\.yaml: base: goes round in a circle: .*b\.yaml → .*a\.yaml → .*b\.yaml", mistake(path))


def test_a_mistake_in_a_base_names_the_base(tmp_path):
    write(tmp_path / "base.yaml", RECIPE + "train: {stepz: 3}")
    path = write(tmp_path / "r.yaml", "base: base.yaml\ntrain: {steps: 4}")
    assert mistake(path) == f"{tmp_path}/base.yaml: unknown key train.stepz; did you mean train.steps?"


@pytest.mark.parametrize("text", ["base: gone.yaml", "base: 3", "base: [3]", "base: {a: 1}"])
def test_wrong_base(tmp_path, text):
    assert "r.yaml: base: " in mistake(write(tmp_path / "r.yaml", text))


def test_a_run_directory_is_a_recipe_and_may_move(tmp_path, recipe):
    config = load(recipe, ["run_dir=somewhere/else", "train.steps=3"])
    write(tmp_path / "moved" / "config.yaml", to_yaml(config))
    again = load(tmp_path / "moved")
    assert again.run_dir == str(tmp_path / "moved")
    assert again == config.model_copy(update={"run_dir": again.run_dir})
    assert load(tmp_path / "moved", ["run_dir=x"]).run_dir == "x"
    assert "there is no config.yaml in it" in mistake(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("1E+4", 1e4), ("3", 3.0), (".5", 0.5), ("1.", 1.0), ("+1.5e3", 1500.0), ("1_000", 1000.0),
    ],
)  # fmt: skip
def test_numbers(recipe, text, value):
    assert load(recipe, [f"optimizer.learning_rate={text}"]).optimizer.learning_rate == value


@pytest.mark.parametrize(
    "text", ["no", "on", "y", "2020-01-01", "010", "1:30", "=", "<", "0b1", ".inf", "1e", "é", "a b"]
)
def test_words_are_words(recipe, text):
    """YAML 1.1 makes dates, octals, base-60 numbers and booleans of these."""
    assert load(recipe, [f"data.field={text}"]).data.field == text


@pytest.mark.parametrize("text", ["*.txt", "%x", "@x", "&x", "!x", "#x"])
def test_signs_of_yaml_are_text_on_the_command_line(recipe, text):
    assert load(recipe, [f"data.path={text}"]).data.path == text


@pytest.mark.parametrize("text", ["a\nb.txt", "runs/x #2", "ends ", "it's 'so'", "é\u2028b"])
def test_a_name_is_taken_as_it_was_given(recipe, text):
    """YAML folds newlines, begins a comment at ` #` and cuts spaces; in quotes it is YAML."""
    assert load(recipe, [f"data.path={text}"]).data.path == text
    assert load(recipe, [f"data.path={json.dumps(text)}"]).data.path == text


def test_a_name_that_is_not_utf_8_is_refused(recipe):
    with pytest.raises(UserError, match=r"line: data\.path=sch.n: has bytes that are not UTF-8"):
        load(recipe, ["data.path=sch" + os.fsdecode(b"\xf6") + "n"])


def test_null_and_lists(recipe):
    config = load(recipe, ["data.path=[a, b]", "train.eval_every=null", "optimizer.clip_norm=~", "checkpoint.every="])
    assert config.data.path == ("a", "b")
    assert config.train.eval_every is config.optimizer.clip_norm is config.checkpoint.every is None


def test_yaml_merge_keys_and_byte_order_mark(tmp_path):
    path = write(tmp_path / "r.yaml", "\ufeff" + RECIPE + "optimizer: &o {b1: 0.5, b2: 0.6}\n")
    assert load(path).optimizer.b1 == 0.5
    path = write(tmp_path / "s.yaml", RECIPE + "train:\n  <<: {steps: 3, log_every: 4}\n  steps: 5\n")
    assert (load(path).train.steps, load(path).train.log_every) == (5, 4)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("model: {kind: bert\n", r"r\.yaml line 2: not valid YAML: .*"),
        ("model:\n\tkind: bert\n", r"r\.yaml line 2: not valid YAML: found character '\\t' .*"),
        ("seed: 1\ndata: {}\nseed: 2\n", r"r\.yaml line 3: not valid YAML: key 'seed' is given twice"),
        ("data: {path: a, path: b}", r"r\.yaml line 1: not valid YAML: key 'path' is given twice"),
        ("seed: &a\n  b: *a\n", r"r\.yaml: a value that a recipe cannot hold: .*"),
        ("seed: !!set {a}\n", r"r\.yaml: a value that a recipe cannot hold: .*"),
        ("seed: 1e999\n", r"r\.yaml: a value that a recipe cannot hold: .*"),
        ("", r"r\.yaml: wants a mapping of keys to values, it is empty"),
        ("- a\n- b\n", r"r\.yaml: wants a mapping of keys to values; a recipe is a YAML file; data.path names texts"),
        ("a: 1\n---\nb: 2\n", r"r\.yaml line 2: not valid YAML: .*"),
        ("a: \x00\n", r"r\.yaml: not valid YAML: .*"),
    ],
)
def test_broken_files(tmp_path, text, answer):
    assert re.fullmatch(f".*/{answer}", mistake(write(tmp_path / "r.yaml", text)))


@pytest.mark.parametrize("name", ["tickets.csv", "small.TSV", "texts.txt.gz"])
def test_data_in_the_place_of_a_recipe(tmp_path, name):
    path = write(tmp_path / name, "text,label\n'Hello: you',greeting\n")
    assert mistake(path) == f"{path}: is data, not a recipe; a recipe is a YAML file with data.path: {name}"


def test_no_text_and_no_file(tmp_path):
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in mistake(tmp_path / "r.yaml")
    assert mistake(tmp_path / "gone.yaml") == f"{tmp_path}/gone.yaml: No such file or directory"


def test_examples_in_docstrings(monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(files)
    assert tried and not failed


def test_a_recipe_that_is_not_there_is_answered_with_the_nearest_name(tmp_path):
    (tmp_path / "bert_tiny.yaml").write_text("{}")
    with pytest.raises(
        UserError, match=r"bert_tinny\.yaml: No such file or directory; did you mean .*/bert_tiny\.yaml\?"
    ):
        load(tmp_path / "bert_tinny.yaml", [])
    with pytest.raises(UserError, match=r"other\.yaml: No such file or directory$"):
        load(tmp_path / "other.yaml", [])
