"""A metric from outside: a function, named by its dotted path in a recipe and in a few-shot task."""

import re

import pytest
from pydantic import ValidationError

from jaxpt import metrics
from jaxpt.data.labelled import checks
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.errors import UserError
from jaxpt.evals.few_shot import measures
from jaxpt.evals.few_shot.task import HarnessTask
from jaxpt.runtime import plugins
from tests import fine_tuning

KAPPA = '''
from sklearn.metrics import cohen_kappa_score

from jaxpt.metrics import metric


@metric(targets=("label",), constant="label")
def kappa(predictions, targets, weights: str | None = None):
    """Cohen's kappa."""
    return {"kappa": cohen_kappa_score(targets, predictions, weights=weights)}


@metric(targets=("text",), aggregation="mean", lower_is_better=True)
def length_error(predictions, targets):
    """Mean difference of lengths."""
    return {"length_error": sum(abs(len(p) - len(t[0])) for p, t in zip(predictions, targets)) / len(targets)}


@metric(targets=("multiple_choice",), aggregation="mean")
def last(outcomes):
    """Share of examples whose right choice is the last one."""
    return [outcome["gold"] == len(outcome["log_probs"]) - 1 for outcome in outcomes]


@metric(targets=("multiple_choice",), unit="number", aggregation="mean")
def right(outcomes):
    """Log-likelihood of the right choice."""
    return [outcome["log_probs"][outcome["gold"]] for outcome in outcomes]


@metric(targets=("multiple_choice",), unit="number")
def lowest(outcomes):
    """The lowest log-likelihood of a right choice."""
    return min(outcome["log_probs"][outcome["gold"]] for outcome in outcomes)


@metric(targets=("multiple_choice",))
def undecided(outcomes):
    """A number for each, but no mean."""
    return [0.0 for _ in outcomes]


@metric(targets=("multiple_choice",), aggregation="mean")
def first(outcomes):
    """A mean, but of nothing."""
    return 1.0


@metric(targets=("multiple_choice",), aggregation="mean")
def fewer(outcomes):
    """Leaves one out."""
    return [1.0 for _ in outcomes[1:]]


@metric(targets=("multiple_choice",), aggregation="mean")
def named(outcomes):
    """Gives words."""
    return ["a", "b", "c"]


@metric(targets=("label",))
def other(predictions, targets):
    """Returns a value of another name."""
    return {"another": 0.5}


@metric(targets=("label",))
def undefined(predictions, targets):
    """Is not a number."""
    return {"undefined": float("nan")}


@metric(targets=("label",))
def accuracy(predictions, targets):
    """Has the name of one of jaxpt's."""
    return {"accuracy": -1.0}


def plain(predictions, targets):
    return {}


@metric(targets=("label",))
def weighted(predictions, targets, weight=1):
    """Its option says no type."""
    return {"weighted": weight * sum(p == t for p, t in zip(predictions, targets))}


@metric(targets=("label",))
def number(predictions, targets):
    """Returns a number in place of {name: number}."""
    return 0.5


@metric(targets=("label",))
def failing(predictions, targets):
    raise ValueError("too few rows")


@metric(targets=("label",))
def words(predictions, targets):
    return {"words": "good"}
'''


@pytest.fixture
def module(lab):
    name = lab.module("scores", KAPPA)
    yield name
    for path in [path for path in metrics.METRICS if path.startswith(name)]:
        del metrics.METRICS[path]


def task(*names, **options):
    labels = {"text": "text", "label": "label", "labels": ["a", "b", "c"]}
    return ClassificationTask(kind="classification", metrics=names, metric_options=options, **labels)


def test_a_task_scores_it_and_chooses_by_it(module):
    kappa = f"{module}.kappa"
    classification = task(kappa, "accuracy")
    classification.check_metrics()
    assert classification.score([0, 1, 2, 1], [0, 1, 2, 2], kappa) == pytest.approx({"kappa": 0.6363636})
    assert classification.score([0], [1], "accuracy") == {"accuracy": 0.0}, "jaxpt's own has kept its name"
    assert metrics.describe(kappa).selection_value == "kappa" and metrics.describe(kappa).mode == "max"
    assert metrics.majority(kappa, [0, 0, 1], [0, 1]) == {"kappa": 0.0}


def test_its_options_are_checked(module):
    kappa = f"{module}.kappa"
    weighted = task(kappa, **{f"{kappa}.weights": "quadratic"})
    weighted.check_metrics()
    assert weighted.options(kappa) == {"weights": "quadratic"}
    with pytest.raises(UserError, match=rf"task\.metric_options: {kappa} is no metric of this task; it has accuracy"):
        task("accuracy", **{f"{kappa}.weights": "quadratic"}).check_metrics()
    with pytest.raises(UserError, match=r"task\.metric_options\..*kappa: no option 'wights'; did you mean weights\?"):
        task(kappa, **{f"{kappa}.wights": "quadratic"}).check_metrics()


def test_an_option_without_a_type_takes_any_value(module):
    weighted = f"{module}.weighted"
    for weight in (2, 0.5):
        chosen = task(weighted, **{f"{weighted}.weight": weight})
        chosen.check_metrics()
        assert chosen.score([0, 1], [0, 1], weighted) == {"weighted": 2 * weight}


@pytest.mark.parametrize(("name", "returned"), [("number", "0.5"), ("words", "{'words': 'good'}")])
def test_what_it_returns_is_checked(module, name, returned):
    with pytest.raises(UserError) as error:
        task(f"{module}.{name}").score([0, 1], [0, 1], f"{module}.{name}")
    assert str(error.value) == f"{module}.{name}: must return {{name: number}}, it returns {returned}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other", "must return 'other', it returns 'another'; name 'other' in what it returns, or"),
        ("undefined", "undefined must be a finite number, it is nan; return 0 where it is undefined"),
    ],
)
def test_its_values_are_those_of_its_description(module, name, said):
    """Else they are missed after training, by whatever reads them."""
    with pytest.raises(UserError, match=rf"{module}\.{name}: {said}"):
        task(f"{module}.{name}").score([0, 1], [0, 1], f"{module}.{name}")


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ({"unit": "share"}, "unit: no 'share'; one of: fraction, percent, number"),
        ({"aggregation": "sum"}, "aggregation: no 'sum'; one of: mean, corpus"),
        ({"constant": "mode"}, "constant: no 'mode'; one of: label, positive"),
        ({"targets": ("lable",)}, "targets: no 'lable'; did you mean label"),
        ({"targets": "label"}, "targets: wants a tuple of names, got 'label'"),
        ({"values": ("a", "b"), "selection_value": "c"}, "selection_value: no 'c'; one of: a, b"),
    ],
)
def test_its_description_is_checked(description, said):
    with pytest.raises(UserError, match=f"@metric kappa: {said}"):
        metrics.metric("kappa", **description)(lambda predictions, targets: {})


@pytest.mark.parametrize("name", ["number", "failing", "undefined"])
def test_what_it_returns_is_checked_before_a_run(module, name, tmp_path):
    """With the labels of the first rows as predictions; what it raises may be due to these, so it is no mistake yet."""
    metrics = [f"{module}.{name}"]
    config = fine_tuning.recipe(tmp_path, task={"kind": "classification", "metrics": metrics})
    if name != "number":
        checks.check(config)
        return
    with pytest.raises(UserError, match=rf"task\.metrics: {module}\.number: must return {{name: number}}, .* 0\.5"):
        checks.check(config)


def test_few_shot_tasks_measure_it(module):
    written = HarnessTask(name="x", form="generate_until", answers="a", metrics=[f"{module}.length_error"])
    written.check()
    outcomes = [{"answer": "abc", "gold": ["a"], "group": None}, {"answer": "a", "gold": ["a"], "group": None}]
    assert measures.measure(written, outcomes)["length_error"].value == 1.0
    assert measures.computed(written, outcomes) == {}
    chosen = HarnessTask(name="x", form="multiple_choice", choices="c", answer="a", metrics=["acc", f"{module}.last"])
    chosen.check()
    outcome = {"gold": 1, "group": None, "log_probs": [-1.0, -2.0]}
    values = measures.measure(chosen, [outcome])
    assert (values["acc"].value, values["last"].value) == (0, 1)
    assert measures.computed(chosen, [outcome]) == {}


def test_few_shot_tasks_measure_what_is_no_share(module):
    names = [f"{module}.right", f"{module}.lowest"]
    chosen = HarnessTask(name="x", form="multiple_choice", choices="c", answer="a", metrics=names)
    chosen.check()
    outcomes = [{"gold": 1, "group": None, "log_probs": [-1.0, right]} for right in (-2.0, -4.0)]
    mean, lowest = measures.measure(chosen, outcomes).values()
    assert mean == measures.Value(-3.0, 1.0, "number")
    assert (lowest.value, lowest.unit) == (-4.0, "number") and lowest.error > 0


MISTAKES = {
    "no_such_lab.kappa": "no_such_lab.kappa: importing no_such_lab failed: ModuleNotFoundError",
    "MODULEE.kappa": "MODULEE failed: ModuleNotFoundError: No module named 'MODULEE'; did you mean MODULE?",
    "kappa": "no such metric; one of: accuracy, f1, ",
    "kapa": "axg, the dotted path of a function of yours",
    "MODULE.kapa": "has no function kapa; did you mean kappa?",
    "MODULE.plain": "the function is not described as a metric; decorate it: @jaxpt.metrics.metric(targets=",
    "MODULE.length_error": "scores text, a task of kind classification has label",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_its_name(module, name):
    with pytest.raises((UserError, ValidationError), match=re.escape(MISTAKES[name].replace("MODULE", module))):
        task(name.replace("MODULE", module)).check_metrics()


def test_mistakes_in_a_few_shot_task(module):
    wrong = HarnessTask(name="x", form="generate_until", answers="a", metrics=[f"{module}.kappa"], source="x.yaml")
    with pytest.raises(
        UserError, match=r"x\.yaml: metrics: .*\.kappa: scores label; a task of form generate_until wants"
    ):
        wrong.check()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("undecided", r"gave numbers of shape \[3\], wants one number; a mean has aggregation=\"mean\""),
        ("first", r"gave one number, wants a list of 3 numbers, one for each outcome"),
        ("fewer", r"gave numbers of shape \[2\], wants a list of 3 numbers, one for each outcome"),
        ("named", r"gave \['a', 'b', 'c'\], wants a list of 3 numbers"),
    ],
)
def test_a_few_shot_metric_gives_what_it_says(module, name, said):
    chosen = HarnessTask(name="x", form="multiple_choice", choices="c", answer="a", metrics=[f"{module}.{name}"])
    outcomes = [{"gold": 0, "group": None, "log_probs": [-1.0, -2.0]}] * 3
    with pytest.raises(UserError, match=rf"{name}: {said}"):
        measures.measure(chosen, outcomes)


def test_a_list_of_runs_does_not_import_it(module):
    with plugins.unread():
        assert metrics.describe(f"{module}.kappa").values == ("kappa",)
    assert f"{module}.kappa" not in metrics.METRICS
