"""Recipes: what is read is what was written, and every mistake is answered in one line that says how to mend it."""

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

from jaxpt import config as configs
from jaxpt.config import at_phase, build, differences, dump, load, phase_starts, to_yaml
from jaxpt.config.files import parse
from jaxpt.errors import UserError

ROOT = Path(__file__).parents[1]
RECIPE = """
model: {kind: bert, vocab_size: 100, layers: 2, embed_dim: 16, heads: 2, mlp_dim: 32}
objective: {kind: masked_lm}
data: {tokenizer: {kind: wordpiece}}
"""


@pytest.fixture
def recipe(tmp_path):
    return write(tmp_path / "recipe.yaml", RECIPE)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def mistake(path, *overrides):
    """The one line that answers a mistake."""
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- reading --------------------------------------------------------------------------------------------------------


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
    assert config.optimizer.b1 is None and config.optimizer.learning_rate == 1e-3


def test_circular_base(tmp_path):
    write(tmp_path / "d" / "a.yaml", "base: ../d/b.yaml")
    path = write(tmp_path / "d" / "b.yaml", "base: ../d/a.yaml")
    assert re.search(r"b\.yaml: base: goes round in a circle: .*b\.yaml → .*a\.yaml → .*b\.yaml", mistake(path))


def test_a_mistake_in_a_base_names_the_base(tmp_path):
    write(tmp_path / "base.yaml", RECIPE + "train: {stepz: 3}")
    path = write(tmp_path / "r.yaml", "base: base.yaml\ntrain: {steps: 4}")
    assert mistake(path) == f"{tmp_path}/base.yaml: unknown key train.stepz; did you mean steps?"


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


def test_null_and_lists(recipe):
    config = load(recipe, ["data.path=[a, b]", "train.eval_every=null", "optimizer.b1=~", "checkpoint.every="])
    assert config.data.path == ("a", "b")
    assert config.train.eval_every is config.optimizer.b1 is config.checkpoint.every is None


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
        ("- a\n- b\n", r"r\.yaml: wants a mapping of keys to values"),
        ("a: 1\n---\nb: 2\n", r"r\.yaml line 2: not valid YAML: .*"),
        ("a: \x00\n", r"r\.yaml: not valid YAML: .*"),
    ],
)
def test_broken_files(tmp_path, text, answer):
    assert re.fullmatch(f".*/{answer}", mistake(write(tmp_path / "r.yaml", text)))


def test_no_text_and_no_file(tmp_path):
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in mistake(tmp_path / "r.yaml")
    assert mistake(tmp_path / "gone.yaml") == f"{tmp_path}/gone.yaml: No such file or directory"


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        # unknown keys
        ("modle.x=1", "unknown key modle; did you mean model?"),
        ("train.stepz=3", "unknown key train.stepz; did you mean steps?"),
        ("train.learning_rate=3", "unknown key train.learning_rate; did you mean optimizer.learning_rate?"),
        ("zzz=3", "unknown key zzz; known here: run_dir, seed, model, *"),
        ("model.head=3", "unknown key model.head of kind bert; did you mean heads?"),
        ("objective.zzz=.3", "unknown key objective.zzz of kind masked_lm; known here: *mask_rate*"),
        ("data.tokenizer.x.y=3", "unknown key data.tokenizer.x; known here: kind, path, *"),
        ("train.phases=[{stepz: 1}, {}]", "unknown key train.phases.0.stepz; did you mean steps or set?"),
        # types
        ("train.steps='32'", 'train.steps: wants a whole number, got "32"; write 32 without quotes'),
        ("train.steps=1e3", "train.steps: wants a whole number, got 1000.0; write 1000"),
        ("train.steps=1.5", "train.steps: wants a whole number, got 1.5"),
        ("train.steps=many", 'train.steps: wants a whole number, got "many"'),
        ("train.accumulation=true", "train.accumulation: wants a whole number, got true"),
        ("seed=null", "seed: wants a whole number, got nothing"),
        ("log.tensorboard=1", "log.tensorboard: wants true or false, got 1"),
        ("optimizer.learning_rate='1e-4'", 'optimizer.learning_rate: wants a number, got "1e-4"; write 1e-4 *'),
        ("data.path=3", "data.path: wants a string or a list, got 3"),
        ("data.path=[a, 3]", "data.path.1: wants a string, got 3"),
        ("data.path.x=3", 'data.path: wants a string or a list, got {"x": 3}'),
        ("data.modules=a", 'data.modules: wants a list, got "a"'),
        ("data.tokenizer=3", "data.tokenizer: wants a mapping of keys to values, got 3"),
        ("train=3", "train: wants a mapping of keys to values, got 3"),
        ("train.phases=[3]", "train.phases.0: wants a mapping of keys to values, got 3"),
        # ranges and choices
        ("train.steps=0", "train.steps: wants a number above 0, got 0"),
        ("optimizer.b1=1.5", "optimizer.b1: wants a number not above 1.0, got 1.5"),
        ("data.tokenizer.kind=wordpice", "data.tokenizer.kind: wants one of *; did you mean wordpiece?"),
        ("mesh.data=0", "mesh.data: wants a number of devices above 0, or -1 for what is left, got 0"),
        ("mesh.tensor=-1", "mesh: -1 (what is left) may stand on one axis only"),
        # kinds
        ("model.kind=brt", "model.kind: 'brt' is none of *bert*; did you mean bert or bart?"),
        ("model.kind=layers", "model.kind: 'layers' is none of *bert*"),
        ("model.kind=../x", "model.kind: *"),
        ("model.kind=.x", "model.kind: *"),
        ("objective.kind=maskedlm", "objective.kind: 'maskedlm' is none of *; did you mean masked_lm*"),
        (
            "model.kind=no_such_lab.mine",
            "model.kind: importing no_such_lab.mine failed: *No module named 'no_such_lab'",
        ),
        ("model.kind=3", "model: wants a mapping with a `kind`, one of: *bert*"),
        ("model=null", "model: wants a mapping with a `kind`, one of: *bert*"),
        # phases
        ("train.phases=[{set: {model.x: 3}}]", "train.phases.0.set: model.x: a phase may set keys of data and *"),
        ("train.phases=[{steps: 1}, {set: {data.lenght: 3}}]", "train.phases.1.set: unknown key data.lenght; did *"),
        ("train.phases=[{steps: 1}, {set: {data.length: no}}]", "train.phases.1.set: data.length: wants a whole *"),
        ("train.phases=[{steps: 1}, {set: [a]}]", "train.phases.1.set: wants a mapping of keys to values, such as *"),
        ("train.phases=[{steps: 10}]", "train.phases take 10 steps, train.steps is 1000; leave the last *"),
        ("train.phases=[{}, {}]", "train.phases.0: key steps is missing; only the last phase may leave it out"),
        # overrides
        ("train.steps.x=3", "train.steps: wants a whole number, got *"),
        ("train.phases=[a=", "train.phases=[a= line 1: not valid YAML: *"),
        ("word", "'word': wants key=value, such as train.steps=100"),
        ("=3", "'=3': wants key=value, such as train.steps=100"),
    ],
)
def test_mistakes_on_the_command_line(recipe, override, answer):
    pattern = "command line: " + ".*".join(map(re.escape, answer.split("*")))
    assert re.fullmatch(pattern, mistake(recipe, override))


def test_an_override_below_a_value(recipe):
    assert "model.layers is a value, not a mapping" in mistake(recipe, "model.layers.x=3")
    assert "train.phases is a list of 1, it has no 1" in mistake(recipe, "train.phases=[{}]", "train.phases.1.steps=3")


def test_an_override_reaches_into_a_list(recipe):
    config = load(recipe, ["train.phases=[{steps: 10}, {set: {data.length: 9}}]", "train.phases.0.steps=20"])
    assert config.train.phases[0].steps == 20


def test_missing_keys_name_the_file(tmp_path, recipe):
    path = write(tmp_path / "m.yaml", RECIPE.replace("data: {tokenizer: {kind: wordpiece}}", "data: {length: 3}"))
    assert mistake(path) == f"{path}: key data.tokenizer is missing"
    path = write(tmp_path / "n.yaml", RECIPE.replace("heads: 2, ", ""))
    assert mistake(path) == f"{path}: key model.heads is missing"
    path = write(tmp_path / "o.yaml", "seed: 3")
    assert mistake(path) == f"{path}: key model is missing"


def test_an_unknown_key_comes_before_the_key_that_it_should_have_been(tmp_path):
    path = write(tmp_path / "m.yaml", RECIPE.replace("objective:", "objectiv:"))
    assert mistake(path) == f"{path}: unknown key objectiv; did you mean objective?"


# ---- one's own modules ----------------------------------------------------------------------------------------------

OWN = """
from jaxpt.config import ModelConfig
class Mine(ModelConfig):
    kind: str = "mine"
    width: int
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A package of one's own; its name is new in each test, as modules stay imported."""
    name = f"lab_{abs(hash(str(tmp_path)))}"
    write(tmp_path / name / "__init__.py", "")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / name


def test_a_dotted_kind_names_ones_own(lab, recipe):
    write(lab / "mine.py", OWN)
    kind = f"{lab.name}.mine"
    config = load(recipe, ["model=null", f"model={{kind: {kind}, vocab_size: 9, width: 3}}"])
    assert (config.model.kind, config.model.width) == (kind, 3)
    assert build(dump(config)) == config
    answer = mistake(recipe, "model=null", f"model={{kind: {kind}, vocab_size: 9, widht: 3}}")
    assert answer == f"command line: unknown key model.widht of kind {kind}; did you mean width?"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "must define one subclass of ModelConfig, it has 0"),
        (OWN + OWN.replace("Mine", "Other"), "must define one subclass of ModelConfig, it has 2"),
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_mistakes_in_ones_own_module(lab, recipe, text, answer):
    write(lab / "mine.py", text)
    assert answer in mistake(recipe, f"model.kind={lab.name}.mine")


def test_the_long_name_of_a_kind_is_the_same_kind(recipe):
    assert load(recipe, ["model.kind=jaxpt.models.bert"]) == load(recipe)


# ---- round trip -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("[ps]*/*.yaml")), ids=lambda p: p.stem)
def test_recipes_of_the_repository_load_and_round_trip(tmp_path, path):
    config = load(path)
    saved = write(tmp_path / "config.yaml", to_yaml(config))
    assert load(saved) == config
    assert build(dump(config)) == config
    assert not any(differences(config, load(saved), role) for role in ("identity", "execution", "extensible"))


@pytest.mark.parametrize(
    "text",
    [
        "1e5",
        "1",
        "null",
        "~",
        "true",
        "010",
        "1_0",
        "0x1",
        "=",
        "no",
        "2020-01-01",
        "a: b",
        "#x",
        "*x",
        "",
        " x",
        "é☃",
        "'",
    ],
)
def test_strings_round_trip(tmp_path, recipe, text):
    """A string that our reader would take for a number has to be quoted."""
    config = load(recipe)
    config = config.model_copy(update={"data": config.data.model_copy(update={"field": text})})
    assert load(write(tmp_path / "c.yaml", to_yaml(config))).data.field == text


@pytest.mark.parametrize("value", [1e-5, 1e-12, 1e16, 0.1, 1 / 3, 3e-4, 1e22])
def test_floats_round_trip(tmp_path, recipe, value):
    config = load(recipe, [f"optimizer.learning_rate={value!r}"])
    assert load(write(tmp_path / "c.yaml", to_yaml(config))).optimizer.learning_rate == value


# ---- phases and roles -----------------------------------------------------------------------------------------------

PHASES = "train.phases=[{steps: 900}, {set: {data: {length: 512}, objective.mask_rate: 0.2}}]"


def test_phases(recipe):
    config = load(recipe, [PHASES])
    assert phase_starts(config) == (0, 900)
    first, second = at_phase(config, 0), at_phase(config, 1)
    assert (first.data.length, second.data.length) == (128, 512)
    assert (first.objective.mask_rate, second.objective.mask_rate) == (0.15, 0.2)
    assert first.train.phases == second.train.phases == ()
    assert second.model == config.model


def test_a_shorter_run_ends_in_an_earlier_phase_and_can_go_on(recipe):
    shorter = load(recipe, [PHASES, "train.steps=900"])
    assert phase_starts(shorter) == (0,)
    assert at_phase(shorter, 0).data.length == 128
    assert differences(shorter, load(recipe, [PHASES])) == []


def test_no_phases_is_one_phase(recipe):
    config = load(recipe)
    assert phase_starts(config) == (0,)
    assert at_phase(config, 0) == config


@pytest.mark.parametrize(
    ("override", "role"),
    [
        ("data.length=64", "identity"), ("seed=1", "identity"), ("model.layers=3", "identity"),
        ("objective.mask_rate=0.3", "identity"), ("optimizer.learning_rate=1.0", "identity"),
        ("model.dtype=float32", "execution"), ("objective.loss_chunk=8", "execution"), ("mesh.fsdp=2", "execution"),
        ("train.accumulation=2", "execution"), ("run_dir=x", "execution"), ("data.readers=2", "execution"),
        ("train.steps=2000", "extensible"),
    ],
)  # fmt: skip
def test_roles(recipe, override, role):
    key = override.partition("=")[0]
    a, b = load(recipe), load(recipe, [override])
    for each in ("identity", "execution", "extensible"):
        assert [k for k, _, _ in differences(a, b, each)] == ([key] if each == role else [])


def test_another_objective_differs_in_its_kind_and_keys(recipe):
    other = load(recipe, ["objective=null", "objective={kind: causal_lm}"])
    keys = [key for key, _, _ in differences(load(recipe), other)]
    assert "objective.kind" in keys and "objective.mask_rate" in keys


def test_a_run_with_phases_can_be_extended_at_its_end_alone(recipe):
    explicit = "train.phases=[{steps: 900}, {steps: 100, set: {data: {length: 512}, objective.mask_rate: 0.2}}]"
    old, longer = load(recipe, [explicit]), load(recipe, [PHASES, "train.steps=3000"])
    assert differences(old, longer) == []
    assert differences(old, longer, "extensible") == [("train.steps", 1000, 3000)]
    earlier = load(recipe, [PHASES.replace("900", "800")])
    assert [key for key, _, _ in differences(old, earlier)] == ["train.phases"]


# ---- examples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["plain", "kinds", "files"])
def test_examples_in_docstrings(module, monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(importlib.import_module(f"jaxpt.config.{module}"))
    assert tried and not failed


# ---- schema ---------------------------------------------------------------------------------------------------------


def test_the_schema_in_the_repository_is_current():
    saved = json.loads((ROOT / "configs" / "schema.json").read_text("utf-8"))
    assert saved == configs.json_schema(), "run: jaxpt schema > configs/schema.json"


def test_the_schema_takes_every_recipe_and_refuses_mistakes():
    jsonschema = pytest.importorskip("jsonschema")
    schema = jsonschema.Draft202012Validator(configs.json_schema())
    recipes = [parse(path.read_text("utf-8"), str(path)) for path in sorted((ROOT / "configs").glob("*/*.yaml"))]
    assert recipes
    for tree in recipes:
        schema.validate(tree)
    good = dump(load(next((ROOT / "configs" / "smoke").glob("*.yaml"))))
    schema.validate(good)
    schema.validate(
        {"base": "x.yaml", "model": {"kind": "lab.mine", "anything": 1}, "train": {"phases": [{"set": {"a": 1}}]}}
    )
    for part, key, value in (
        ("train", "stepz", 1),
        ("train", "steps", "1"),
        ("model", "kind", "brt"),
        ("model", "widht", 1),
    ):
        assert not schema.is_valid({**good, part: {**good[part], key: value}})
