import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["batching", "embed", "spans"])
def test_examples_in_the_docstrings(module):
    failed, tried = doctest.testmod(importlib.import_module(f"jaxpt.decode.{module}"))
    assert tried and not failed
