import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["tasks", "tokenizers", "sources", "loader", "order", "packing", "scripts"])
def test_examples_in_docstrings(module):
    assert doctest.testmod(importlib.import_module(f"jaxpt.data.{module}")).failed == 0
