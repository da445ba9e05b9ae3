"""Several tasks: the average of their metrics, and doctests."""

import doctest

import pytest

from jaxpt.data.tasks import mixture
from jaxpt.data.tasks.mixture import TaskMixture

CB = {"kind": "classification", "name": "cb", "metrics": ("cb",)}
SQUAD = {"kind": "question_answering", "name": "squad", "metrics": ("squad",)}


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(mixture)
    assert tried and not failed


def test_the_average_is_of_values_from_0_to_1_that_are_better_when_high():
    task = TaskMixture(tasks=({"kind": "regression", "name": "stsb", "metrics": ("mse", "pearson")}, SQUAD, CB))
    measured = {"stsb/mse": 9.0, "stsb/pearson": 0.6, "squad/exact_match": 1.0, "squad/f1": 90.0, "cb/accuracy": 0.1}
    assert task.average(measured | {"cb/macro_f1": 0.3}) == {"average": pytest.approx(0.6)}


def test_without_a_metric_that_is_better_when_high_there_is_no_average():
    task = TaskMixture(tasks=({"kind": "regression", "name": "stsb", "metrics": ("mse",)}, CB))
    assert task.without_average() == "stsb" and task.average({}) == {}


@pytest.mark.parametrize("key, value", [("quoted", True), ("delimiter", ";"), ("encoding", "latin-1")])
def test_keys_of_files_belong_into_the_tasks(key, value):
    with pytest.raises(ValueError, match=f"{key}: belongs into the tasks of a mixture"):
        TaskMixture(tasks=({"kind": "regression", "name": "stsb"}, CB), **{key: value})
