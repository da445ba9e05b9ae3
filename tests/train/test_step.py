"""One step is the same for any accumulation and any mesh, and what is large is really sharded."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpt.errors import UserError
from jaxpt.train import optimizers, state, step
from tests import families, grids

MESHES = {
    "tensor4": (1, 1, 4),
    "data2xfsdp2xtensor2": (2, 2, 2),
    "sequence2": (1, 1, 1, 2),
    "fsdp2xtensor2xsequence2": (1, 2, 2, 2),
    "data2xtensor2xsequence2": (2, 1, 2, 2),
}
# Data and fsdp alone, tensor4 and a step without accumulation: test_several_processes.py.
CASES = [
    ("t5", "fsdp2xtensor2xsequence2"), ("t5", "sequence2"), ("t5", "data2xfsdp2xtensor2"), ("bert", "tensor4"),
    ("bert", "data2xtensor2xsequence2"), ("gpt2", "data2xfsdp2xtensor2"), ("olmo", "data2xfsdp2xtensor2"),
]  # fmt: skip
STAGES = {"gpt2": (1, 1, 1, 1, 2), "t5": (1, 2, 2, 1, 2), "gemma": (1, 2, 2, 1, 2)}
# The gradient of a key projection's bias is zero in exact arithmetic (it shifts all scores of a row alike): what is
# left is rounding, compared absolutely against the largest gradient of all.
ZERO_GRADIENTS = ("key/bias",)


def setup_for(family, mesh=(1, 1, 1), accumulation=1, dropout=0.0):
    """A setup with plain SGD, whose momentum (decay 0) is the gradient itself."""
    sizes = dict(zip(("data", "fsdp", "tensor", "context", "pipeline"), mesh))
    train = {"grad_accum_steps": accumulation, "layer_norms": family == "bert"}
    config = families.config(
        family, mesh=sizes, train=train, model={"dropout": dropout}, optimizer={"schedule": {"kind": "linear"}}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers, "make", lambda *_: optax.sgd(0.1, momentum=0.0))
        return state.setup(config, jax.devices()[: int(np.prod(mesh))])


@functools.cache
def train_step(family, mesh=(1, 1, 1), accumulation=1, dropout=0.0):
    setup = setup_for(family, mesh, accumulation, dropout)
    return setup, step.make_train_step(setup, setup.config.objective)


@functools.cache
def one_step(family, mesh=(1, 1, 1), accumulation=1, dropout=0.0):
    """Loss figures, gradients and parameters after one step."""
    setup, update = train_step(family, mesh, accumulation, dropout)
    with setup.use():
        after, losses = update(families.begin(setup), step.put(families.batch(setup.config), setup))
    (momentum,) = [s for s in jax.tree.leaves(after.opt_state, is_leaf=lambda x: isinstance(x, optax.TraceState)) if s]
    return losses, momentum.trace, after.params


def assert_equal_steps(got, wanted):
    (losses, grads, params), (losses_0, grads_0, params_0) = jax.device_get((got, wanted))
    for name in losses_0:
        if "_norm/" in name:  # of each array: the gradients themselves are compared below
            continue
        np.testing.assert_allclose(losses[name], losses_0[name], rtol=1e-5, atol=1e-7, err_msg=name)
    largest = max(np.abs(g).max() for g in jax.tree.leaves(grads_0))
    for (path, g_0), g in zip(jax.tree_util.tree_leaves_with_path(grads_0), jax.tree.leaves(grads)):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        scale = largest if name.endswith(ZERO_GRADIENTS) else np.abs(g_0).max()
        np.testing.assert_allclose(g, g_0, rtol=0, atol=1e-5 * scale, err_msg=name)
    for p_0, p in zip(jax.tree.leaves(params_0), jax.tree.leaves(params)):
        np.testing.assert_allclose(p, p_0, rtol=0, atol=1e-5 * max(np.abs(p_0).max(), 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "accumulation"), grids.cases([("t5", 2), ("bert", 4)], ("t5", 2)))
def test_accumulation_changes_nothing(family, accumulation):
    assert_equal_steps(one_step(family, accumulation=accumulation), one_step(family))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "mesh"), grids.cases(CASES, CASES[0]))
def test_mesh_changes_nothing(family, mesh):
    """Dropout is on: what is drawn does not depend on the mesh."""
    assert_equal_steps(one_step(family, MESHES[mesh], 2, dropout=0.1), one_step(family, accumulation=2, dropout=0.1))


@pytest.mark.slow
def test_mesh_and_accumulation_together_change_nothing():
    assert_equal_steps(one_step("bert", MESHES["data2xtensor2xsequence2"], accumulation=4), one_step("bert"))


@pytest.mark.slow
@pytest.mark.parametrize("family", STAGES)
def test_stages_change_nothing(family):
    """The microbatches that stages work on are those of accumulation, with the same dropout."""
    assert_equal_steps(one_step(family, STAGES[family], 2, dropout=0.1), one_step(family, accumulation=2, dropout=0.1))


@pytest.mark.slow
def test_every_parameter_of_a_layer_lies_on_its_stage_alone():
    _, _, params = one_step("gpt2", STAGES["gpt2"], 2, dropout=0.1)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params["model"]["decoder"]):
        assert leaf.addressable_shards[0].data.shape[0] * 2 == leaf.shape[0] == 2, path
    table = params["model"]["token_embed"]["table"]
    assert table.addressable_shards[0].data.shape[0] * 2 == table.shape[0]


@pytest.mark.slow
def test_stages_evaluate_alike():
    found = []
    for mesh in ((1, 1, 1), STAGES["gpt2"]):
        setup = setup_for("t5", mesh, accumulation=2)
        evaluate = step.make_eval_step(setup, setup.config.objective)
        with setup.use():
            found.append(evaluate(families.begin(setup).params, step.put(families.batch(setup.config), setup), None)[0])
    one, two = jax.device_get(found)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), one, two)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "mesh"), grids.cases([CASES[0], CASES[5]], CASES[0]))
def test_every_matrix_and_its_gradient_are_sharded_over_all_but_the_data_axis(family, mesh):
    ways = int(np.prod(MESHES[mesh][1:]))
    _, grads, params = one_step(family, MESHES[mesh], 2, dropout=0.1)
    for path, leaf in jax.tree_util.tree_leaves_with_path({"gradient": grads, "parameter": params}):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if leaf.size >= 32 * 64:  # attention kernels and larger
            assert leaf.addressable_shards[0].data.size * ways == leaf.size, f"{name} is not split {ways} ways"


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
    rows = step.to_microbatches({"x": jnp.arange(8)}, 2)["x"]
    assert rows.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5", "bert"])
def test_a_step_that_is_not_finite_never_reaches_the_weights(family):
    setup, update = train_step(family)
    fresh, batch = jax.device_get(families.begin(setup)), families.batch(setup.config)
    poisoned = fresh.replace(params=jax.tree.map(lambda x: np.full_like(x, np.nan), fresh.params))
    with setup.use():
        after, metrics = update(families.placed(poisoned, setup), step.put(batch, setup))
        assert metrics["skipped"] == 1 and (after.step, after.skipped, after.skipped_total) == (1, 1, 1)
        # … and with sound weights but a batch whose weights are infinite
        weights = next(name for name in batch if name.endswith("weights"))
        batch[weights] = np.full_like(batch[weights], np.inf)
        after, metrics = update(families.placed(fresh, setup), step.put(batch, setup))
    assert metrics["skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(after.params), fresh.params)
    # The rate is that of the update: a skipped one leaves it as it was.
    assert metrics["learning_rate"] == setup.schedule(0) != setup.schedule(1)
    batch = step.put(families.batch(setup.config), setup)
    with setup.use():
        after, metrics = update(families.placed(jax.device_get(after), setup), batch)
        assert (after.step, metrics["learning_rate"]) == (2, setup.schedule(0))
        assert update(after, batch)[1]["learning_rate"] == setup.schedule(1)


@pytest.mark.slow
@pytest.mark.parametrize("family", families.FAMILIES)
def test_parts_are_divided_by_their_own_weights(family):
    """Twice the batch, the second copy without weight: the same loss."""
    setup = setup_for(family)
    batch = families.batch(setup.config)
    empty = {k: np.zeros_like(v) if k.endswith("weights") else v for k, v in batch.items()}
    double = {k: np.concatenate([batch[k], empty[k]]) for k in batch}
    params = families.begin(setup).params

    @jax.jit
    def figures(b):
        return setup.config.objective.loss(setup.network.bind(params), b)[0], setup.config.objective.weights(b)

    (once, weights), (twice, weights_twice) = figures(batch), figures(double)
    for name in once:
        np.testing.assert_allclose(
            once[name] / weights[name], twice[name] / weights_twice[name], rtol=2e-6, err_msg=name
        )


class Weighted:
    """The mean of the parameters, weighted by the batch."""

    kind = "weighted"

    def coefficients(self):
        return {"part": 1.0}

    def weights(self, batch):
        return {"part": batch["weights"].sum()}

    def loss(self, model, batch):
        return {"part": (model * batch["weights"]).sum()}, {}


@pytest.mark.parametrize(("weights", "mean"), [([0.1, 0.3], 1.75), ([1.0, 3.0], 1.75), ([0.0, 0.0], 0.0)])
def test_weights_below_one_are_divided_by_their_sum(weights, mean):
    """Class weights of 1 / classes; a batch without weight has no loss, and no gradient that is not finite."""
    network, batch = SimpleNamespace(bind=lambda params, rngs: params), {"weights": jnp.array(weights)}
    gradient, metrics, _ = step.gradients(Weighted(), network, jnp.array([1.0, 2.0]), batch, None)
    np.testing.assert_allclose(metrics["loss"], mean, rtol=1e-6)
    np.testing.assert_allclose(gradient.sum(), mean > 0, rtol=1e-6)


def test_batch_that_does_not_divide_is_refused():
    config = families.config("gpt2", mesh={"data": 8}, train={"grad_accum_steps": 2})
    with pytest.raises(UserError, match=r"data\.batch_size: 8 must divide by"):
        step.check(config, state.setup(config, jax.devices()[:8]))


def test_stages_without_a_microbatch_each_are_refused():
    config = families.config("gpt2", mesh={"data": 4, "pipeline": 2})
    with pytest.raises(UserError, match=r"train\.grad_accum_steps: 1 is below mesh\.pipeline: 2"):
        step.check(config, state.setup(config, jax.devices()[:8]))


def test_stages_of_layers_that_share_their_parameters_are_refused():
    albert = {**families.MODELS["bert"], "kind": "albert"}
    config = families.config("bert", model=albert, mesh={"data": 4, "pipeline": 2}, train={"grad_accum_steps": 2})
    with pytest.raises(UserError, match=r"mesh\.pipeline: 2: the layers of model\.kind: albert share"):
        step.check(config, state.setup(config, jax.devices()[:8]))


def test_layers_that_stages_do_not_divide_are_refused():
    mesh, train = {"data": 4, "pipeline": 2}, {"grad_accum_steps": 2}
    config = families.config("gpt2", model={"layers": 3}, mesh=mesh, train=train)
    with pytest.raises(UserError, match=r"mesh\.pipeline=2 does not divide its axis 'layers' of size 3"):
        state.setup(config, jax.devices()[:8])
    config = families.config("gemma", model={"layers": 5}, mesh=mesh, train=train)  # the pattern twice, then a layer
    with pytest.raises(UserError, match=r"segment_1/\S+: mesh\.pipeline=2 does not divide its axis 'layers' of size 1"):
        state.setup(config, jax.devices()[:8])


def test_a_model_of_another_family_is_refused():
    config = families.config("gpt2", model={**families.MODELS["bert"]})
    with pytest.raises(UserError, match=r"causal_lm requires a model of family decoder, but model\.kind: bert"):
        step.check(config, state.setup(config, jax.devices()[:1]))


def test_a_head_that_only_a_later_phase_has_is_refused():
    first = families.config("bert", objective={"next_sentence": False})
    later = families.config("bert")
    with pytest.raises(UserError, match=r"train\.phases: the first phase has no pooler, sentence_pair, which"):
        step.check(later, state.setup(first, jax.devices()[:1]))


def test_a_length_beyond_the_position_table_is_refused():
    config = families.config("bert", data={"length": 64})
    with pytest.raises(UserError, match=r"data\.length: 64 is beyond the position table .* 32 rows"):
        step.check(config, state.setup(config, jax.devices()[:1]))


@pytest.mark.slow
def test_layer_norms_have_an_entry_for_each_layer():
    metrics, gradients, _ = jax.device_get(one_step("bert"))
    norms = {k: v for k, v in metrics.items() if k.startswith("update_norm/")}
    assert any(v.shape == (2,) for v in norms.values()) and all(np.isfinite(v).all() for v in norms.values())
    path = "model/encoder/segment_0/block_0/feed_forward/up/kernel"
    for what, scale in (("gradient", 1.0), ("update", 0.1)):
        layers = np.asarray(functools.reduce(lambda tree, name: tree[name], path.split("/"), gradients))
        wanted = scale * np.linalg.norm(layers.reshape(2, -1), axis=1)
        np.testing.assert_allclose(metrics[f"{what}_norm/{path}"], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "words"),
    [({"balance": "mixtral"}, r"balance: mixtral is a product"), ({"group_rows": 2}, r"cuts groups of model\.group_r")],
)
def test_microbatches_that_cut_groups_of_rows_are_refused(model, words):
    config = families.config("mixture", model=model, train={"grad_accum_steps": 2})
    with pytest.raises(UserError, match=words):
        step.check(config, state.setup(config, jax.devices()[:1]))
