"""How the suite runs on an accelerator: what conftest.py sets, which files are collected, how near results are."""

import ast
import doctest
import os
import subprocess
import sys

import numpy as np
import pytest

from tests import tolerances
from tests.config.helpers import ROOT

SET = ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_DEFAULT_MATMUL_PRECISION")


@pytest.mark.parametrize(
    "platforms, wanted",
    [
        (None, ["cpu", "xla_force_host_platform_device_count=8", "true", ""]),
        ("cpu", ["cpu", "xla_force_host_platform_device_count=8", "true", ""]),
        ("cuda,cpu", ["cuda,cpu", "xla_gpu_autotune_level=0", "", "highest"]),
    ],
)
def test_a_device_is_respected(platforms, wanted):
    """In a process whose environment is a user's."""
    code = f"import os; from tests import conftest; print([os.environ.get(name, '') for name in {SET!r}])"
    given = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    given |= {"JAX_PLATFORMS": platforms} if platforms else {}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=given, capture_output=True, text=True, check=True
    )
    for value, part in zip(ast.literal_eval(found.stdout), wanted, strict=True):
        assert part in value and bool(part) == bool(value)


@pytest.mark.slow
def test_files_with_the_marker_need_no_tensorflow():
    """They are the only ones that `-m gpu` imports."""
    texts = {path: path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    files = [path.relative_to(ROOT) for path, text in texts.items() if "mark." + "gpu" in text]
    assert len(files) > 20
    code = "import sys, importlib; sys.modules['tensorflow'] = sys.modules['seqio'] = None\n"
    code += f"for name in {['.'.join(path.with_suffix('').parts) for path in files]}: importlib.import_module(name)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_tolerances_of_a_device():
    assert doctest.testmod(tolerances) == (0, 1)
    x = np.linspace(-4, 4, 9, dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        tolerances.widen(patch)
        np.testing.assert_allclose(x + 4 * 1.9e-3, x, atol=1e-6)
        np.testing.assert_allclose(x * 1.0019, x, rtol=1e-6)
        np.testing.assert_allclose(x + 0.5, x, atol=1)  # a wider one of a test's own holds
        np.testing.assert_allclose((x * 1.019).astype(np.float16), x.astype(np.float16))
        near, exact = 1.0019, pytest.approx(1)
        assert near == exact and near + 1e-3 != exact and [near] == pytest.approx([1], abs=1e-9)
        assert near + 0.09 == pytest.approx(1, rel=0.1)
        for wrong in (x + 4 * 4.1e-3, x * 1.005, np.where(x == 0, np.nan, x)):
            with pytest.raises(AssertionError):
                np.testing.assert_allclose(wrong, x, atol=1e-6)
        with pytest.raises(AssertionError):
            np.testing.assert_array_equal(x * 1.0001, x)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(x * 1.0019, x, rtol=1e-6)
