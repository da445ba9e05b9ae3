"""Confusions of many classes, and of several labels."""

import numpy as np
import scipy.special
import sklearn.metrics

from jaxpt.metrics import confusions, label_errors, negative_log_softmax, table
from jaxpt.metrics.confusion import MOST

RNG = np.random.default_rng(0)


def test_losses():
    logits = RNG.normal(size=(5, 7)).astype(np.float32) * 100
    found = negative_log_softmax(logits)
    assert found.dtype == np.float64 and np.isfinite(found).all()
    np.testing.assert_allclose(found, -scipy.special.log_softmax(logits.astype(np.float64), -1))


def test_few_classes_are_a_matrix_and_many_the_most_frequent_mistakes():
    targets, predictions = RNG.integers(0, 3, 50), RNG.integers(0, 3, 50)
    counts = sklearn.metrics.confusion_matrix(targets, predictions)
    assert confusions(predictions, targets, "abc") == table(counts, "abc")
    targets, predictions = RNG.integers(0, 20, 500), RNG.integers(-1, 20, 500)
    lines = confusions(predictions, targets, [f"c{n}" for n in range(20)])
    wrong = sklearn.metrics.confusion_matrix(targets, predictions, labels=range(-1, 20))
    assert lines[0] == f"most frequent mistakes of {np.sum(targets != predictions)}, target → predicted:"
    counts = [int(line.split()[0]) for line in lines[1:]]
    assert counts == sorted((wrong - np.diag(np.diag(wrong))).ravel())[: -MOST - 1 : -1]


def test_a_matrix_wider_than_a_line_is_not_shown():
    names = ["transfer not received by recipient", "top up limits", "card payment wrong exchange rate"]
    assert confusions([0, 1, 2], [0, 1, 1], [name[:20] for name in names])[0].startswith("target ↓")
    assert confusions([0, 1, 2], [0, 1, 1], names) == [
        "most frequent mistakes of 1, target → predicted:",
        "       1  top up limits → card payment wrong exchange rate",
    ]


def test_several_labels():
    targets, predictions = RNG.integers(0, 2, (2, 40, 4))
    matrices = sklearn.metrics.multilabel_confusion_matrix(targets, predictions)
    wanted = [["abcd"[n], str(m[1, 1]), str(m[1, 0]), str(m[0, 1])] for n, m in enumerate(matrices)]
    assert [line.split() for line in label_errors(predictions, targets, "abcd")[1:]] == wanted
    many = [[0] * 13 + [1]], [[0] * 14]
    lines = label_errors(*many, [f"c{n}" for n in range(14)])
    assert len(lines) == 1 + MOST and lines[1].split() == ["c13", "0", "0", "1"]
