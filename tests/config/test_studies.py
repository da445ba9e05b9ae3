"""The file of a study: every row loads, overrides go where they belong, mistakes are answered in one line."""

import doctest
import json
import re

import pytest

from jaxpt.config import load, studies
from jaxpt.config.finetunings import cells, fine_tuning
from jaxpt.config.studies import load_study
from jaxpt.errors import UserError
from jaxpt.study import pretrainings
from tests.config.helpers import ROOT, write

STUDIES = sorted((ROOT / "configs" / "studies").glob("*.yaml"))


@pytest.fixture
def path(tmp_path, recipe):
    text = "question: which?\nset: {train.steps: 7, seed: 1}\nrows: [{name: a, recipe: recipe.yaml}"
    return write(
        tmp_path / "study.yaml", text + ", {name: b, recipe: recipe.yaml, set: {seed: 2, model: {layers: 3}}}]"
    )


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_row_of_ours_loads(path):
    study = load_study(path, ["train.log_every=3"])
    assert study.question
    for row in study.rows:
        if not row.is_trained:
            continue
        config = load(row.recipe, study.overrides(row))
        assert config.train.log_every == 3 and config.run_dir == f"runs/studies/{path.stem}/{row.name}"
        assert study.tokens is None or not config.train.phases


def test_the_smoke_study_has_every_smoke_recipe():
    rows = load_study(ROOT / "configs/studies/smoke.yaml").rows
    assert {row.name for row in rows} == {path.stem for path in (ROOT / "configs/smoke").glob("*.yaml")}


def test_what_a_row_sets_is_over_what_all_set_is_over_the_recipe(path):
    study = load_study(path, ["tokens=9", "run_dir=x", "data.path=*.txt"])
    a, b = (load(row.recipe, study.overrides(row)) for row in study.rows)
    probed = load_study(path, ["evaluate.probe={path: a, test_path: b}", "evaluate.probe.label=c"])
    assert probed.evaluate.probe.label == "c"
    assert (study.tokens, study.run_dir, a.run_dir, b.run_dir) == (9, "x", "x/a", "x/b")
    assert (a.seed, b.seed, a.train.steps, b.train.steps) == (1, 2, 7, 7)
    assert (a.model.layers, b.model.layers, b.model.embed_dim) == (2, 3, 16), "merged key by key"
    assert a.data.path == "*.txt"


def test_what_the_command_line_says_is_over_every_row(path):
    study = load_study(path, ["seed=5", "model.layers=4", "train.steps=9"])
    for config in (load(row.recipe, study.overrides(row)) for row in study.rows):
        assert (config.seed, config.model.layers, config.train.steps) == (5, 4, 9)


def test_a_row_keeps_its_share_of_the_minutes(path):
    write(path, "minutes: 10\n" + path.read_text().replace("{name: b", "{name: b, minutes: 4"))
    for words, minutes in (([], [10, 4]), (["minutes=1"], [1, 0.4]), (["minutes=10"], [10, 4])):
        study = load_study(path, words)
        assert [study.minutes_of(row) for row in study.rows] == pytest.approx(minutes)
        assert "train.eval_every=null" in study.overrides(study.rows[1])


def test_a_row_has_keys_for_one_task(path):
    """Over those of all its fine-tunings, under the grid."""
    keys = "finetune: {seed: 4}, finetune_by_task: {one: {train.steps: 8}}"
    text = path.read_text().replace("{name: b", "{name: b, " + keys)
    tasks = "\nevaluate: {finetune: {grid: {seed: [9]}, tasks: [{name: one, recipe: r}, {name: two, recipe: r}]}}"
    study = load_study(write(path, text + tasks))
    sets = {cell.name: fine_tuning(study, cell, 0, 0).overrides for cell in cells(study) if cell.start == "random"}
    of_one, of_two = sets["b/one/random/all"], sets["b/two/random/all"]
    assert of_one.index("seed=4") < of_one.index("train.steps=8") < of_one.index("seed=9")
    assert "train.steps=8" not in of_two and "train.steps=8" not in sets["a/one/random/all"]


def test_a_row_may_begin_from_another(path):
    write(path, path.read_text().replace("seed: 2", "init_from: {path: '{study}/a'}"))
    for run_dir in ("x", 'a "b"'):
        study = load_study(path, [f"run_dir={run_dir}"])
        assert load(study.rows[1].recipe, study.overrides(study.rows[1])).init_from.path == f"{run_dir}/a"


def test_a_row_may_write_in_the_study_and_read_what_is_there(path, tmp_path):
    text = path.read_text().replace("seed: 2", "data: {cache_dir: '{study}/cache'}, init_from.path: '{study}/gone'")
    (tmp_path / "gone").mkdir()  # a row that the study had
    assert len(load_study(write(path, text), [f"run_dir={tmp_path}"]).rows) == 2


def test_a_glob_adds_the_recipes_that_are_no_rows(tmp_path, recipe):
    write(tmp_path / "other.yaml", recipe.read_text())
    text = "question: q\nrecipes: '[or]*e*.yaml'\nrows: [{name: other, recipe: other.yaml, paper: 3}]"
    study = load_study(write(tmp_path / "study.yaml", text))
    assert [(row.name, row.paper) for row in study.rows] == [("other", 3.0), ("recipe", None)]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("question: q\nrow: []", "unknown key row; did you mean rows?"),
        ("question: q\nrows: [{name: a, receipt: x}]", "unknown key rows.0.receipt; did you mean rows.0.recipe?"),
        ("question: q\nrows: [{recipe: x}]", "key rows.0.name is missing"),
        ("rows: [{name: a, recipe: x}]", "key question is missing"),
        ("question: q\ntokens: 2e6\n", "tokens: wants a whole number, got 2000000.0; write 2000000"),
        ("question: q\ntokens: 9\nminutes: 1", "tokens: a study has a budget of tokens or of minutes; leave one *"),
        ("question: q\nminutes: 0", "minutes: wants a number above 0.0, got 0"),
        (
            "question: q\nrows: [{name: a, recipe: x, finetune_by_task: {sst: {seed: 1}}}]\n"
            "evaluate: {finetune: {tasks: [{name: sst2, recipe: y}]}}",
            "rows: a: finetune_by_task: no task 'sst' in evaluate.finetune; did you mean sst2?",
        ),
        (
            "question: q\nrows: [{name: a b, recipe: x}]",
            'rows.0.name: wants a name of letters, digits, _, - and . that does not begin with ., got "a b"',
        ),
        ("question: q\nset: [a]", "set: wants a mapping of keys to values, such as *"),
        ("question: q\nrows: [{name: a, recipe: x}, {name: a, recipe: y}]", "rows: two have the name 'a'"),
        ("question: q\nrows: [{name: a}]", "rows: a has no recipe, and there is no recipe of all rows"),
        ("question: q\nrecipes: '*.yml'", "recipes: no file matches *.yml"),
        ("question: q\nrecipes: /gone/*.yml", "recipes: no file matches /gone/*.yml"),
        ("question: q\nrecipes: ''", "recipes: no file matches *"),
        (
            "question: q\nevaluate: {probe: {path: a, test: b}}",
            "unknown key evaluate.probe.test; did you mean *evaluate.probe.test_path*",
        ),
        ("question: q\nevaluate: {prob: {}}", "unknown key evaluate.prob; did you mean evaluate.probe?"),
        ("question: q", "wants rows, each with a name and a recipe"),
        (
            "question: q\ngrid: {optimizer.learning_rate: [0.1]}\n"
            "rows: [{name: a, recipe: x, set: {optimizer: {learning_rate: 0.5}}}]",
            "rows: a: set: optimizer.learning_rate: the study's grid has it; leave out one",
        ),
        (
            "question: q\ngrid: {optimizer: {learning_rate: [0.1]}}\nset: {optimizer.learning_rate: 0.5}",
            "set: optimizer.learning_rate: the study's grid has it; leave out one",
        ),
        (
            "question: q\nseeds: [0, 1]\nrows: [{name: a, recipe: x, set: {seed: 3}}]",
            "rows: a: set: seed: the study's seeds have it; leave out one",
        ),
        (
            "question: q\nrows: [{name: a, recipe: x}, {name: b, recipe: x, set: {init_from: {path: '{study}/aa'}}}]",
            "rows: b: set: init_from.path: there is no row 'aa'; did you mean a?",
        ),
        (
            "question: q\nrows: [{name: b, recipe: x, set: {init_from.path: '{study}/a/checkpoints/3'}},"
            "{name: a, recipe: x}]",
            "rows: b: set: init_from.path: row 'a' is not trained before this one; rows * stand above it",
        ),
        (
            "question: q\nrows: [{name: a, model: x}, {name: b, recipe: x}, "
            "{name: c, recipe: x, set: {init_from.path: '{study}/a'}}]",
            "rows: c: set: init_from.path: row 'a' is not trained before this one; known here: b",
        ),
    ],
)
def test_mistakes(tmp_path, text, answer):
    with pytest.raises(UserError) as caught:
        load_study(write(tmp_path / "study.yaml", text))
    assert re.fullmatch(".*/study.yaml: " + ".*".join(map(re.escape, answer.split("*"))), str(caught.value))


def test_examples_in_docstrings(monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(studies)
    assert tried and not failed


def test_files_that_are_no_rows_are_named(tmp_path):
    (tmp_path / "a b.yaml").write_text("{}")
    (tmp_path / "study.yaml").write_text("question: q\nrecipes: 'a *.yaml'\n")
    with pytest.raises(UserError, match=r"recipes: .*a b\.yaml: 'a b' is no name of a row; name it in rows"):
        load_study(tmp_path / "study.yaml")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rte.yaml").write_text("{}")
    (tmp_path / "study.yaml").write_text("question: q\nrecipes: '*/rte.yaml'\n")
    with pytest.raises(UserError, match="recipes: two files are called rte; name them in rows"):
        load_study(tmp_path / "study.yaml")


def test_a_recipe_is_named_without_a_detour(tmp_path):
    """But where the study's folder is a link, `..` goes up from where it leads to."""
    for folder in ("far/studies", "far/smoke", "smoke"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "far/studies/study.yaml").write_text("question: which?\nrows: [{name: a, recipe: ../smoke/a.yaml}]\n")
    (tmp_path / "studies").symlink_to(tmp_path / "far/studies")
    for place in ("far/smoke", "smoke"):
        (tmp_path / place / "a.yaml").touch()
    named = [load_study(tmp_path / place / "study.yaml").rows[0].recipe for place in ("far/studies", "studies")]
    assert named == [str(tmp_path / "far/smoke/a.yaml"), str(tmp_path / "studies/../smoke/a.yaml")]


def write_swept(tmp_path, **top):
    """A study of a row, and of one that begins from it."""
    (tmp_path / "a.yaml").write_text("{}")
    rows = [{"name": "a_1.5", "recipe": "a.yaml"}, {"name": "b", "recipe": "a.yaml"}]
    rows[1]["set"] = {"init_from.path": "{study}/a_1.5/checkpoints/3"}
    tree = {"question": "q", "run_dir": "s", "rows": rows, "seeds": [0, 1], **top}
    (tmp_path / "study.yaml").write_text(json.dumps(tree))
    return tmp_path / "study.yaml"


def test_each_row_is_a_run_of_every_combination_and_seed(tmp_path):
    grid = {"optimizer": {"learning_rate": [0.001, 3e-4]}, "objective.unit": ["span"]}
    study = load_study(write_swept(tmp_path, grid=grid), ["train.steps=5"])
    assert len(study.rows) == 2 * 2 * 2 and study.is_swept
    assert study.rows[1].name == "a_1.5-learning_rate=0.001-unit=span-seed=1"
    assert (study.rows[1].row, study.rows[1].seed) == ("a_1.5", 1)
    set_last = ("train.steps=5", "optimizer.learning_rate=0.0003", 'objective.unit="span"', "seed=0")
    origin = 'init_from.path="{study}/a_1.5-learning_rate=0.0003-unit=span-seed=0/checkpoints/3"'
    assert study.rows[6].set == (origin, *set_last), "a row begins from the run with its values and seed"
    assert pretrainings.origins(study.rows[6]) == ["a_1.5-learning_rate=0.0003-unit=span-seed=0"]


def test_grid_and_seeds_are_set_from_the_command_line(tmp_path):
    study = load_study(write_swept(tmp_path), ["seeds=[7]", "grid.train.steps=[1, 2]"])
    assert [row.name for row in study.rows[:2]] == ["a_1.5-steps=1-seed=7", "a_1.5-steps=2-seed=7"]
    path = write_swept(tmp_path, seeds=[], set={"seed": 3, "train.steps": 9})
    rows = load_study(path, ["seeds=[7]", "grid={train: {steps: [1]}}"]).rows
    assert {row.set[-2:] for row in rows} == {("train.steps=1", "seed=7")}, "over what the file says"


@pytest.mark.parametrize(
    ("top", "words", "message"),
    [
        ({"grid": "train.steps"}, [], "grid: wants keys with lists of values, such as {opt"),
        ({"grid": [3]}, [], "grid: wants keys with lists of values"),
        ({"grid": {"train.steps": 3}}, [], "grid: train.steps wants a list of values, got 3"),
        ({"grid": {"train.steps": [3, 3]}}, [], "grid: train.steps: a value stands there twice: [3, 3]"),
        ({"grid": {"seed": [3]}}, [], "grid: seed: the study has seeds; give the seeds there alone"),
        ({"seeds": [3, 3]}, [], "seeds: 3 stands there twice"),
        ({"seeds": [-1]}, [], "seeds.0"),
        ({}, ["seed=3"], "command line: seed=3: "),
        ({"grid": {"objective.unit": ["a b", "a_b"]}}, [], "two runs are called a_1.5-unit=a_b-seed=0"),
    ],
)
def test_mistakes_in_grid_and_seeds(tmp_path, top, words, message):
    with pytest.raises(UserError, match=re.escape(message)):
        load_study(write_swept(tmp_path, **top), words)
