"""A dotted `kind` names a class of anyone's own."""

import doctest
import importlib

import pytest

from jaxpt import errors
from jaxpt.config import CheckpointConfig, build, differences, dump, load
from tests.config.helpers import ROOT, mistake, write

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
    assert answer == f"command line: unknown key model.widht of kind {kind}; did you mean model.width?"


def test_ones_own_module_is_named_before_it_is_imported(lab, recipe, monkeypatch):
    said = []
    monkeypatch.setattr(errors, "note", said.append)
    write(lab / "mine.py", OWN + "from jaxpt import errors\nerrors.note('imported')")
    kind = f"{lab.name}.mine"
    for _ in range(2):
        load(recipe, ["model=null", f"model={{kind: {kind}, vocab_size: 9, width: 3}}"])
    assert said == [f"model.kind: importing {kind} from {lab}, whose code then runs", "imported"]


KEYS = ("model", "objective", "optimizer", "optimizer.schedule", "data.tokenizer", "task", "model.adapter", "evals")


@pytest.mark.parametrize("key", KEYS)
def test_a_class_in_place_of_its_module_is_one_line(lab, recipe, key):
    write(lab / "mine.py", OWN)
    kind = f"{lab.name}.mine.Mine"
    item = f"evals=[{{kind: {kind}}}]" if key == "evals" else f"{key}={{kind: {kind}}}"
    wanted = f"{key}.kind: {kind}: {lab.name}.mine is a module; a kind names a module in a package, and no class in it"
    assert mistake(recipe, item) == f"command line: {wanted}"


def test_a_class_of_jaxpt_is_looked_for_in_jaxpt_alone(recipe):
    answer = mistake(recipe, "model.kind=jaxpt.models.gpt2.GPT2")
    assert "jaxpt.models.gpt2 is a module" in answer


def test_a_module_that_is_not_there(lab, recipe):
    """A slip in its name, or a start in another directory."""
    write(lab / "mine.py", OWN)
    assert mistake(recipe, f"model.kind={lab.name}.mime").endswith(f"'{lab.name}.mime'; did you mean {lab.name}.mine?")
    answer = mistake(recipe, "model.kind=no_such_lab.mine")
    assert answer.endswith("; start jaxpt in the directory that no_such_lab is in, or put that directory on PYTHONPATH")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "must define one subclass of ModelConfig, it has 0"),
        (OWN + OWN.replace("Mine", "Other"), "must define one subclass of ModelConfig, it has 2"),
        ("import no_such_thing", "/mine.py:1: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def f():\n    1 / 0\nf()", "/mine.py:2: ZeroDivisionError: division by zero"),
    ],
)
def test_mistakes_in_ones_own_module(lab, recipe, text, answer):
    write(lab / "mine.py", text)
    assert answer in mistake(recipe, f"model.kind={lab.name}.mine")


EVALS = [
    (
        "evals=[{kind: pobe}]",
        "evals.kind: 'pobe' is none of answers, baseline, harness, heldout, probe, samples, seqio_task, sts, task; "
        "did you mean probe?",
    ),
    ("evals=[{kind: heldout, evry: 3}]", "unknown key evals.0.evry of kind heldout; did you mean evals.0.every?"),
    ("evals=[{kind: samples, count: x}]", 'evals.0.count: wants a whole number, got "x"'),
    (
        "evals=[{kind: no.such}]",
        "evals.kind: importing no.such failed: ModuleNotFoundError: No module named 'no'; start jaxpt in the directory "
        "that no is in, or put that directory on PYTHONPATH",
    ),
    ("evals={kind: heldout}", 'evals: wants a list, got {"kind": "heldout"}'),
    ("evals=[{kind: heldout}, {kind: heldout}]", "evals: two have the name 'validation'; rename one of them"),
    ("evals=[{kind: samples, name: train}]", "evals: the name 'train' is taken: metrics of the training begin so"),
    (
        "checkpoint.best_metric=baseline",
        "checkpoint.best_metric: baseline: its first part names no evaluator that runs during training; "
        "evals has: validation",
    ),
]


@pytest.mark.parametrize(("override", "answer"), EVALS)
def test_mistakes_in_evaluators(recipe, override, answer):
    assert mistake(recipe, override) == f"command line: {answer}"


def test_evaluators(lab, recipe):
    write(lab / "f1.py", OWN.replace("ModelConfig", "EvaluatorConfig").replace("mine", f"{lab.name}.f1"))
    default, own = load(recipe), load(recipe, [f"evals=[{{kind: {lab.name}.f1, width: 3, every: 5}}]"])
    assert [evaluator.called for evaluator in default.evals] == ["validation", "baseline", "samples"]
    assert (own.evals[0].called, own.evals[0].width, own.evals[0].every) == ("f1", 3, 5)
    assert build(dump(own)) == own and not differences(default, own)


def test_the_long_name_of_a_kind_is_the_same_kind(recipe):
    assert load(recipe, ["model.kind=jaxpt.models.bert"]) == load(recipe)


def test_examples_in_docstrings(monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(
        importlib.import_module("jaxpt.config.kinds")
    )  # the package has a function of this name
    assert tried and not failed


@pytest.mark.parametrize(
    ("checkpoint", "mode"),
    [
        ({}, "min"),
        ({"best_metric": "task/accuracy"}, "max"),
        ({"best_metric": "task/rouge1"}, "max"),
        ({"best_metric": "task/mse"}, "min"),
        ({"best_metric": "heldout/loss"}, "min"),
        ({"best_metric": "task/accuracy", "best_mode": "min"}, "min"),
    ],
)
def test_the_best_value_of_a_described_metric_is_chosen_by_its_direction(checkpoint, mode):
    """Without `best_mode` the description of the metric decides; a metric without one counts as a loss."""
    assert CheckpointConfig.model_validate(checkpoint).best_mode == mode
