"""An LSTM language model from outside, and an objective that carries its state from batch to batch."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.train import state, step
from tests import families
from tests.models.helpers import drawn

OUTSIDE = "tests.extending.outside"
MODEL = {"kind": f"{OUTSIDE}.lstm", "vocab_size": 200, "layers": 2, "embed_dim": 32, "dtype": "float32"}
LENGTH = 10


@functools.cache
def made(**objective):
    data, objective = {"length": LENGTH, "batch_size": 4}, {"kind": f"{OUTSIDE}.carried_lm", **objective}
    config = configs.build({**families.tree("gpt2", data=data), "model": MODEL, "objective": objective})
    network = families.network(config)
    return config, network, drawn(network)


def close(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * max(1, float(jnp.abs(b).max())))


def test_a_text_in_two_batches_equals_it_in_one():
    """The first half of one row is shorter: the state passes over its padding."""
    _, network, params = made()
    tokens = np.random.default_rng(0).integers(0, 200, (2, 2 * LENGTH))
    ids = np.ones((2, LENGTH), np.int32)
    ids[1, 7:] = 0

    @jax.jit
    def run(params):
        decode = network.bind(params).decode
        first = decode(tokens[:, :LENGTH], segment_ids=ids)
        short = np.concatenate([tokens[1:, :7], tokens[1:, LENGTH:]], axis=1)
        return decode(tokens[:, LENGTH:], memory=first.memory), decode(tokens[:1]), decode(short)

    second, whole, short = run(params)
    close(second.hidden[0], whole.hidden[0, LENGTH:])
    close(second.hidden[1], short.hidden[0, 7:])
    close(jax.tree.map(lambda x: x[:, 1:], second.memory), short.memory)


def test_packed_texts_do_not_see_each_other():
    _, network, params = made()
    tokens = np.random.default_rng(0).integers(0, 200, (1, LENGTH))
    decode = jax.jit(lambda tokens, ids: network.bind(params).decode(tokens, segment_ids=ids).hidden)
    packed = decode(tokens, np.array([[1] * 4 + [2] * 3 + [0] * 3]))
    close(packed[:, 4:7], decode(np.roll(tokens, -4), np.array([[1] * 3 + [0] * 7]))[:, :3])


def test_accumulation_changes_nothing_and_keeps_rows_with_their_state():
    config, network, params = made()
    rng = np.random.default_rng(3)
    shapes = config.objective.carry_shapes(network, 4)
    carry = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), shapes)
    assert [x.shape for x in jax.tree.leaves(carry)] == [(4, 2, 32)] * 2

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(accumulation):
        return step.gradients(config.objective, network, params, families.batch(config), None, accumulation, carry)

    (grads, found, after), whole = gradients(2), gradients(1)
    np.testing.assert_allclose(found["loss"], whole[1]["loss"], rtol=1e-5)
    close((grads, after), (whole[0], whole[2]))


@pytest.mark.slow
def test_a_mixed_mesh_changes_no_gradient():
    """Left cut over fsdp and tensor in the loop over time, the recurrent matrix got a wrong gradient."""

    def gradients(mesh):
        tree = families.tree("gpt2", data={"length": 16, "batch_size": 16}, mesh=mesh)
        config = configs.build({**tree, "model": {**MODEL, "layers": 1}})
        setup, rows = state.setup(config), families.batch(config)
        with setup.use():
            params = setup.init().params
            find = jax.jit(lambda params, rows: step.gradients(config.objective, setup.network, params, rows, None)[0])
            return jax.device_get(find(params, step.put(rows, setup)))

    close(gradients({"data": 2, "fsdp": 2, "tensor": 2}), gradients({"data": 8}))


def test_what_cannot_work_is_refused():
    config, *_ = made()
    words = Vocabulary(size=200, eos=1)
    config.objective.check(config.model, LENGTH, words)
    with pytest.raises(UserError, match=r"objective\.carry: model\.kind: gpt2 has no memory"):
        config.objective.check(families.config("gpt2").model, LENGTH, words)
    with pytest.raises(UserError, match=r"data\.packing: .*carried_lm carries its rows on from batch to batch"):
        config.objective.data_spec(32).check_packing(config.objective.kind)
    with pytest.raises(UserError, match=r"objective\.word_dropout needs a vocabulary with an unknown word"):
        made(word_dropout=0.1)[0].objective.check(config.model, LENGTH, words)


@pytest.mark.slow
def test_it_trains_resumes_with_its_state_and_is_evaluated(lab, capsys):
    objective, optimizer = {"kind": f"{OUTSIDE}.carried_lm"}, {"learning_rate": 1e-3, "ema_decay": 0.9}
    model = {**MODEL, "vocab_size": 300, "dropout": 0.1}
    end = lab.assert_resumes(model=model, objective=objective, optimizer=optimizer)
    state = jax.tree.leaves(end.carry)
    assert [x.shape for x in state] == [(8, 2, 32)] * 2 and all(x.any() for x in state)


@pytest.mark.slow
def test_it_learns_and_is_evaluated(lab, capsys):
    objective, optimizer = {"kind": f"{OUTSIDE}.carried_lm"}, {"learning_rate": 2e-2}
    model, train = {**MODEL, "vocab_size": 300}, {"steps": 60, "grad_accum_steps": 2, "eval_every": 60}
    sections = {"data": {"batch_size": 16, "length": 8}, "evals": families.EVALUATED}
    assert lab.train("run", model=model, objective=objective, optimizer=optimizer, train=train, **sections) == 0
    (last,) = (json.loads(x) for x in (lab.folder / "run" / "metrics.jsonl").open() if "validation/loss" in x)
    assert last["validation/loss"] < 3, "it began at ln 300 = 5.7"
    capsys.readouterr()
    assert cli.main(["eval", str(lab.folder / "run")]) == 0
    shown = capsys.readouterr().out
    assert "bigram baseline" in shown and "prompt" in shown
