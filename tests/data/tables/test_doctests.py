import doctest
import importlib

import pytest

MODULES = ("built_in", "files", "json_files", "reading", "rows", "splits", "super_glue")


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module):
    failed, tried = doctest.testmod(importlib.import_module(f"jaxpt.data.tables.{module}"))
    assert tried and not failed
