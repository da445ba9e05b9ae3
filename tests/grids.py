"""Grids: many cases of one property, of which the suite has the few that are most likely to break.

The others have the marker `grid`; `python tools/grids.py run` runs them and notes when, on which commit.
"""

import os

import pytest

SEED = int(os.environ.get("JAXPT_GRID_SEED", "0"))
"""Added to the seeds of random cases; `tools/grids.py run --seed N` sets it."""


def cases(values, *kept):
    """Parameters: those that are `kept` run in the suite.

    >>> [bool(case.marks) for case in cases(["t5", "bert", "gpt2"], "bert")]
    [True, False, True]
    """
    values = list(values)
    assert all(value in values for value in kept), f"not among the cases: {[v for v in kept if v not in values]}"
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=[pytest.mark.grid] * (value not in kept))
        for value in values
    ]


def seeds(suite, grid):
    """So many seeds in the suite, always the same ones, and `grid` more that depend on SEED.

    >>> [(case.values[0], bool(case.marks)) for case in seeds(1, 2)]
    [(0, False), (1, True), (2, True)]
    """
    more = range(suite + grid * SEED, suite + grid * (SEED + 1))
    return [*map(pytest.param, range(suite)), *(pytest.param(seed, marks=pytest.mark.grid) for seed in more)]
