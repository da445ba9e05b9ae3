import collections
import dataclasses
import functools

import numpy as np
import pytest

from jaxpt.metrics import METRICS, majority, score


def test_the_most_frequent_label_of_the_training_set():
    assert majority("accuracy", ["b", "a", "b"], ["a", "a", "b", "a"]) == {"accuracy": 1 / 4}
    assert majority("accuracy", ["x"], ["a", "b"]) == {"accuracy": 0}  # never seen in what is scored


def test_ties_go_to_the_label_that_comes_first():
    assert majority("accuracy", ["b", "a"], ["b", "b"]) == {"accuracy": 1}


def test_the_constant_is_best_for_the_metric():
    train, targets = [0, 0, 0, 1], [0, 1, 1, 0]
    assert majority("f1", train, targets) == pytest.approx({"f1": 2 / 3})  # all positive, though 0 is more frequent
    assert majority("macro_f1", train, targets) == pytest.approx({"macro_f1": 1 / 3})
    assert majority("matthews", train, targets) == {"matthews": 0}
    assert majority("balanced_accuracy", train, targets) == {"balanced_accuracy": 1 / 2}
    assert majority("f1", train, targets, positive=0) == pytest.approx({"f1": 2 / 3})


def test_superglue():
    labels = ["entailment", "contradiction", "neutral"]
    train = ["contradiction", "contradiction", "neutral"]
    found = majority("cb", train, ["contradiction", "entailment"], labels=labels)
    assert found == pytest.approx({"accuracy": 1 / 2, "macro_f1": 2 / 3 / 3})
    found = majority("multirc", [0, 0, 1], [1, 0, 1], groups=[1, 1, 2])
    assert found == pytest.approx({"f1a": 0.8, "exact_match": 1 / 2})  # all True
    assert majority("axg", [0, 1, 1], [1, 0], groups=[1, 1]) == {"accuracy": 1 / 2, "gender_parity": 1}


def test_numbers():
    assert majority("mse", [1, 3], [2, 4]) == {"mse": 2}
    assert majority("pearson", [1, 3], [2, 4]) == {"pearson": 0}
    assert majority("spearman", [1, 3], [2, 4]) == {"spearman": 0}


def test_several_labels_for_each_example():
    train = [[1, 0, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 1, 0]]
    targets = [[1, 0, 0], [0, 1, 1]]
    assert majority("exact_match", train, targets) == {"exact_match": 1 / 2}
    # the first column alone is best on the training set: 2·3/(2·3 + 2 + 2); with the second one it is 2·5/(2·5 + 5)
    assert majority("micro_f1", train, targets) == score("micro_f1", [[1, 1, 0]] * 2, targets)
    assert majority("macro_f1", train, targets) == score("macro_f1", [[1, 1, 0]] * 2, targets)
    assert majority("average_precision", train, targets) == pytest.approx({"average_precision": 1 / 2})


F1S = ("micro_f1", "macro_f1", "weighted_f1")


@pytest.mark.parametrize("metric", (*F1S, "exact_match"))
@pytest.mark.parametrize("columns", [1, 4])
def test_the_best_row_is_that_of_all_scores(metric, columns):
    """Of the most frequent row and of 1 in the k most frequent columns, the first with the highest score."""
    rng = np.random.default_rng(0)
    for _ in range(4):
        train, targets = (rng.random((8, columns)) < rng.random(columns) for _ in range(2))
        train, targets = train.astype(int).tolist(), targets.astype(int).tolist()
        counts = np.sum(train, axis=0)
        order = sorted(range(columns), key=lambda column: -counts[column])
        rows = [list(collections.Counter(map(tuple, train)).most_common(1)[0][0])]
        rows += [[int(c in order[:k]) for c in range(columns)] for k in range(1, columns + 1)]
        best = max(rows, key=lambda row: score(metric, [row] * len(train), train)[metric])
        assert majority(metric, train, targets) == score(metric, [best] * len(targets), targets)


@pytest.mark.parametrize("metric", (*F1S, "exact_match"))
def test_the_best_row_takes_no_pass_over_all_rows_for_each_label(monkeypatch, metric):
    calls, described = [], METRICS[metric]
    counted = functools.wraps(described.function)(lambda *args, **kwargs: calls.append(1) or {metric: 0.0})
    monkeypatch.setitem(METRICS, metric, dataclasses.replace(described, function=counted))
    majority(metric, np.eye(50, dtype=int).tolist(), [[0] * 50])
    assert len(calls) == 1


def test_tags():
    train, targets = [["N", "N", "V"]], [["V", "N"]]
    assert majority("tag_accuracy", train, targets) == {"tag_accuracy": 1 / 2}
    words = {"train_words": [["can", "dog", "runs"]], "words": [["runs", "new"]]}
    assert majority("tag_accuracy", train, targets, **words) == {"tag_accuracy": 1}
    assert majority("span_f1", [["O", "B-A", "O"]], [["B-A"]]) == {"precision": 0, "recall": 0, "f1": 0}


@pytest.mark.parametrize("metric", ["squad", "squad_v2", "record", "trivia_qa", "bleu", "chrf", "rouge", "exact_match"])
def test_no_constant_is_of_use_for_answers_and_texts(metric):
    assert metric in METRICS and majority(metric, ["a", "b"], ["a", "b"]) is None
    assert majority(metric, [["a"], ["b"]], [["a"], ["b"]]) is None
