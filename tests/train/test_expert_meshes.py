"""Mixtures of experts on meshes with an axis `expert`: loss, gradients and auxiliary losses are those of one device."""

import functools
import math

import jax
import numpy as np
import optax
import pytest

from jaxpt.train import checkpoint, optimizers, state, step
from tests import families, grids
from tests.models.helpers import drawn
from tests.runs import assert_bit_equal
from tests.train.test_step import assert_equal_steps

pytestmark = pytest.mark.slow
MESHES = {
    "alone": {"data": 1},
    "data2xexpert4": {"data": 2, "expert": 4},
    "fsdp2xexpert2xtensor2": {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2},
    "expert2xcontext2": {"data": 1, "expert": 2, "context": 2},
    "pipeline2xexpert2": {"data": 1, "pipeline": 2, "expert": 2},
    "data2xfsdp2": {"data": 2, "fsdp": 2},
    "expert2": {"data": 1, "expert": 2},
    "fsdp4": {"data": 1, "fsdp": 4},
    "fsdp4xexpert2": {"data": 1, "fsdp": 4, "expert": 2},
}
CAPACITY = {"capacity_factor": 0.75, "min_capacity": 1}
CASES = [
    ("data2xexpert4", True, "gathered"), ("data2xexpert4", False, "ragged"), ("data2xexpert4", False, "gathered"),
    *((mesh, False, way) for mesh in ("fsdp2xexpert2xtensor2", "expert2xcontext2", "pipeline2xexpert2")
      for way in ("gathered", "ragged")),
    ("data2xfsdp2", False, "gathered"),
]  # fmt: skip


def setup_for(mesh, accumulation=1, **model):
    """A setup with plain SGD, whose momentum (decay 0) is the gradient itself."""
    sizes, train = MESHES[mesh], {"grad_accum_steps": accumulation}
    config = families.config("mixture", mesh=sizes, train=train, model={"dropout": 0.1, "router_jitter": 0.05} | model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers, "make", lambda *_: optax.sgd(0.1, momentum=0.0))
        return state.setup(config, jax.devices()[: math.prod(sizes.values())])


def one_step(mesh, accumulation=1, **model):
    """Loss figures, gradients and parameters after one step with dropout and jitter."""
    setup = setup_for(mesh, accumulation, **model)
    update = step.make_train_step(setup, setup.config.objective)
    with setup.use():
        after, losses = update(families.begin(setup), step.put(families.batch(setup.config), setup))
    (momentum,) = [s for s in jax.tree.leaves(after.opt_state, is_leaf=lambda x: isinstance(x, optax.TraceState)) if s]
    return losses, momentum.trace, after.params


@pytest.mark.parametrize(("mesh", "has_capacity", "way"), grids.cases(CASES, *CASES[:2]))
def test_a_mesh_changes_nothing(mesh, has_capacity, way):
    options = (CAPACITY if has_capacity else {}) | ({"layers": 4} if "pipeline" in mesh else {}) | {"exchange": way}
    accumulation = 2 if "pipeline" in mesh else 1
    found = one_step(mesh, accumulation, **options)
    assert {"router_balance", "router_z"} <= set(found[0])
    assert_equal_steps(found, one_step("alone", accumulation, **options))
    (kernel,) = [x for path, x in jax.tree_util.tree_leaves_with_path(found[2]) if x.ndim == 4 and path[-2].key == "up"]
    assert kernel.addressable_shards[0].data.shape[1] * MESHES[mesh].get("expert", 1) == kernel.shape[1] == 8


def test_microbatches_have_the_same_auxiliary_losses():
    """Of groups of one row, which no microbatch cuts."""
    config = families.config("mixture")
    network, batch = families.network(config), families.batch(config)
    params = drawn(network)
    found = functools.partial(step.gradients, config.objective, network)
    one, several = (jax.jit(functools.partial(found, accumulation=n))(params, batch, None) for n in (1, 4))
    assert one[1]["router_balance"] > 0.09  # 0.1 of balance
    assert_equal_steps((several[1], several[0], params), (one[1], one[0], params))


def trained_on(setup, after):
    """Losses of three more steps on one batch."""
    update, batch = step.make_train_step(setup, setup.config.objective), families.batch(setup.config)
    losses = []
    with setup.use():
        for _ in range(3):
            after, metrics = update(after, step.put(batch, setup))
            losses.append(float(metrics["loss"]))
    return losses


def test_a_checkpoint_of_one_mesh_is_resumed_on_another(tmp_path):
    losses, saved = [], setup_for("data2xexpert4")
    checkpoints = checkpoint.Checkpoints(tmp_path, saved.config.checkpoint)
    before = families.begin(saved)
    with saved.use():
        checkpoints.save(before, {})
    checkpoints.close()
    checkpoints = checkpoint.Checkpoints(tmp_path, saved.config.checkpoint, read_only=True)
    for mesh in ("expert2", "fsdp4", "fsdp4xexpert2", "alone"):
        setup = setup_for(mesh)
        after = checkpoints.restore(setup, 0)
        assert_bit_equal(jax.device_get(after), jax.device_get(before))
        jax.tree.map(lambda x, wanted: np.testing.assert_(x.sharding == wanted), after.params, setup.shardings.params)
        if mesh in ("fsdp4xexpert2", "alone"):
            losses.append(trained_on(setup, after))
    checkpoints.close()
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][0] > losses[0][-1]
