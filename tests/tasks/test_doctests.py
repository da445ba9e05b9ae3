import doctest
import importlib

import pytest


@pytest.mark.parametrize("kind", ["classification", "regression", "multi_label", "tagging", "question_answering"])
def test_examples_in_docstrings(kind):
    assert doctest.testmod(importlib.import_module(f"jaxpt.tasks.{kind}")).failed == 0
