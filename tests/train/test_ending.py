"""What is said at the end of a run."""

import doctest

from jaxpt.train import ending
from jaxpt.train.evaluators import Result


def test_examples_in_docstrings():
    assert doctest.testmod(ending).failed == 0


def test_a_model_that_is_better_than_a_trivial_prediction_has_no_line():
    for mode, value in (("max", 0.7), ("min", 0.5)):
        result = Result({"x": value}, majority_baseline={"x": 0.6})
        assert ending.trivial_lines(result, "x", mode) == []
        assert ending.trivial_lines(result, "x", {"max": "min", "min": "max"}[mode])
    assert ending.trivial_lines(Result({"x": 0.5}), "x", "max") == [], "no trivial prediction is known"
