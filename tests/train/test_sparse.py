"""The step that changes rows: beside dense gradient descent and a count of AdaGrad, in place, on several processes."""

import functools
import re

import jax
import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.config import DistributedConfig
from jaxpt.errors import UserError
from jaxpt.objectives import rows
from jaxpt.parallel import distributed, processes, rules
from jaxpt.train import sparse, state, step
from tests import families
from tests.processes import run

V, D, T = 300, 8, 64
TABLES = (rows.TOKENS, rows.CONTEXTS)


def config(**sections):
    tree = {
        "model": {"kind": "word_vectors", "vocab_size": V, "embed_dim": D},
        "objective": {"kind": "skip_gram", "window": 2, "noise": 8},
        "data": {"tokenizer": {"kind": "words"}, "length": T, "batch_size": 4},
        "optimizer": {"kind": "sparse_sgd", "learning_rate": 0.1},
    }
    for name, section in sections.items():
        tree[name] = tree.get(name, {}) | section
    return configs.build(tree)


def batch_of(config, seed=0):
    batch = families.batch(config, seed)
    return batch | {"windows": 1 + batch["windows"] % config.objective.window}


@functools.cache
def stepped(config, steps=1, devices=1):
    """(tables before, tables after, metrics, state) of steps with the same batch."""
    setup = state.setup(config, jax.devices()[:devices])
    update = step.make_train_step(setup, config.objective)
    at = families.begin(setup, spread=0.5)
    at = at.replace(opt_state=jax.device_put(setup.optimizer.init(at.params), setup.shardings.opt_state))
    before = {path: np.array(at.params[path.split("/")[0]][path.split("/")[1]]["table"]) for path in TABLES}
    with setup.use():
        for _ in range(steps):
            at, metrics = update(at, step.put(batch_of(config), setup))
    after = {path: np.array(at.params[path.split("/")[0]][path.split("/")[1]]["table"]) for path in TABLES}
    return before, after, jax.device_get(metrics), at


@functools.cache
def dense_gradients():
    """Of the sum over the pairs, by the whole tables."""
    chosen = config()
    setup = state.setup(chosen, jax.devices()[:1])
    params, batch = families.begin(setup, spread=0.5).params, batch_of(chosen)
    loss = jax.jit(jax.grad(lambda p, b: chosen.objective.loss(setup.network.bind(p), b)[0]["skip_gram"]))
    with setup.use():
        grads = loss(params, batch)
    return {path: np.asarray(grads[path.split("/")[0]][path.split("/")[1]]["table"]) for path in TABLES}


@pytest.mark.parametrize(("devices", "accumulation"), [(1, 1), (1, 2), (4, 1)])
def test_one_update_is_that_of_dense_gradient_descent(devices, accumulation):
    before, after, metrics, at = stepped(config(train={"grad_accum_steps": accumulation}), devices=devices)
    for path, gradient in dense_gradients().items():
        np.testing.assert_allclose(after[path], before[path] - 0.1 * gradient, atol=2e-5)
    assert metrics["skipped"] == 0 and int(at.step) == 1 and 0 < metrics["loss"] < 10


@pytest.mark.gpu
def test_updates_of_a_step_follow_each_other():
    """Two updates of one step are two steps of half the batch each."""
    two = config(optimizer={"kind": "sparse_sgd", "updates": 2})
    setup = state.setup(two, jax.devices()[:1])
    _, after, metrics, _ = stepped(two)
    params = {path: x.copy() for path, x in stepped(two)[0].items()}
    examples, losses = two.objective.examples(batch_of(two)), []
    update = jax.jit(functools.partial(sparse.row_gradients, two.objective))
    with setup.use():
        for share in range(2):
            ids, grads, sums = update(params, jax.tree.map(lambda x, n=share: x[n::2], examples))
            losses.append(np.asarray(sums["skip_gram"]))
            for path in TABLES:
                np.add.at(params[path], ids[path], -0.1 * np.asarray(grads[path]))
    for path in TABLES:
        np.testing.assert_allclose(after[path], params[path], atol=2e-5)
    np.testing.assert_allclose(metrics["loss"], np.sum(losses, 0)[0] / np.sum(losses, 0)[1], rtol=1e-5)


@pytest.mark.gpu
def test_adagrad_divides_by_what_each_read_of_a_row_has_added():
    chosen = config(optimizer={"kind": "sparse_adagrad", "initial_sum": 0.5})
    before, after, _, at = stepped(chosen)
    setup = state.setup(chosen, jax.devices()[:1])
    with setup.use():
        ids, grads, _ = jax.jit(lambda t, b: sparse.row_gradients(chosen.objective, t, chosen.objective.examples(b)))(
            before, batch_of(chosen)
        )
    for path in TABLES:
        steps, sums, wanted = (
            0.1 * np.asarray(grads[path], np.float64),
            np.full(before[path].shape, 0.5),
            before[path] + 0.0,
        )
        np.add.at(sums, ids[path], steps**2)
        np.add.at(wanted, ids[path], -steps / np.sqrt(sums[ids[path]]))
        np.testing.assert_allclose(after[path], wanted, atol=2e-5)
        part, name, _ = path.split("/")
        np.testing.assert_allclose(at.opt_state[0].slots[part][name]["table"], sums, rtol=1e-4)


def test_a_step_copies_no_table():
    """Tables of half a gigabyte are changed in place: no copy of one, and no operation over a whole one."""
    large = config(model={"vocab_size": 1_000_000, "embed_dim": 128}, optimizer={"updates": 4})
    compiled = step.traced(state.setup(large, jax.devices()[:1]), large.objective).lower().compile()
    whole = re.findall(r"= f32\[1000064,128\]\S* (\w+)\(", compiled.as_text())
    assert set(whole) <= {"parameter", "get-tuple-element", "fusion", "scatter", "bitcast", "while", "call"}
    assert compiled.memory_analysis().temp_size_in_bytes < 64e6


@pytest.mark.gpu
def test_an_update_that_is_not_finite_adds_nothing():
    chosen = config(optimizer={"kind": "sparse_sgd", "updates": 2})
    setup = state.setup(chosen, jax.devices()[:1])
    at = families.begin(setup, spread=0.5)
    table = np.array(at.params["model"]["token_embed"]["table"])
    table[7] = np.inf
    batch = batch_of(chosen) | {"encoder_input_tokens": np.full((4, T), 7, np.int32)}
    with setup.use():
        placed = jax.device_put(table, at.params["model"]["token_embed"]["table"].sharding)
        before = np.array(at.params["heads"]["contexts"]["table"])
        at = at.replace(params=at.params | {"model": {"token_embed": {"table": placed}}})
        at, metrics = step.make_train_step(setup, chosen.objective)(at, step.put(batch, setup))
    assert metrics["skipped"] == 1 and int(at.skipped_total) == 1 and int(at.opt_state[0].schedule.count) == 0
    np.testing.assert_array_equal(at.params["heads"]["contexts"]["table"], before)
    np.testing.assert_array_equal(at.params["model"]["token_embed"]["table"], table)


def process(number, folder):
    processes.start(DistributedConfig())
    chosen = config(optimizer={"kind": "sparse_sgd", "updates": 2})
    setup = state.setup(chosen)
    mine = {name: x[distributed.rows(setup.mesh, 4)] for name, x in batch_of(chosen).items()}
    update = step.make_train_step(setup, chosen.objective)
    with setup.use():
        at, _ = update(families.begin(setup, spread=0.5), step.put(mine, setup))
    together = jax.jit(lambda x: x, out_shardings=rules.replicated(setup.mesh))(at.params)
    if number == 0:
        np.savez(folder / "params.npz", *map(distributed.to_host, jax.tree.leaves(together)))


@pytest.mark.slow
def test_two_processes_make_the_same_step(tmp_path):
    codes, logs = run(process, 2, 1, tmp_path / "run", tmp_path)
    assert codes == [0, 0], logs
    wanted = stepped(config(optimizer={"kind": "sparse_sgd", "updates": 2}))[1]
    with np.load(tmp_path / "params.npz") as file:
        got = [file[name] for name in file.files]
    for one, other in zip(got, (wanted[rows.CONTEXTS], wanted[rows.TOKENS]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_what_does_not_fit_is_one_line():
    def refused(match, **sections):
        with pytest.raises(UserError, match=match):
            stepped(config(**sections))

    refused("optimizer.weight_decay: reads whole tables; optimizer.kind: sparse_sgd", optimizer={"weight_decay": 0.1})
    for name, setting in {"lora": {"targets": ["model/*"]}, "layer_norms": True, "on_spike": "skip"}.items():
        refused(f"train.{name}: reads whole tables; optimizer.kind: sparse_sgd does not have it", train={name: setting})
    phases = [{"steps": 5, "set": {"train.trainable": ["model/*"]}}, {"set": {"train.trainable": ["*"]}}]
    refused("optimizer.kind: sparse_sgd: trains the same parameters in all phases", train={"phases": phases})
    refused(r"optimizer.updates: 3 × train.grad_accum_steps 1 must divide the 8 examples", optimizer={"updates": 3})
    with pytest.raises(UserError, match="is for objectives that read rows of tables"):
        other = families.config("gpt2", optimizer={"kind": "sparse_sgd"})
        step.make_train_step(state.setup(other, jax.devices()[:1]), other.objective)
