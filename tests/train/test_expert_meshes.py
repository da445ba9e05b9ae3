"""Mixtures of experts on meshes with an axis `expert`: loss, gradients and auxiliary losses are those of one device."""

import jax
import numpy as np
import optax
import pytest

from jaxpt.train import optimizers, state, step
from tests import families, grids
from tests.train.test_step import assert_equal_steps

MESHES = {
    "data2xexpert4": {"data": 2, "expert": 4},
    "fsdp2xexpert2xtensor2": {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2},
    "expert2xcontext2": {"data": 1, "expert": 2, "context": 2},
    "pipeline2xexpert2": {"data": 1, "pipeline": 2, "expert": 2},
    "data2xfsdp2": {"data": 2, "fsdp": 2},
}
CAPACITY = {"capacity_factor": 0.75, "min_capacity": 1}


def one_step(mesh=None, accumulation=1, **model):
    """Loss figures, gradients and parameters after one step of plain SGD, with dropout."""
    mesh = mesh or {"data": 1}
    train = {"grad_accum_steps": accumulation}
    config = families.config("mixture", mesh=mesh, train=train, model={"dropout": 0.1, "router_jitter": 0.05} | model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers, "make", lambda *_: optax.sgd(0.1, momentum=0.0))
        setup = state.setup(config, jax.devices()[: int(np.prod([*mesh.values()]))])
    update = step.make_train_step(setup, config.objective)
    with setup.use():
        after, losses = update(families.begin(setup), step.put(families.batch(config), setup))
    (momentum,) = [s for s in jax.tree.leaves(after.opt_state, is_leaf=lambda x: isinstance(x, optax.TraceState)) if s]
    return losses, momentum.trace, after.params


@pytest.fixture(scope="module")
def alone():
    """What one device computes, in one batch and in two microbatches; and with a capacity."""
    return {
        (1, False): one_step(), (2, False): one_step(accumulation=2), (1, True): one_step(**CAPACITY),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "capacity"),
    grids.cases(
        [*((name, False) for name in MESHES), ("data2xexpert4", True)],
        ("data2xexpert4", False), ("fsdp2xexpert2xtensor2", False), ("pipeline2xexpert2", False),
        ("data2xexpert4", True),
    ),
)  # fmt: skip
def test_a_mesh_changes_nothing(alone, mesh, capacity):
    accumulation = 2 if "pipeline" in mesh else 1
    found = one_step(MESHES[mesh], accumulation, **(CAPACITY if capacity else {}))
    assert {"router_balance", "router_z"} <= set(found[0])
    assert_equal_steps(found, alone[accumulation, capacity])
    kernel = found[2]["model"]["decoder"]["segment_0"]["block_1"]["feed_forward"]["up"]["kernel"]
    assert kernel.addressable_shards[0].data.shape[1] * MESHES[mesh].get("expert", 1) == kernel.shape[1] == 8


@pytest.mark.slow
def test_accumulation_changes_no_auxiliary_loss(alone):
    """Without dropout and jitter, which microbatches draw anew."""
    plain = {"dropout": 0.0, "router_jitter": 0.0}
    assert_equal_steps(one_step(accumulation=4, **plain), one_step(**plain))
