import doctest
import importlib

import pytest

MODULES = (
    "tasks", "tokenizers", "sources.base", "stream.loader", "stream.order", "stream.packing",
    "tokenizers.scripts", "tokenizers.words",
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module):
    assert doctest.testmod(importlib.import_module(f"jaxpt.data.{module}")).failed == 0
