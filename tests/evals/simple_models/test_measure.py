"""What is chosen on the validation rows alone, and how scores and their errors are counted."""

import dataclasses
import doctest
import math

import numpy as np
import pytest

from jaxpt.config.studies import SimpleModelName
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.generation import GenerationTask
from jaxpt.errors import UserError
from jaxpt.evals.simple_models import beside, measure
from jaxpt.metrics import jackknife
from tests import fine_tuning


@pytest.fixture
def config(tmp_path):
    """60 rows to train on, 20 to choose by, 40 to score; a fifth of the labels is wrong."""
    files = {}
    for split, count in (("train", 60), ("validation", 20), ("test", 40)):
        made = fine_tuning.rows(count, count)
        for row in made[::5]:
            row["label"] = {"good": "bad", "bad": "good"}[row["label"]]
        files[split] = fine_tuning.write(tmp_path / f"{split}.jsonl", made)
    data = {"path": files["train"], "validation_path": files["validation"], "test_path": files["test"]}
    return fine_tuning.recipe(tmp_path, data={**data, "cache_dir": str(tmp_path / "cache")})


def measured(config, *names, **options):
    splits, left_out = measure.read_splits(config, **options)
    return measure.measure(config, measure.offered(config, names), splits, left_out)


def test_the_test_rows_choose_nothing(config):
    """With other test labels the same models are chosen, with the same predictions."""
    first, chosen = measured(config)
    splits, _ = measure.read_splits(config)
    splits.targets["test"] = [1 - target for target in splits.targets["test"]]
    other, chosen_again = measure.measure(config, measure.offered(config), splits)
    assert first.best.model == other.best.model and chosen == chosen_again
    for one, two in zip(first.scores, other.scores):
        assert one.setting == two.setting and one.metrics["validation"] == two.metrics["validation"]
        assert one.metrics["test"]["accuracy"] == pytest.approx(1 - two.metrics["test"]["accuracy"])
    assert first.split == "test" and first.rows == {"train": 60, "validation": 20, "test": 40}


def test_scores_and_errors_are_those_of_the_predictions(config):
    found, chosen = measured(config, "words_svm", "chars_svm")
    assert [score.model for score in found.scores] == ["words_svm", "chars_svm"]
    for score in found.scores:
        targets = measure.read_splits(config)[0].targets["test"]
        right = [p == t for p, t in zip(chosen[score.model].predictions["test"], targets, strict=True)]
        assert score.metrics["test"]["accuracy"] == pytest.approx(np.mean(right))
        # With as many groups as rows the jackknife is s/√n.
        assert score.error == pytest.approx(np.std(right, ddof=1) / math.sqrt(len(right)))


def test_of_many_rows_every_second_is_left_out_and_counted(config, monkeypatch):
    monkeypatch.setattr(measure, "MAX_ROWS", 30)
    splits, left_out = measure.read_splits(config)
    assert (len(splits.rows["train"]), left_out) == (30, 30)
    monkeypatch.setattr(measure, "MAX_CHARACTERS", 1)
    splits, left_out = measure.read_splits(config)
    assert (len(splits.rows["train"]), left_out) == (1, 59)
    assert len(splits.rows["test"]) == 40, "what is scored is whole"


def test_the_jackknife_of_a_macro_f1_is_over_groups():
    task = ClassificationTask(labels=("a", "b"), metrics=("macro_f1",))
    targets, predictions = [0, 1, 0, 1, 1, 0], [0, 1, 1, 1, 0, 0]
    without = jackknife.without_groups(task, targets, predictions, "macro_f1", 3)
    for group in range(3):
        rest = [n for n in range(6) if n % 3 != group]
        score = task.score([predictions[n] for n in rest], [targets[n] for n in rest], "macro_f1")
        assert without[group] == score["macro_f1"]


@pytest.mark.parametrize("metric", ["rouge", "ter"])
def test_the_jackknife_scores_groups_in_the_language_of_all(metric):
    """Each group of rows has a script of its own; most letters are Chinese."""
    task = GenerationTask(metrics=(metric,))
    targets = [["我们昨天去了北京的公园。"], ["the cats sat."]] * 3
    predictions = ["我们今天去了北京的公园。", "the cat sat."] * 3
    value = jackknife.describe(metric).selection_value
    without = jackknife.without_groups(task, targets, predictions, value, 2)
    chinese = GenerationTask(metrics=(metric,), language="zh")
    wanted = [chinese.score(predictions[n::2], targets[n::2], metric)[value] for n in (1, 0)]
    np.testing.assert_allclose(without, wanted)
    if metric == "rouge":  # a mean: Σ part · n / N
        assert without.mean() == pytest.approx(task.score(predictions, targets, metric)[value])


def test_what_is_not_offered_is_said(config):
    dialogue = config.model_copy(update={"task": config.task.model_copy(update={"kind": "dialogue"})})
    with pytest.raises(UserError, match=r"task.kind: dialogue: there are no simple models for it; they are for class"):
        measure.offered(dialogue)
    with pytest.raises(UserError, match=r"--models: no model 'words_smv' for task.kind: classification.*words_svm"):
        measure.offered(config, ["words_smv"])


def test_examples_in_docstrings():
    assert doctest.testmod(beside).failed == 0


def test_studies_know_the_names():
    names = {model.name for models in measure.MODELS.values() for model in models}
    assert {"best", *names} == set(SimpleModelName.__args__)
    assert all(any(model.is_quick for model in models) for models in measure.MODELS.values())


# ---- beside a fine-tuned model --------------------------------------------------------------------------------------


def compared(config, predictions):
    targets = measure.read_splits(config)[0].targets["test"]
    return beside.compare(config, "test", predictions, targets, config.task.score(predictions, targets, "accuracy"))


def test_a_model_is_better_by_two_standard_errors_or_it_is_said(config):
    splits, _ = measure.read_splits(config)
    targets, quick = splits.targets["test"], [m for m in measure.offered(config) if m.is_quick]
    found, chosen = measure.measure(config, quick, splits)
    simple = chosen[found.best.model].predictions["test"]
    assert 0.6 < found.best.metrics["test"]["accuracy"] < 0.95
    same = compared(config, simple)
    assert same.entry["difference"] == same.entry["difference_error"] == 0 and same.entry["verdict"] == "no better"
    wrong = [n for n, (p, t) in enumerate(zip(simple, targets)) if p != t]
    one_more = [targets[n] if n == wrong[0] else p for n, p in enumerate(simple)]
    few = compared(config, one_more)
    assert few.entry["verdict"] == "not significantly better"
    assert few.entry["difference"] == pytest.approx(1 / 40) == few.entry["difference_error"], "of one row of 40"
    assert few.lines[1].startswith("accuracy is not significantly better than that of a simple baseline: the diff")
    best = compared(config, targets)
    differing = [float(p != t) for p, t in zip(simple, targets)]
    assert best.entry["difference_error"] == pytest.approx(np.std(differing, ddof=1) / math.sqrt(40))
    assert best.entry["verdict"] == "better" and len(best.lines) == 1
    assert best.entry["constant"] == found.constant["test"]["accuracy"]


def test_scores_are_stored_and_read_until_a_row_changes(config, monkeypatch, tmp_path):
    first = beside.stored(config, "test")
    with monkeypatch.context() as patch:
        patch.setattr(measure, "measure", lambda *args: pytest.fail("it is stored"))
        assert beside.stored(config, "test") == first
    (file,) = (tmp_path / "cache" / "simple_models").iterdir()
    file.write_text("{")
    again = beside.stored(config, "test")  # a damaged file is written anew

    def without_time(found):
        return [dataclasses.replace(score, seconds=0) for score in found.scores]

    assert without_time(again) == without_time(first)
    fine_tuning.write(tmp_path / "test.jsonl", fine_tuning.rows(40, 9))
    assert without_time(beside.stored(config, "test")) != without_time(first)


def test_large_training_sets_are_not_waited_for(config):
    trained = measure.read_splits(config)[0].rows["train"]
    assert beside.is_within(config, trained, 60) and not beside.is_within(config, trained, 59)
    assert not beside.is_within(config, trained, 0)
    long = config.model_copy(update={"task": config.task.model_copy(update={"text": ("text",) * 60})})
    assert not beside.is_within(long, trained, 60), "rows of more than 250 characters count as several"
