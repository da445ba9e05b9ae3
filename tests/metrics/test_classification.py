import numpy as np
import pytest
import sklearn.metrics

from jaxpt.errors import UserError
from jaxpt.metrics import confusion_matrix, score, table

# By hand. Targets a a b c; predictions a b b b.
# F1: a: P 1, R 1/2 → 2/3; b: P 1/3, R 1 → 1/2; c: 0.
PREDICTIONS, TARGETS = ["a", "b", "b", "b"], ["a", "a", "b", "c"]


def value(metric, predictions, targets, **options):
    (only,) = score(metric, predictions, targets, **options).values()
    assert isinstance(only, float) and np.isfinite(only)
    return only


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("accuracy", 1 / 2),
        ("macro_f1", (2 / 3 + 1 / 2) / 3),
        ("micro_f1", 1 / 2),
        ("weighted_f1", (2 * 2 / 3 + 1 / 2) / 4),
        ("balanced_accuracy", 1 / 2),
    ],
)
def test_by_hand(metric, expected):
    assert value(metric, PREDICTIONS, TARGETS) == pytest.approx(expected)
    assert value(metric, PREDICTIONS, TARGETS, labels=["a", "b", "c"]) == pytest.approx(expected)


def test_the_positive_label_is_the_second_of_two_or_the_one_that_is_named():
    assert value("f1", PREDICTIONS, TARGETS, positive="a") == pytest.approx(2 / 3)
    assert value("f1", PREDICTIONS, TARGETS, positive="c", labels=["c", "b", "a"]) == 0
    assert value("f1", ["no", "no"], ["no", "yes"], labels=["yes", "no"]) == pytest.approx(2 / 3)
    assert value("f1", ["a"], ["a"], positive="b") == 0  # which does not occur here
    with pytest.raises(UserError, match="f1: 'x' is none of the labels: a, b, c"):
        score("f1", PREDICTIONS, TARGETS, positive="x", labels=["a", "b", "c"])


@pytest.mark.parametrize("labels", [None, ["a", "b", "c"]])
def test_f1_of_three_labels_is_refused(labels):
    """The last label that occurs is another one in each evaluation."""
    averages = r"here are 3 \(a, b, c\): name it with `positive`, or .*: macro_f1, micro_f1 or weighted_f1"
    with pytest.raises(UserError, match=averages):
        score("f1", PREDICTIONS, TARGETS, labels=labels)


@pytest.mark.parametrize(("predictions", "targets"), [(["neg", "pos"], ["neg", "pos"]), (["neg"], ["neg"])])
def test_f1_of_words_wants_to_know_which(predictions, targets):
    """Of those that occur nobody knows whether they are all."""
    with pytest.raises(UserError, match="name it with `positive`"):
        score("f1", predictions, targets)


def test_zero_and_one_are_both_labels_where_one_alone_occurs():
    assert value("f1", [0, 0], [0, 0]) == 0  # as the F1 of GLUE's MRPC: no positive
    assert value("f1", [1, 1], [1, 1]) == 1
    assert value("f1", [True, False], [True, True]) == pytest.approx(2 / 3)


def test_a_class_that_is_missing():
    """In targets, in predictions, in both: scikit-learn's values with the labels given."""
    labels = [0, 1, 2, 3]
    predictions, targets = [0, 1, 1, 2], [0, 1, 2 - 1, 0]
    expected = sklearn.metrics.f1_score(targets, predictions, labels=labels, average="macro", zero_division=0)
    assert value("macro_f1", predictions, targets, labels=labels) == pytest.approx(expected) == (2 / 3 + 1) / 4
    assert value("macro_f1", predictions, targets) == pytest.approx((2 / 3 + 1) / 3)  # of the labels that occur
    assert value("balanced_accuracy", predictions, targets, labels=labels) == pytest.approx((1 / 2 + 1) / 2)


@pytest.mark.parametrize("predictions", [[1, 1, 1], [0, 0, 0]])
@pytest.mark.parametrize("targets", [[0, 1, 1], [1, 1, 1], [0, 0, 0]])
def test_matthews_of_equal_predictions_is_zero(predictions, targets):
    assert value("matthews", predictions, targets) == 0


def test_matthews_by_hand():
    # tp 2, tn 1, fp 1, fn 1: (2·1 − 1·1)/√(3·3·2·2) = 1/6
    assert value("matthews", [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]) == pytest.approx(1 / 6)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "micro_f1", "matthews", "balanced_accuracy"])
def test_one_example(metric):
    assert value(metric, [1], [1]) == {"matthews": 0}.get(metric, 1)
    assert value(metric, [0], [1]) == 0


@pytest.mark.parametrize("unparseable", [-1, None, "no label"])
@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "micro_f1", "balanced_accuracy"])
def test_unparseable_text_is_wrong(metric, unparseable):
    labels = ["no", "yes"]
    right = value(metric, ["yes", "no", "yes", "no"], ["yes", "no", "yes", "no"], labels=labels)
    wrong = value(metric, ["yes", "no", unparseable, "no"], ["yes", "no", "yes", "no"], labels=labels)
    assert wrong < right == 1


def test_minus_one_is_a_label_where_targets_have_it():
    assert value("macro_f1", [-1, 1], [-1, 1]) == 1
    assert value("macro_f1", [-1, 1, 1], [0, 1, 1]) == pytest.approx(1 / 2)  # 0 and 1, not three classes


def test_labels_of_several_types_and_targets_that_are_no_label():
    with pytest.raises(UserError, match="labels are of one type"):
        score("macro_f1", ["a", 1], ["a", 1])
    with pytest.raises(UserError, match="the target 'x' is none of the labels: a, b"):
        score("matthews", ["a"], ["x"], labels=["a", "b"])


def test_numpy_arrays_and_lists_give_the_same():
    rng = np.random.default_rng(0)
    predictions, targets = rng.integers(0, 3, (2, 50))
    for metric in ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "matthews", "balanced_accuracy"):
        assert score(metric, predictions, targets) == score(metric, predictions.tolist(), targets.tolist())
    ours = score("f1", predictions, targets, positive=2)
    assert ours == score("f1", predictions.tolist(), targets.tolist(), positive=2)


def test_equal_to_scikit_learn():
    rng = np.random.default_rng(1)
    predictions, targets = rng.integers(0, 4, (2, 200)).tolist()
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(targets, predictions),
        "macro_f1": sklearn.metrics.f1_score(targets, predictions, average="macro"),
        "micro_f1": sklearn.metrics.f1_score(targets, predictions, average="micro"),
        "matthews": sklearn.metrics.matthews_corrcoef(targets, predictions),
        "balanced_accuracy": sklearn.metrics.balanced_accuracy_score(targets, predictions),
    }
    assert {name: value(name, predictions, targets) for name in expected} == pytest.approx(expected, rel=1e-12)


def test_several_labels_for_each_example():
    predictions, targets = [[1, 0, 0], [1, 1, 0]], [[1, 0, 0], [0, 1, 1]]
    # columns: tp 1 fp 1 → 2/3; tp 1 → 1; fn 1 → 0
    assert value("macro_f1", predictions, targets) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert value("micro_f1", predictions, targets) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert value("exact_match", predictions, targets) == 1 / 2
    assert value("exact_match", np.array(predictions), np.array(targets)) == 1 / 2


def test_tags_of_words():
    predictions, targets = [["A", "B"], ["B"]], [["A", "B"], ["A"]]
    assert score("macro_f1", predictions, targets) == score("macro_f1", ["A", "B", "B"], ["A", "B", "A"])
    with pytest.raises(UserError, match="row 1"):
        score("macro_f1", predictions, [["A", "B"], ["A", "B"]])


def test_average_precision():
    scores = [[0.9, 0.2], [0.8, 0.1], [0.1, 0.3]]
    targets = [[1, 0], [0, 0], [1, 0]]  # the second label never occurs
    assert value("average_precision", scores, targets) == pytest.approx((1 + 2 / 3) / 2 / 2)
    assert value("average_precision", [0.5, 0.5, 0.5, 0.5], [1, 0, 0, 0]) == 1 / 4  # ties


def test_cb_multirc_and_axg():
    assert score("cb", [0, 0, 2], [0, 1, 2], labels=[0, 1, 2]) == pytest.approx(
        {"accuracy": 2 / 3, "macro_f1": (2 / 3 + 0 + 1) / 3}
    )
    groups = [(0, 1), (0, 1), (0, 2), (1, 1)]  # (paragraph, question)
    scores = score("multirc", ["True", "False", "True", None], ["True", "False", "False", "True"], groups=groups,
                   labels=["False", "True"])  # fmt: skip
    assert scores == pytest.approx({"f1a": 2 * 1 / (2 * 1 + 1 + 1), "exact_match": 1 / 3})
    assert score("axg", [0, 0, 1, 0], [0, 0, 1, 1], groups=["a", "a", "b", "b"]) == {
        "accuracy": 3 / 4, "gender_parity": 1 / 2,
    }  # fmt: skip


def test_confusion_matrix():
    counts = confusion_matrix(PREDICTIONS, TARGETS, ["a", "b", "c"])
    assert counts.dtype == np.int64 and counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    assert np.array_equal(counts, sklearn.metrics.confusion_matrix(TARGETS, PREDICTIONS))
    counts = confusion_matrix(["a", -1], ["a", "b"], ["a", "b"])
    assert counts.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert table(counts, ["a", "b"]) == [
        "target ↓    a    b  (none) ← predicted",
        "a           1    0       0",
        "b           0    0       1",
    ]
    with pytest.raises(UserError, match="the target 'x' is none of the labels: a, b"):
        confusion_matrix(["a"], ["x"], ["a", "b"])
    with pytest.raises(UserError, match="the target '' is none"):
        confusion_matrix(["a"], [""], ["a", "b"])


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1", "weighted_f1"])
def test_sets_of_one_possible_label_are_scored_as_those_of_several(metric):
    """scikit-learn would take a matrix of one column for two classes."""
    targets, predictions = [(1,)] * 10 + [(0,)] * 90, [(1,)] * 5 + [(0,)] * 95
    assert value(metric, predictions, targets) == pytest.approx(2 / 3)
    assert value(metric, [(0,)] * 100, targets) == 0
