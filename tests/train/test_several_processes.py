"""A step on several processes is the step on one: losses, gradients, dropout. Real processes on loopback."""

import functools

import jax
import numpy as np
import optax
import pytest

from jaxpt.config import DistributedConfig
from jaxpt.parallel import distributed, processes, rules
from jaxpt.train import optimizers, state, step
from tests import families, grids
from tests.processes import run
from tests.train.test_step import assert_equal_steps

# Devices are numbered process by process: the axis that goes over processes is the outermost that is cut. Data, fsdp
# and tensor together over four processes: test_elastic.py.
WORLDS = {
    "2 processes": (2, 2, {"t5": {"tensor": 4}, "llama": {"pipeline": 2, "tensor": 2}, "bert": {"fsdp": 4}}),
    "2 processes, recurrent": (2, 2, {"awd_lstm": {"data": 2, "tensor": 2}}),
    "4 processes": (4, 2, {"bert": {"data": 2, "fsdp": 4}}),
}


def one_step(family, mesh, devices=None):
    """Loss figures, gradients and parameters after a step with dropout, as NumPy, and the share each device holds."""
    config = families.config(
        family, model={"dropout": 0.1} if family in ("t5", "bert") else {}, mesh={"data": 1, **mesh},
        train={"grad_accum_steps": mesh.get("pipeline", 1)},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers, "make", lambda *_: optax.sgd(0.1, momentum=0.0))
        setup = state.setup(config, devices)
    rows = distributed.rows(setup.mesh, config.data.batch_size)
    batch = {name: x[rows] for name, x in families.batch(config).items()}
    update = step.make_train_step(setup, config.objective)
    with setup.use():
        after, losses = update(families.begin(setup), step.put(batch, setup))
    (momentum,) = [s for s in jax.tree.leaves(after.opt_state, is_leaf=lambda x: isinstance(x, optax.TraceState)) if s]
    results = losses, momentum.trace, after.params
    shares = [x.addressable_shards[0].data.size / x.size for x in jax.tree.leaves(after.params) if x.size >= 32 * 64]
    together = jax.jit(lambda x: x, out_shardings=rules.replicated(setup.mesh))
    return jax.tree.map(distributed.to_host, together(results)), shares


def process(number, cases, folder):
    processes.start(DistributedConfig())
    for family, mesh in cases.items():
        results, shares = one_step(family, mesh)
        ways = int(np.prod([size for axis, size in mesh.items() if axis != "data"]))
        assert max(shares) <= 1 / ways, f"{family}: a matrix is not cut {ways} ways"
        if number == 0:
            np.savez(folder / f"{family}.npz", *jax.tree.leaves(results))


@functools.cache
def alone(family):
    """The same step on one device."""
    return one_step(family, {}, jax.devices()[:1])[0]


@pytest.mark.slow
@pytest.mark.parametrize("world", grids.cases(WORLDS, "2 processes", "2 processes, recurrent"))
def test_processes_change_nothing(world, tmp_path):
    count, devices, cases = WORLDS[world]
    codes, logs = run(process, count, devices, tmp_path / "run", cases, tmp_path)
    assert codes == [0] * count, logs
    for family in cases:
        wanted = alone(family)
        with np.load(tmp_path / f"{family}.npz") as file:
            got = jax.tree.unflatten(jax.tree.structure(wanted), [file[name] for name in file.files])
        assert_equal_steps(got, wanted)
