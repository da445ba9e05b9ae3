import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from jaxpt.parallel import compiler
from tests import grids


def test_options_are_accepted_and_change_no_result():
    x = np.random.default_rng(0).standard_normal((8, 16, 16)).astype("f4")
    lowered = jax.jit(lambda x: (x @ x).sum(0)).lower(x)
    with_options = lowered.compile(compiler_options=compiler.options())(x)
    np.testing.assert_allclose(with_options, lowered.compile()(x), rtol=1e-5, atol=1e-5)


def test_a_vmap_of_gradients_equals_the_gradients_one_by_one():
    """With jaxlib 0.10's own options it does not: 2.8 apart where the largest is 5."""
    rng = np.random.default_rng(0)
    x_BxLxD, table_VxD = rng.normal(size=(12, 32, 32)).astype("f4"), rng.normal(size=(300, 32)).astype("f4")
    targets_BxL = rng.integers(0, 300, (12, 32))

    def loss(delta, weights_BxL):
        y = x_BxLxD + delta
        y -= y.mean(-1, keepdims=True)
        y *= jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
        logits = y @ table_VxD.T
        gold = jnp.take_along_axis(logits, targets_BxL[..., None], -1)[..., 0]
        return ((jax.nn.logsumexp(logits, -1) - gold) * weights_BxL).sum()

    weights = np.eye(32, dtype="f4")[::3][:, None] * (rng.random((12, 32)) < 0.7)
    gradient = jax.grad(loss)
    together = compiler.jit(jax.vmap(lambda w: gradient(jnp.zeros_like(x_BxLxD), w)))(weights)
    alone = compiler.jit(lambda w: gradient(jnp.zeros_like(x_BxLxD), w))
    for got, one in zip(together, weights, strict=True):
        np.testing.assert_allclose(got, alone(one), atol=1e-5)


def test_an_option_that_is_not_known_is_an_error_not_left_out(monkeypatch):
    """Leaving out the option that guards the numbers would train other weights without a word."""
    monkeypatch.setitem(compiler.CPU, "xla_no_such_option", True)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        compiler.jit(lambda x: x + 1)(jnp.zeros(3))


def test_deterministic_sets_an_option_that_xla_knows_on_gpus_alone(monkeypatch):
    usual = compiler.options()
    with compiler.deterministic(True):
        assert compiler.options() == usual
        monkeypatch.setattr(compiler, "platform", lambda: "gpu")
        assert compiler.options() == compiler.DETERMINISTIC
        with compiler.deterministic(False):
            assert not compiler.options()
        assert compiler.is_deterministic()
    assert not compiler.is_deterministic() and not compiler.options()
    monkeypatch.undo()
    jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options=compiler.DETERMINISTIC)


def test_each_platform_has_its_options_and_a_recipe_changes_them(monkeypatch):
    for platform, options in (("tpu", compiler.TPU), ("cpu", compiler.CPU), ("gpu", {})):
        monkeypatch.setattr(compiler, "platform", lambda name=platform: name)
        assert compiler.options() == options
    monkeypatch.undo()
    ours = compiler.options()
    assert compiler.options(["xla_dump_max_hlo_modules=3", "xla_embed_ir_in_executable=false"]) == {
        **ours, "xla_dump_max_hlo_modules": 3, "xla_embed_ir_in_executable": False,
    }  # fmt: skip
    assert compiler.options([f"!{name}" for name in ours]) == {}


def test_the_device_is_that_of_the_mesh_in_use():
    """It need not be here."""
    assert (compiler.platform(), compiler.device_kind()) == (jax.default_backend(), jax.devices()[0].device_kind)
    device = AbstractDevice("TPU v5 lite", None, "tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((4,), ("data",), (AxisType.Auto,), abstract_device=device)):
        assert (compiler.platform(), compiler.device_kind()) == ("tpu", "TPU v5 lite")
        assert compiler.options() == compiler.TPU


@pytest.fixture
def no_cache():
    """JAX's settings of a process that keeps no programs yet; afterwards they are those of the tests."""
    names = "jax_compilation_cache_dir", "jax_compilation_cache_max_size", "jax_persistent_cache_min_compile_time_secs"
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_without_a_home_that_can_be_written_programs_are_not_kept(no_cache, monkeypatch, tmp_path):
    """It is no error: they are compiled at every start."""
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "deep"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(home))
        assert compiler.enable_compilation_cache() is None
        assert jax.config.jax_compilation_cache_dir is None


PROGRAM = """
import jax
from jaxpt.parallel import compiler
print(compiler.enable_compilation_cache())
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: x + 41)(1)
"""


def kept(tmp_path, **settings):
    """What a new process prints, and the files that it leaves in tmp_path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")} | {"JAX_PLATFORMS": "cpu"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "home"), "PYTHONPATH": os.getcwd()} | settings
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), {path.parent for path in tmp_path.rglob("*-cache")}


@pytest.mark.slow
def test_programs_are_kept_where_the_user_says(tmp_path):
    ours, theirs = tmp_path / "home" / "jaxpt" / "compiled", tmp_path / "theirs"
    assert kept(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false") == ("None", set())
    assert kept(tmp_path, JAX_COMPILATION_CACHE_DIR=str(theirs)) == (str(theirs), {theirs})
    assert kept(tmp_path) == (str(ours), {ours, theirs})


@pytest.mark.parametrize(
    "imports", grids.cases(["jax", "jaxpt.parallel.compiler", "jaxpt.train.state"], "jaxpt.parallel.compiler")
)
def test_on_a_cpu_a_computation_ends_before_the_next_is_begun(imports):
    source = f"""
import {imports}
import jax, jax.numpy as jnp
x = jnp.ones((512, 512))
slow = jax.jit(lambda x: jax.lax.fori_loop(0, 16, lambda _, y: x @ y, x)).lower(x).compile()
print([slow(x).is_ready() for _ in range(3)])
"""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}  # one device
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout == f"{[imports != 'jax'] * 3}\n"
