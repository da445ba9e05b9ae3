"""How near results on an accelerator have to be: 2e-3 in float32, 2e-2 in bfloat16. On a CPU each test's own holds.

The tests' own tolerances, down to 1e-6, are those of one compiler and its kernels. On an accelerator sums are added in
the order of the kernel that a library chose, some kernels round the factors of float32 products to TF32, by up to
2^-11 = 5e-4 each, and exp, tanh and rsqrt are approximations. bfloat16 rounds by up to 2^-9 = 2e-3. Four and ten such
roundings are allowed. An error in a mask, an index or a scale is larger by far.
"""

import numpy as np
import pytest

FLOAT32, BFLOAT16 = 2e-3, 2e-2
"""Relative: of each entry, and of the largest one, from which others come by cancellation."""


def of(*arrays):
    """The tolerance for arrays, by the coarsest.

    >>> of(np.zeros(3, np.float32)), of([1.0], np.zeros(3, np.float16))
    (0.002, 0.02)
    """
    return BFLOAT16 if any("float16" in str(getattr(x, "dtype", "")) for x in arrays) else FLOAT32


def widen(monkeypatch):
    """Comparisons of floats take at least the tolerance of a device; exact ones stay exact."""
    assert_allclose, approx = np.testing.assert_allclose, pytest.approx

    def wider_allclose(actual, desired, rtol=1e-7, atol=0.0, **more):
        entries, least = np.abs(np.asarray(desired, np.float64)), of(actual, desired)
        largest = float(entries[np.isfinite(entries)].max(initial=0.0))
        assert_allclose(actual, desired, rtol=max(rtol, least), atol=max(atol, least * largest), **more)

    def wider_approx(expected, rel=None, abs=None, nan_ok=False):
        return approx(expected, rel=max(rel or 0.0, of(expected)), abs=abs, nan_ok=nan_ok)

    monkeypatch.setattr(np.testing, "assert_allclose", wider_allclose)
    monkeypatch.setattr(pytest, "approx", wider_approx)
