"""The worked examples of the docstrings."""

import doctest

import pytest

from jaxpt.plan import collectives, flops, hlo, memory, roofline, topologies


@pytest.mark.parametrize("module", [collectives, flops, hlo, memory, roofline, topologies])
def test_worked_examples_hold(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0 and failed == 0
