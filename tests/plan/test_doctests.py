"""The worked examples of the docstrings."""

import doctest

import pytest

from jaxpt.parallel import chips
from jaxpt.plan import collectives, gpus, instructions, memory, operations, roofline, show, topologies
from jaxpt.train import flops


@pytest.mark.parametrize(
    "module", [chips, collectives, flops, gpus, instructions, memory, operations, roofline, show, topologies]
)
def test_worked_examples_hold(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0 and failed == 0
