"""Which weights dropout keeps: as if they were drawn."""

import doctest
import functools

import jax
import numpy as np
import pytest

from jaxpt.models import pallas_common

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropped_weights_are_as_if_drawn(rate):
    """Of n draws of rate p a share differs from p by less than 4 √(p(1-p)/n), and one says nothing of another."""
    seeds, places = np.array([[1, 2], [-7, 1 << 30]], np.int32)[..., None, None], np.arange(256, dtype=np.int32)
    keep = jax.jit(functools.partial(pallas_common.kept, rate=rate))(seeds, places[:, None], places)
    keep = np.asarray(keep).astype(float) - (1 - rate)
    spread = np.sqrt(rate * (1 - rate))

    def is_small(x):
        """The mean of the last axes, in standard errors."""
        return np.abs(x).max() * np.sqrt(256 * 256) < 4.5

    assert is_small(keep.mean((2, 3)) / spread)
    assert np.abs(keep.mean(2)).max() / spread * 16 < 4.8 and np.abs(keep.mean(3)).max() / spread * 16 < 4.8
    for axis in (2, 3):  # neighbours, and those 128 apart
        for apart in (1, 2, 128):
            assert is_small((keep * np.roll(keep, apart, axis)).mean((2, 3)) / spread**2)
    assert is_small((keep[0, 0] * keep[0, 1]).mean() / spread**2)  # heads
    assert is_small((keep[0] * keep[1]).mean((1, 2)) / spread**2)  # rows


def test_docstrings():
    assert doctest.testmod(pallas_common)[0] == 0
