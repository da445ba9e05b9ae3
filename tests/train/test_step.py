"""One step is the same for any accumulation and any mesh, and what is large is really sharded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpt.errors import UserError
from jaxpt.parallel import mesh as meshes
from jaxpt.train import optimizers, state, step
from tests import families

MESHES = {
    "data2": (2, 1, 1),
    "tensor2": (1, 1, 2),
    "fsdp4": (1, 4, 1),
    "data2xtensor2": (2, 1, 2),
    "data2xfsdp2xtensor2": (2, 2, 2),
    "fsdp8": (1, 8, 1),
}
# The gradient of a key projection's bias is zero in exact arithmetic (it shifts all scores of a row alike): what is
# left is rounding, compared absolutely against the largest gradient of all.
ZERO_GRADIENTS = ("key/bias",)


def setup_for(family, mesh=(1, 1, 1), accumulation=1):
    sizes = dict(zip(meshes.AXES, mesh))
    config = families.config(
        family, mesh=sizes, train={"accumulation": accumulation}, optimizer={"kind": "sgd", "learning_rate": 0.1}
    )
    return state.setup(config, jax.devices()[: int(np.prod(mesh))])


def one_step(family, mesh=(1, 1, 1), accumulation=1):
    """Loss figures, gradients and parameters after one step of SGD, whose momentum (decay 0) is the gradient itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers, "make", lambda *_: optax.sgd(0.1, momentum=0.0))
        setup = setup_for(family, mesh, accumulation)
    with meshes.use(setup.mesh):
        batch = step.put(families.batch(setup.config), setup)
        after, losses = step.make_train_step(setup, setup.config.objective)(setup.init(), batch)
    (momentum,) = [s for s in jax.tree.leaves(after.opt_state, is_leaf=lambda x: isinstance(x, optax.TraceState)) if s]
    return jax.device_get((losses, momentum.trace, after.params))


@functools.cache
def reference(family):
    return one_step(family)


def assert_equal_steps(got, wanted):
    (losses, grads, params), (losses_0, grads_0, params_0) = got, wanted
    for name in losses_0:
        np.testing.assert_allclose(losses[name], losses_0[name], rtol=1e-5, atol=1e-7, err_msg=name)
    largest = max(np.abs(g).max() for g in jax.tree.leaves(grads_0))
    for (path, g_0), g in zip(jax.tree_util.tree_leaves_with_path(grads_0), jax.tree.leaves(grads)):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        scale = largest if name.endswith(ZERO_GRADIENTS) else np.abs(g_0).max()
        np.testing.assert_allclose(g, g_0, rtol=0, atol=1e-5 * scale, err_msg=name)
    for p_0, p in zip(jax.tree.leaves(params_0), jax.tree.leaves(params)):
        np.testing.assert_allclose(p, p_0, rtol=0, atol=1e-5 * max(np.abs(p_0).max(), 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulation_changes_nothing(family, accumulation):
    assert_equal_steps(one_step(family, accumulation=accumulation), reference(family))


@pytest.mark.slow
@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("mesh", MESHES)
def test_mesh_changes_nothing(family, mesh):
    assert_equal_steps(one_step(family, MESHES[mesh]), reference(family))


@pytest.mark.slow
def test_mesh_and_accumulation_together_change_nothing():
    assert_equal_steps(one_step("bert", (2, 1, 2), accumulation=2), reference("bert"))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_matrix_is_sharded_over_fsdp_and_tensor(family):
    setup = setup_for(family, (2, 2, 2))
    params = setup.init().params
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if leaf.size >= 32 * 64:  # attention kernels and larger
            assert leaf.addressable_shards[0].data.size * 4 == leaf.size, f"{name} is not split four ways"


@pytest.mark.parametrize("family", families.FAMILIES)
def test_optimizer_state_is_sharded_like_the_parameters(family):
    config = families.config(family, mesh={"data": 2, "fsdp": 2, "tensor": 2})
    setup = state.setup(config, jax.devices()[:8])
    whole, part = state.size(setup.shapes.opt_state), state.per_device_size(setup) - _params_part(setup)
    assert part < 0.35 * whole


def _params_part(setup):
    sizes = jax.tree.map(lambda s, p: np.prod(p.shard_shape(s.shape)) * 4, setup.shapes.params, setup.shardings.params)
    return sum(jax.tree.leaves(sizes))


def test_split_keeps_neighbouring_rows_apart_and_loses_none():
    rows = step.split({"x": jnp.arange(8)}, 2)["x"]
    assert rows.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.slow
@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_step_that_is_not_finite_never_reaches_the_weights(family):
    setup = setup_for(family)
    before = setup.init()
    poisoned = setup.init().replace(params=jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), before.params))
    kept = jax.device_get(before.params)
    train_step = step.make_train_step(setup, setup.config.objective)
    batch = families.batch(setup.config)
    with meshes.use(setup.mesh):
        after, metrics = train_step(poisoned, step.put(batch, setup))
        assert metrics["skipped"] == 1 and after.step == 1
        # … and with sound weights but a batch whose weights are infinite
        weights = next(name for name in batch if name.endswith("weights"))
        batch[weights] = np.full_like(batch[weights], np.inf)
        after, metrics = train_step(before, step.put(batch, setup))
    assert metrics["skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(after.params), kept)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_parts_are_divided_by_their_own_weights(family):
    """Twice the batch, the second copy without weight: the same loss."""
    setup = setup_for(family)
    batch = families.batch(setup.config)
    empty = {k: np.zeros_like(v) if k.endswith("weights") else v for k, v in batch.items()}
    double = {k: np.concatenate([batch[k], empty[k]]) for k in batch}
    params = setup.init().params

    @jax.jit
    def figures(b):
        return setup.config.objective.loss(setup.model, params, b)[0], setup.config.objective.weights(b)

    (once, weights), (twice, weights_twice) = figures(batch), figures(double)
    for name in once:
        np.testing.assert_allclose(
            once[name] / weights[name], twice[name] / weights_twice[name], rtol=2e-6, err_msg=name
        )


def test_batch_that_does_not_divide_is_refused():
    config = families.config("gpt2", mesh={"data": 8}, train={"accumulation": 2})
    with pytest.raises(UserError, match=r"data\.batch_size: 8 must divide by"):
        step.check(config, state.setup(config, jax.devices()[:8]))


def test_a_model_of_another_family_is_refused():
    config = families.config("gpt2", model={**families.MODELS["bert"]})
    with pytest.raises(UserError, match=r"causal_lm needs a model of the family decoder, model\.kind: bert"):
        step.check(config, state.setup(config, jax.devices()[:1]))


def test_a_length_beyond_the_position_table_is_refused():
    config = families.config("bert", data={"length": 64})
    with pytest.raises(UserError, match=r"data\.length: 64 is beyond the position table .* 32 rows"):
        step.check(config, state.setup(config, jax.devices()[:1]))


@pytest.mark.slow
def test_layer_norms_have_an_entry_for_each_layer():
    config = families.config("bert", train={"layer_norms": True}, mesh={"data": 1})
    setup = state.setup(config, jax.devices()[:1])
    with meshes.use(setup.mesh):
        batch = step.put(families.batch(config), setup)
        _, metrics = step.make_train_step(setup, config.objective)(setup.init(), batch)
    norms = {k: v for k, v in metrics.items() if k.startswith("update_norm/")}
    assert any(v.shape == (2,) for v in norms.values()) and all(np.isfinite(v).all() for v in norms.values())
