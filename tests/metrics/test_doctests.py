import doctest
import importlib
import pkgutil

import pytest

import jaxpt.metrics

MODULES = [module.name for module in pkgutil.iter_modules(jaxpt.metrics.__path__)]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_the_docstrings(module):
    failed, tried = doctest.testmod(importlib.import_module(f"jaxpt.metrics.{module}"))
    assert tried and not failed
