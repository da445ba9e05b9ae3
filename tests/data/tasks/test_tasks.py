"""Tasks over texts: targets, predictions, and what is refused."""

import doctest
import importlib

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.multi_label import MultiLabelTask
from jaxpt.data.tasks.regression import RegressionTask
from jaxpt.errors import UserError

LABELS = ("no", "yes")


@pytest.mark.parametrize(
    "module",
    ["texts", "classification", "regression", "multi_label", "generation", "tagging", "question_answering"],
)
def test_examples_in_docstrings(module):
    failed, tried = doctest.testmod(importlib.import_module(f"jaxpt.data.tasks.{module}"))
    assert tried and not failed


def test_a_label_is_the_same_in_every_format():
    task = ClassificationTask(labels=("0", "1"))
    assert [task.target(Row(1, {"label": value}), "f") for value in (1, "1", " 1 ")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("task", "values", "words"),
    [
        (ClassificationTask(labels=LABELS), {"label": "yse"}, "label 'yse' is none of task.labels; did you mean yes"),
        (ClassificationTask(labels=LABELS), {"label": ""}, "(task.label) is empty; wants a label, or leave out"),
        (ClassificationTask(labels=LABELS), {"labels": "no"}, "no column 'label'; it has labels; did you mean labels?"),
        (RegressionTask(), {"label": "many"}, "wants a number, got 'many'"),
        (RegressionTask(), {"label": "nan"}, "wants a number, got 'nan'"),
        (MultiLabelTask(labels=LABELS), {"label": "no, maybe"}, "label 'maybe' is none of task.labels; did you"),
    ],
)
def test_targets_that_are_refused(task, values, words):
    with pytest.raises(UserError) as error:
        task.target(Row(3, values), "f: line 3")
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("separator", ["|", "; ", ","])
def test_the_separator_of_labels_is_found(separator):
    rows = [(Row(n, {"label": text}), "f") for n, text in enumerate(["a", separator.join("ba"), "", None])]
    task = MultiLabelTask().before_labels(rows)
    assert [task.labels_in(*row) for row in rows] == [["a"], ["b", "a"], [], []]
    known = MultiLabelTask(labels=("a", "b"))
    assert [known.target(*row) for row in rows] == [(1, 0), (1, 1), (0, 0), (0, 0)]


def test_labels_as_a_list_in_a_cell():
    task = MultiLabelTask(labels=("anger", "fear", "joy, really"))
    for text in ('["joy, really", "anger"]', "['joy, really', 'anger']"):
        assert task.target(Row(1, {"label": text}), "f") == (1, 0, 1)
    assert task.target(Row(1, {"label": "[]"}), "f") == (0, 0, 0)
    rows = [(Row(n, {"label": text}), "f") for n, text in enumerate(("[27]", "[2, 27]", "[]", "3"))]
    numbers = MultiLabelTask().before_labels(rows)
    assert [numbers.labels_in(*row) for row in rows] == [["27"], ["2", "27"], [], ["3"]]
    assert MultiLabelTask(labels=("[27]", "x")).target(Row(1, {"label": "[27]"}), "f") == (1, 0)
    with pytest.raises(UserError, match=r"f: column 'label' \(task.label\) wants a list of JSON, .* got '\[ 2 27\]'"):
        MultiLabelTask().labels_in(Row(1, {"label": "[ 2 27]"}), "f")


def test_a_label_that_stands_twice_counts_once():
    rows = [Row(1, {"label": value}) for value in ("joy|joy|fear", ["joy", "joy ", "fear"])]
    assert [MultiLabelTask().labels_in(row, "f") for row in rows] == [["joy", "fear"]] * 2


def test_label_columns_have_no_separator():
    with pytest.raises(ValueError, match="separator: is of labels in one column, and label names a column for each"):
        MultiLabelTask(label=("joy", "fear"), separator=";")


def test_a_label_may_hold_a_separator_of_others():
    task = MultiLabelTask(labels=("Food, Drink", "Travel"))
    assert task.before_labels([(Row(1, {"label": "Food, Drink"}), "line 1")]) is task, "its labels are known"
    for text, target in (("Food, Drink", (1, 0)), ("Food, Drink|Travel", (1, 1)), ("Travel; Food, Drink", (1, 1))):
        assert task.target(Row(1, {"label": text}), "f") == target
    with pytest.raises(UserError, match="label 'Foods' is none of"):
        task.target(Row(1, {"label": "Travel|Foods"}), "f")


def test_a_column_for_each_label():
    task = MultiLabelTask(label=("joy", "fear"), labels=("joy", "fear"))
    values = [{"joy": "1", "fear": "0"}, {"joy": True, "fear": 1.0}, {"joy": "No", "fear": None}]
    assert [task.target(Row(1, row), "f") for row in values] == [(1, 0), (1, 1), (0, 0)]
    with pytest.raises(
        UserError, match=r"f: column 'fear' \(task.label\) expects 1 or 0, .* got 'fear'; labels by name"
    ):
        task.target(Row(1, {"joy": 0, "fear": "fear"}), "f")
    with pytest.raises(ValueError, match="labels: expected the names of the columns in label"):
        MultiLabelTask(label=("joy", "fear"), labels=("joy", "anger"))
    assert MultiLabelTask(label=("joy", "fear"), thresholds=(0.3, 0.6)).thresholds == (0.3, 0.6)
    with pytest.raises(ValueError, match="thresholds: expected one for each of labels, 2, got 1"):
        MultiLabelTask(label=("joy", "fear"), thresholds=(0.3,))


def test_delimiters_and_encodings_are_checked_with_the_recipe():
    assert ClassificationTask(delimiter=";", encoding="Latin1").encoding == "iso8859-1"
    for fields, message in (({"encoding": "utf-9"}, "no encoding 'utf-9'"), ({"delimiter": "||"}, "at most 1 char")):
        with pytest.raises(ValueError, match=message):
            ClassificationTask(**fields)


def test_probabilities_are_those_of_the_outputs():
    logits = np.array([0.5, -1.0, 2.0])
    task = ClassificationTask(labels=("a", "b", "c"), names=("A", "B", "C"))
    answer = task.answer([logits[None]])
    assert answer["label"] == "C" and task.decide([logits[None]]) == 2
    np.testing.assert_allclose(list(answer["probabilities"].values()), np.exp(logits) / np.exp(logits).sum(), rtol=1e-6)
    many = MultiLabelTask(labels=("a", "b", "c"))
    assert many.answer([logits[None]])["labels"] == ["a", "c"] and many.decide([logits[None]]) == (1, 0, 1)
    assert RegressionTask().answer([np.array([[0.25]])]) == {"value": 0.25}


def test_average_precision_is_of_probabilities_whatever_the_thresholds():
    rng = np.random.default_rng(0)
    p, targets = rng.random((40, 2)), rng.integers(0, 2, (40, 2))
    p[:4, 0], p[4:, 0], targets[:, 0] = (0.9, 0.8, 0.7, 0.6), 0.1, [1, 1, 0, 0] + [0] * 36
    outputs = [[row[None]] for row in np.log(p / (1 - p)).astype(np.float32)]
    expected = {"average_precision": pytest.approx(average_precision_score(targets, p))}
    for thresholds in (None, (0.05, 0.95)):
        task = MultiLabelTask(labels=("a", "b"), metrics=("average_precision", "micro_f1"), thresholds=thresholds)
        predictions = [task.decide(of_row) for of_row in outputs]
        is_labelled = (p > (thresholds or 0.5)).astype(int)
        assert [tuple(row) for row in is_labelled.tolist()] == predictions, "they are 0 and 1 to all others"
        assert task.score(predictions, targets.tolist(), "average_precision") == expected
        micro = task.score(predictions, targets.tolist(), "micro_f1")["micro_f1"]
        assert micro == pytest.approx(f1_score(targets, is_labelled, average="micro"))
    with pytest.raises(NotImplementedError, match="average_precision wants probabilities"):
        task.score([(1, 0)], [(1, 0)], "average_precision")


def test_losses_are_those_of_training():
    logits = np.array([0.5, -1.0, 2.0])
    log_p = logits - np.log(np.exp(logits).sum())
    sigmoid = 1 / (1 + np.exp(-logits))
    one, many = ClassificationTask(labels=("a", "b", "c")), MultiLabelTask(labels=("a", "b", "c"))
    assert one.loss([logits[None]], 1) == pytest.approx(-log_p[1])
    assert many.loss([logits[None]], (1, 0, 0)) == pytest.approx(
        -(np.log(sigmoid[0]) + np.log(1 - sigmoid[1]) + np.log(1 - sigmoid[2])) / 3
    )
    assert RegressionTask().loss([np.array([[0.25]])], 1.0) == 0.5625


def test_what_is_shown_of_predictions():
    one, many = ClassificationTask(labels=("0", "1"), names=LABELS), MultiLabelTask(labels=LABELS)
    row = Row(3, {"text": "a film", "label": 0})
    assert [one.named(value, row, "") for value in (1, -1)] == ["yes", None]
    assert Task(kind="x").difference(0, None, row, "") == "0 → (none)"
    assert one.difference(0, -1, row, "") == "no → (none)" and one.text_of(row, "") == "a film"
    assert one.confusions([1, -1, 0], [1, 1, 0])[2].split() == ["yes", "0", "1", "1"]
    assert many.named((0, 1), row, "") == ["yes"] and many.difference((1, 1), (0, 0), row, "") == "no, yes → (none)"
    assert many.confusions([(1, 0)], [(0, 1)])[1:] == ["no         0       0      1", "yes        0       1      0"]
    assert RegressionTask().difference(2.0, 0.123456, row, "") == "2 → 0.1235"
    assert RegressionTask().confusions([], []) == []


def test_metrics_of_another_kind_are_refused():
    with pytest.raises(UserError, match="pearson: a task of kind classification has no such metric"):
        ClassificationTask(labels=LABELS, metrics=("pearson",)).check_metrics()


def test_metrics_that_give_the_same_value_are_refused():
    with pytest.raises(UserError, match=r"^task.metrics: accuracy and cb both give accuracy; leave one out$"):
        ClassificationTask(labels=LABELS, metrics=("accuracy", "cb")).check_metrics()


def test_words_are_t5s_where_its_code_knows_the_task():
    row = Row(1, {"sentence": "He run.", "label": "0"})
    task = ClassificationTask(name="cola", text="sentence", labels=("0", "1"))
    assert (task.input_text(row, ""), task.target_text(row, "")) == ("cola sentence: He run.", "unacceptable")
    assert [task.parse(text, row, "") for text in ("acceptable", "Acceptable", "")] == [1, -1, -1]
    own = ClassificationTask(name="mood", text="sentence", labels=("sad", "glad"))
    assert own.input_text(row, "") == "mood sentence: He run." and own.candidates() == ("sad", "glad")


def test_numbers_are_rounded_as_t5_does():
    task = RegressionTask(label="score")
    assert [task.target_text(Row(1, {"score": x}), "") for x in (3.25, 0.1, 4.7)] == ["3.2", "0.0", "4.8"]
    assert task.parse("3.2", Row(1, {}), "") == 3.2 and task.parse("three", Row(1, {}), "") == -1.0


def test_texts_of_several_columns():
    task = ClassificationTask(name="multirc", text=("paragraph", "question"), pair="answer", labels=("0", "1"))
    row = Row(1, {"paragraph": "<b>It</b> rains.", "question": "Wet?", "answer": "Yes", "label": 1})
    assert task.texts(row, "") == ("<b>It</b> rains. Wet?", "Yes")
    assert task.input_text(row, "") == "multirc question: Wet? answer: Yes paragraph: It rains."
    assert task.columns() == ("paragraph", "question", "answer") and task.target_text(row, "") == "True"


def test_metrics_over_groups():
    """MultiRC: F1 over all answers; a question counts where all its answers are right."""
    task = ClassificationTask(labels=("0", "1"), group=("idx.p", "idx.q"), metrics=("multirc", "accuracy"))
    labels, groups = [1, 0, 1, 1, 0], [(0, 0), (0, 0), (0, 1), (1, 0), (1, 0)]
    rows = [
        LocatedRow(Row(n, {"label": label, "idx": {"p": p, "q": q}}), "", (0, n))
        for n, (label, (p, q)) in enumerate(zip(labels, groups))
    ]
    found, targets = task.grouped(rows)
    assert found == rows and [target.label for target in targets] == labels
    predictions = [1, 0, -1, 1, 1]
    assert task.score(predictions, targets, "multirc") == {"f1a": pytest.approx(2 / 3), "exact_match": 1 / 3}
    assert task.score(predictions, targets, "accuracy") == {"accuracy": 0.6}
    constant = task.majority("multirc", rows, rows, targets)
    assert constant == {"f1a": 0.75, "exact_match": 1 / 3}
    with pytest.raises(UserError, match=r"task.metrics: multirc: wants task.group"):
        task.model_copy(update={"group": None}).check_metrics()


def test_f1_is_of_the_class_that_the_recipe_names():
    """Not of the last class that occurs in an evaluation."""
    task = ClassificationTask(labels=("neg", "neu", "pos"), positive="neg", metrics=("f1",))
    task.check_metrics()
    with_pos, without = ([0, 1, 2], [0, 2, 2]), ([0, 0, 1], [0, 1, 1])
    assert [task.score(*rows, "f1")["f1"] for rows in (with_pos, without)] == [1, pytest.approx(2 / 3)]
    assert task.computed("f1", []) == "of the label neg"
    named = ClassificationTask(labels=("0", "1"), names=("different", "same"), metrics=("f1",))
    assert named.computed("f1", []) == "of the label same" and named.score([0, 0], [0, 0], "f1") == {"f1": 0}
    first = ClassificationTask(labels=("0", "1"), names=("different", "same"), positive="different", metrics=("f1",))
    assert first.score([0, 0], [0, 0], "f1") == {"f1": 1}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "task.metrics: f1: is of one of two labels, task.labels has 3: a, b, c; take macro_f1, micro_f1 or "
             "weighted_f1, or name the label with task.positive"),
        ({"positive": "d"}, "task.positive: 'd' is none of task.labels; known here: a, b, c"),
        ({"positive": "a", "metrics": ("accuracy",)}, "task.positive: only the metric f1 is of one label"),
        ({"metrics": ("multirc",), "group": "id"}, "task.metrics: multirc: is of one of two labels, task.labels has 3"),
        ({"metrics": ("accuracy",), "metric_options": {"f1": {"positive": "a"}}}, "f1 is no metric of this task"),
    ],
)  # fmt: skip
def test_metrics_that_do_not_know_their_label(settings, words):
    with pytest.raises(UserError) as error:
        ClassificationTask(**{"labels": ("a", "b", "c"), "metrics": ("f1",), **settings}).check_metrics()
    assert words in str(error.value)


def test_cb_is_a_mean_over_all_labels():
    task = ClassificationTask(labels=("a", "b", "c"), metrics=("cb",))
    assert task.score([0, 1], [0, 1], "cb") == {"accuracy": 1, "macro_f1": pytest.approx(2 / 3)}  # as in T5


def test_a_temperature_is_fitted_on_the_validation_set_and_changes_no_label():
    task = ClassificationTask(labels=("a", "b"))
    outputs, targets = [[np.array([[4.0, 0.0]])]] * 80, [0] * 60 + [1] * 20
    fitted = task.calibration(outputs, targets)
    assert fitted["temperature"] == pytest.approx(3.75, abs=0.01)
    assert fitted["calibration_error"] < 0.01 < fitted["calibration_error_raw"]
    after = task.with_measured({"task/accuracy": 0.75, "task/temperature": fitted["temperature"]})
    assert after.confidence(outputs[0]) == pytest.approx(0.75 * 81 / 82 + 0.25 / 82, abs=1e-3)
    assert after.answer(outputs[0])["probabilities"]["a"] == pytest.approx(0.75 * 81 / 82 + 0.25 / 82, abs=1e-3)
    assert after.decide(outputs[0]) == task.decide(outputs[0]) == 0 and after.loss(outputs[0], 0) < 0.02
    assert task.calibration(outputs[:40], targets[:40]) == {}, "few rows say nothing"
    fixed = task.model_copy(update={"temperature": 1.0})
    assert fixed.with_measured({"task/temperature": 3.0}).temperature == 1.0


def test_each_label_has_the_threshold_of_its_best_f1():
    task = MultiLabelTask(labels=("a", "b"))
    outputs = [[np.array([[-3.0 if n < 10 else -1.0, 0.5]])] for n in range(20)]
    targets = [(int(n >= 10), 1) for n in range(20)]
    fitted = task.calibration(outputs, targets)
    assert fitted.keys() == {"threshold_0"}, "no row is without b"
    after = task.with_measured({f"task/{name}": value for name, value in fitted.items()})
    assert [task.decide(of_row) for of_row in outputs[9:11]] == [(0, 1), (0, 1)]
    assert [after.decide(of_row) for of_row in outputs[9:11]] == [(0, 1), (1, 1)] and after.thresholds[1] == 0.5


def test_reliability_of_label_sets():
    task = MultiLabelTask(labels=("a", "b"), thresholds=(0.3, 0.5))
    logits = np.log([[0.2 / 0.8, 0.9 / 0.1], [0.4 / 0.6, 0.9 / 0.1]])
    found = task.reliability([[row[None]] for row in logits], [(0, 1), (1, 1)])
    assert found["thresholds"] == {"a": 0.3, "b": 0.5}
    assert found["errors"] == pytest.approx({"a": (0.2 + 0.6) / 2, "b": 0.1})
    assert [count for _, _, count in found["bins"]] == [1, 1, 2] and found["bins"][2] == pytest.approx([0.9, 1.0, 2])
