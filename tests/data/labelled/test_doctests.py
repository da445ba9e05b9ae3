import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["rows", "windows", "question_answering", "tagging"])
def test_examples_in_docstrings(module):
    assert doctest.testmod(importlib.import_module(f"jaxpt.data.labelled.{module}")).failed == 0
