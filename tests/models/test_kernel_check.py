"""`jaxpt doctor` finds a kernel that computes something else."""

import doctest

import pytest

from jaxpt.cli import doctor
from jaxpt.models import kernel_check, kernels
from jaxpt.parallel import compiler


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_kernels_are_as_near_as_bfloat16_lets_them(platform):
    found = kernel_check.differences(platform, interpret=compiler.platform() != platform)
    assert len(found) == 2 and max(found.values()) < doctor.FAR / 2, found


@pytest.mark.gpu
@pytest.mark.slow
def test_a_kernel_that_is_wrong_is_far(monkeypatch):
    right = kernels.flash

    def wrong(inputs, *options):
        return right(inputs._replace(mask=inputs.mask.replace(window=50)), *options)

    monkeypatch.setattr(kernels, "flash", wrong)
    assert kernel_check.differences("gpu", interpret=compiler.platform() != "gpu")["flash"] > doctor.FAR


def test_a_cpu_has_none():
    assert kernel_check.differences("cpu") == {}


def test_docstrings():
    assert doctest.testmod(kernel_check)[0] == 0
