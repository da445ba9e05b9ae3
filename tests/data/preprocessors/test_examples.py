"""The worked examples in the preprocessors' docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

from jaxpt.data import preprocessors

# `labelled` needs the source of a run: tests/data/labelled has its tests.
NAMES = [module.name for module in pkgutil.iter_modules(preprocessors.__path__) if module.name != "labelled"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_docstrings(name):
    failed, attempted = doctest.testmod(importlib.import_module(f"jaxpt.data.preprocessors.{name}"))
    assert failed == 0
    assert attempted > 0
