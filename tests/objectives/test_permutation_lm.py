"""Permutation LM: what its loss sees, where it falls, what goes from batch to batch, and what is refused."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.layers import Embed
from jaxpt.objectives.permutation_lm import PermutationLM
from jaxpt.parallel import mesh as meshes
from jaxpt.train import state, step
from tests import families
from tests.models.helpers import drawn

LENGTH, REUSE, MEMORY, ROWS, SIZE = 16, 8, 6, 4, 50
VOCABULARY = Vocabulary(size=SIZE, cls=1, sep=2)


@pytest.mark.parametrize("inputs", ["pairs", "windows"])
def test_documents_end_with_eod_or_else_with_eos(inputs):
    """XLNet's data_utils.py, `use_eod`."""
    for ids, separator in (({"eos": 3, "eod": 7}, 7), ({"eos": 3}, 3), ({}, None)):
        vocabulary = Vocabulary(size=SIZE, cls=1, sep=2, **ids)
        _, call, *_ = PermutationLM(inputs=inputs).data_spec(64).transforms(vocabulary, 0).offline
        assert call.kwargs["separator"] == separator


def recipe(objective=None, **model):
    sizes = {
        "kind": "xlnet", "vocab_size": SIZE, "layers": 2, "embed_dim": 16, "heads": 2, "mlp_dim": 32,
        "dtype": "float32", "memory_length": MEMORY, "reuse_length": REUSE,
    }  # fmt: skip
    return configs.build(
        {
            "model": sizes | model,
            "objective": {"kind": "permutation_lm", "num_predict": 6, **(objective or {})},
            "data": {"tokenizer": {"kind": "wordpiece"}, "length": LENGTH, "batch_size": ROWS},
            "optimizer": {"kind": "sgd", "learning_rate": 0.1},
            "mesh": {"data": 1},
        }
    )


def batch(seed=0):
    """Random rows whose two zones have 3 targets each, of random ranks; the last target of every row has no weight."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3, SIZE, (ROWS, LENGTH))
    ranks, at = np.repeat([[-1, REUSE]], REUSE, axis=1).repeat(ROWS, 0), []
    for row in ranks:
        for first in (0, REUSE):
            chosen = np.sort(first + rng.permutation(REUSE)[:3])
            row[chosen] = first + first // REUSE + rng.permutation(REUSE)[:3]
            at.append(chosen)
    at = np.concatenate(at).reshape(ROWS, 6)
    weights = np.ones((ROWS, 6))
    weights[:, -1] = 0
    return {
        "encoder_input_tokens": tokens.astype(np.int32),
        "encoder_token_types": np.tile(np.arange(LENGTH) >= 12, (ROWS, 1)).astype(np.int32),
        "encoder_segment_ids": np.ones((ROWS, LENGTH), np.int32),
        "encoder_order": ranks.astype(np.int32),
        "masked_positions": at.astype(np.int32),
        "masked_targets": np.take_along_axis(tokens, at, axis=1).astype(np.int32),
        "masked_weights": weights.astype(np.float32),
    }


@functools.cache
def made():
    config = recipe()
    network = families.network(config)
    return config, network, drawn(network)


@functools.cache
def carried(seed=3):
    config, network, _ = made()
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(x.dtype), config.objective.carry_shapes(network, ROWS)
    )  # fmt: skip


def test_features_are_as_declared():
    config, *_ = made()
    declared = config.objective.data_spec(LENGTH).features
    assert {n: (x.shape[1:], x.dtype.name) for n, x in batch().items()} == declared
    of_xlnet = PermutationLM()
    assert (of_xlnet.predictions(512), of_xlnet.reused(512), of_xlnet.permuted(512)) == (85, 256, 256)


@pytest.mark.slow
def test_a_target_sees_lower_ranks_alone():
    """Gradient of each target's loss by each token's embedding: exactly zero but at the tokens of lower rank."""
    config, network, params = made()
    rows, carry = batch(), carried()

    def loss(delta_LxD, weights):
        def shift(call, args, kwargs, context):
            out = call(*args, **kwargs)
            looked_up = isinstance(context.module, Embed) and context.method_name == "__call__"
            return out + delta_LxD if looked_up else out

        with nn.intercept_methods(shift):
            sums, *_ = config.objective.loss(network.bind(params), rows | {"masked_weights": weights}, carry=carry)
        return sums["permutation_lm"]

    one_at_a_time = jnp.eye(6)[:, None, :] * jnp.eye(ROWS)[0][:, None]  # of row 0
    gradient = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(jnp.zeros((LENGTH, 16)), one_at_a_time)
    ranks, at = rows["encoder_order"][0], rows["masked_positions"][0]
    np.testing.assert_array_equal(np.abs(gradient).sum(-1) > 0, ranks[None] < ranks[at][:, None])


@pytest.mark.slow
def test_loss_falls_on_the_weighted_targets_and_memory_gets_no_gradient():
    config, network, params = made()
    rows, carry = batch(), carried()

    def run(params, carry):
        sums, metrics, after = config.objective.loss(network.bind(params), rows, carry=carry)
        return sums["permutation_lm"], (metrics, after)

    (total, (metrics, after)), gradients = jax.jit(jax.value_and_grad(run, has_aux=True))(params, carry)
    memory = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), carry)

    @jax.jit
    def read(params, memory):
        bound = network.bind(params)
        output = bound.streams(
            rows["encoder_input_tokens"], token_types=rows["encoder_token_types"], ranks=rows["encoder_order"],
            targets=rows["masked_positions"], memory=memory,
        )  # fmt: skip
        return output.memory, jax.nn.log_softmax(bound.logits(output.hidden.query_BxPxD))

    kept, scores = read(params, memory)
    said = -np.take_along_axis(np.asarray(scores), rows["masked_targets"][..., None], -1)[..., 0]
    np.testing.assert_allclose(total, said[:, :-1].sum(), rtol=1e-5)
    assert float(config.objective.weights(rows)["permutation_lm"]) == ROWS * 5
    assert float(metrics["token_loss"][1]) == ROWS * 5
    assert all(float(jnp.abs(g).max()) > 0 for g in jax.tree.leaves(gradients))
    # What goes on: of each layer the last 6 of old memory and the first 8 tokens; nothing passes back through it.
    for new, theirs, old in zip(*map(jax.tree.leaves, (after, kept, carry)), strict=True):
        assert new.shape == old.shape == (ROWS, 2, MEMORY, 16)
        np.testing.assert_allclose(new, theirs.swapaxes(0, 1), rtol=1e-5, atol=1e-6)
    of_memory = jax.jit(jax.grad(lambda p: sum(x.sum() for x in jax.tree.leaves(run(p, carry)[1][1]))))(params)
    assert not any(g.any() for g in jax.tree.leaves(of_memory))


@pytest.mark.slow
def test_with_memory_equals_one_pass():
    """Running text and then a record that has it in memory, against both in one row."""
    _, _, params = made()
    config = recipe(memory_length=REUSE)
    network, rows, text = families.network(config), batch(1), batch(2)["encoder_input_tokens"][:, :REUSE]

    def before(x, value):
        return np.concatenate([np.full_like(text, value), x], axis=1)

    whole = rows | {
        "encoder_input_tokens": np.concatenate([text, rows["encoder_input_tokens"]], axis=1),
        "encoder_token_types": before(rows["encoder_token_types"], 0),
        "encoder_segment_ids": before(rows["encoder_segment_ids"], 1),
        "encoder_order": before(rows["encoder_order"] + 1, -1),
        "masked_positions": rows["masked_positions"] + REUSE,
    }

    @jax.jit
    def run():
        bound = network.bind(params)
        carry = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), bound.streams(text).memory)
        made = [config.objective.loss(bound, *x)[0] for x in ((rows, carry), (whole,), (rows,))]
        return [sums["permutation_lm"] for sums in made]

    total, in_one, without = run()
    np.testing.assert_allclose(total, in_one, rtol=1e-5)
    assert abs(float(total - without)) > 1e-3, "the memory is looked at"


@pytest.mark.slow
def test_accumulation_keeps_rows_with_their_carry():
    config, network, params = made()

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(accumulation):
        return step.gradients(config.objective, network, params, batch(), None, accumulation, carried())

    (grads, metrics, carry), whole = gradients(2), gradients(1)
    np.testing.assert_allclose(metrics["loss"], whole[1]["loss"], rtol=1e-5)
    for a, b in zip(*map(jax.tree.leaves, ((grads, carry), (whole[0], whole[2]))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * max(1, float(jnp.abs(b).max())))


@pytest.mark.slow
def test_a_step_hands_the_carry_on_and_one_that_is_not_finite_keeps_it():
    """On two devices: the carry's rows are where the batch's are."""
    config = recipe().model_copy(update={"mesh": configs.build(families.tree("bert", mesh={"data": 2})).mesh})
    setup = state.setup(config, jax.devices()[:2])
    _, network, params = made()
    with meshes.use(setup.mesh):
        update = step.make_train_step(setup, config.objective)
        start = setup.init()
        assert all(not x.any() and x.sharding.shard_shape(x.shape)[0] == 2 for x in jax.tree.leaves(start.carry))
        fresh = start.replace(params=jax.device_put(jax.device_get(params), setup.shardings.params, may_alias=False))
        after, _ = update(fresh, step.put(batch(), setup))
        kept = jax.device_get(after.carry)
        bad = batch() | {"masked_weights": np.full((ROWS, 6), np.inf, np.float32)}
        last, metrics = update(after, step.put(bad, setup))
    assert metrics["skipped"] == 1 and last.step == 2
    empty = jax.tree.map(np.zeros_like, kept)
    wanted = jax.jit(lambda params: config.objective.loss(network.bind(params), batch(), carry=empty)[2])(params)
    for a, b, c in zip(*map(jax.tree.leaves, (kept, wanted, jax.device_get(last.carry))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(a, c)


def test_check():
    config = recipe()
    config.objective.check(config.model, LENGTH, VOCABULARY)
    for message, objective, model, length in (
        ("num_predict: 14 is too large", {"num_predict": 14}, {}, LENGTH),
        ("reuse_length: 12 leaves no room", {"reuse_length": 12}, {}, LENGTH),
        ("permutation_size: 9 exceeds", {"permutation_size": 9}, {}, LENGTH),
        ("too short", {}, {}, 11),
        ("memory requires model.memory_length", {}, {"memory_length": None}, LENGTH),
        ("model.reuse_length: None must equal objective.reuse_length, 8", {}, {"reuse_length": None}, LENGTH),
        ("model.reuse_length: 8 must equal objective.reuse_length, 16", {}, {}, 32),
    ):
        config = recipe({"num_predict": None} | objective, **model)
        with pytest.raises(UserError, match=message):
            config.objective.check(config.model, length, VOCABULARY)
    without = recipe({"memory": False}, memory_length=None, reuse_length=None)
    without.objective.check(without.model, LENGTH, VOCABULARY)
    assert without.objective.carry_shapes(without.model.build(), ROWS) is None and not without.objective.carries
    bert = families.config("bert", objective={"kind": "permutation_lm"})
    with pytest.raises(UserError, match="bert has one stream"):
        bert.objective.check(bert.model, 32, VOCABULARY)
    with pytest.raises(UserError, match="bert has one stream"):
        state.setup(bert, jax.devices()[:1])
    with pytest.raises(UserError, match="SEP"):
        config.objective.check(config.model, LENGTH, Vocabulary(size=SIZE, cls=1))
    with pytest.raises(UserError, match="fills every row"):
        PermutationLM().data_spec(LENGTH).check_packing("permutation_lm")
