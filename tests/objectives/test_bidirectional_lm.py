"""ELMo's objective: the state goes on, or is zero at a document; meshes, accumulation, resumes; what is refused."""

import functools
import json
import random
import shutil

import jax
import numpy as np
import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.train import state, step
from tests import families
from tests.models.helpers import drawn
from tests.runs import assert_bit_equal, final

VOCABULARY = Vocabulary(size=600, bos=1, eos=0, unk=2, spelled_from=88)
MODEL = {**families.MODELS["elmo"], "dtype": "float32"}
LENGTH = 8


def recipe(mesh=None, rows=4, length=LENGTH, **objective):
    data = {"length": length, "batch_size": rows, "tokenizer": {"kind": "spelled_words"}}
    tree = {
        "model": MODEL, "objective": {"kind": "bidirectional_lm", "samples": 20, **objective}, "data": data,
        "optimizer": {"kind": "adagrad", "learning_rate": 0.1}, "mesh": mesh or {"data": 1},
    }  # fmt: skip
    return configs.build(tree)


def with_words(params):
    """Parameters with characters for each word."""
    table = params["model"]["words"]["spelling"]
    table = np.random.default_rng(1).integers(1, 260, table.shape).astype(np.float32)
    return {**params, "model": {**params["model"], "words": {**params["model"]["words"], "spelling": table}}}


@functools.cache
def made(**objective):
    config = recipe(**objective)
    network = families.network(config)
    return config, network, with_words(drawn(network))


def batch(config, seed=0):
    """Random words; each row is one text."""
    rows = families.batch(config, seed)
    return {name: np.ones_like(x) if name.endswith("segment_ids") else x for name, x in rows.items()}


def close(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6 * max(1, float(np.abs(b).max())))


def loss_of(config, network, params, rows, carry):
    return config.objective.loss(network.bind(params), rows, carry)


def test_a_text_in_two_batches_has_the_loss_of_it_in_one():
    config, network, params = made()
    whole = batch(recipe(length=2 * LENGTH))
    halves = [{name: x[:, at] for name, x in whole.items()} for at in (np.s_[:LENGTH], np.s_[LENGTH:])]
    carry = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), config.objective.carry_shapes(network, 4))
    run = jax.jit(functools.partial(loss_of, config, network))
    first, second, at_once = run(params, halves[0], carry), None, run(params, whole, carry)
    second = run(params, halves[1], first[2])
    part = "bidirectional_lm"
    np.testing.assert_allclose(first[0][part] + second[0][part], at_once[0][part], rtol=1e-5)
    close(second[2], at_once[2])
    fresh = run(params, halves[1], carry)
    assert abs(float(fresh[0][part] - second[0][part])) > 1e-3


def test_the_state_is_reset_where_a_document_begins():
    config, network, params = made(reset_at_documents=True)
    rng = np.random.default_rng(2)
    carry = config.objective.carry_shapes(network, 4)
    carry = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype) / 9, carry)
    zeros = jax.tree.map(np.zeros_like, carry)
    rows = batch(config)
    opened = rows | {
        name: np.full((4, LENGTH), 2, np.int32) for name in ("encoder_segment_ids", "backward_segment_ids")
    }
    run = jax.jit(functools.partial(loss_of, config, network))
    close(run(params, opened, carry), run(params, rows, zeros))
    later = {name: np.repeat([[1] * 3 + [2] * 5], 4, 0) for name in ("encoder_segment_ids", "backward_segment_ids")}
    # What follows a document's begin does not depend on what was before it: nor does the state in the end.
    close(run(params, rows | later, carry)[2], run(params, rows | later, zeros)[2])


def test_accumulation_changes_nothing_and_keeps_rows_with_their_state():
    """With all words in the softmax: each microbatch has a sample of its own."""
    config, network, params = made(samples=None)
    rng = np.random.default_rng(3)
    shapes = config.objective.carry_shapes(network, 4)
    carry = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype) / 9, shapes)

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(accumulation):
        return step.gradients(config.objective, network, params, batch(config), None, accumulation, carry)

    (grads, found, after), whole = gradients(2), gradients(1)
    np.testing.assert_allclose(found["loss"], whole[1]["loss"], rtol=1e-5)
    assert not np.any(grads["model"]["words"]["spelling"])
    close((grads, after), (whole[0], whole[2]))


def test_z_loss_is_part_of_the_loss_over_all_words():
    config, network, params = made(samples=None, carry=False)

    def run(z_loss):
        return config.objective.model_copy(update={"z_loss": z_loss}).loss(network.bind(params), batch(config))

    (plain, metrics), (total, others) = jax.jit(lambda: (run(0.0), run(0.5)))()
    np.testing.assert_allclose(others["token_loss"][0], metrics["token_loss"][0], rtol=1e-5)
    log_z = np.log(600)  # nearly: the logits of drawn parameters are small
    extra = (total["bidirectional_lm"] - plain["bidirectional_lm"]) / metrics["token_loss"][1]
    np.testing.assert_allclose(extra, 0.5 * log_z**2, rtol=0.1)


@pytest.mark.slow
def test_a_mixed_mesh_changes_no_gradient():
    def gradients(mesh):
        config = recipe(mesh, rows=16)
        setup, rows = state.setup(config), batch(config)
        with setup.use():
            begun = families.begin(setup)
            begun = families.placed(begun.replace(params=with_words(jax.device_get(begun.params))), setup)
            find = jax.jit(
                lambda params, rows: step.gradients(config.objective, setup.network, params, rows, jax.random.key(0))[
                    :2
                ]
            )
            return jax.device_get(find(begun.params, step.put(rows, setup)))

    close(gradients({"data": 2, "fsdp": 2, "tensor": 2}), gradients({"data": 8}))


WORDS = ("the", "of", "and", "to", "in", "a", "is", "was", "for", "on", "with", "as", "by", "at", "from", "that", "it")


@pytest.mark.slow
def test_a_run_resumes_with_its_state_bit_by_bit(tmp_path, capsys):
    rng = random.Random(0)
    (tmp_path / "text.txt").write_text("\n".join(" ".join(rng.choices(WORDS, k=40)) for _ in range(30)))
    tree = {
        "model": MODEL | {"dropout": 0.1}, "objective": {"kind": "bidirectional_lm", "samples": 10},
        "data": {
            "path": str(tmp_path / "text.txt"), "cache_dir": str(tmp_path / "cache"), "validation_fraction": 0.3,
            "length": 8, "batch_size": 8, "tokenizer": {"kind": "spelled_words"},
        },
        "optimizer": {"kind": "adagrad", "learning_rate": 0.2, "initial_accumulator": 0.01, "clip_norm": 1.0},
        "train": {"steps": 4, "eval_every": 4}, "mesh": {"data": 8},
        "checkpoint": {"every": 2}, "log": {"tensorboard": False},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))

    def run(name):
        assert cli.main(["train", str(tmp_path / "recipe.yaml"), f"run_dir={tmp_path / name}"]) == 0

    run("whole")
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "words in both directions" in shown and "unigram baseline" in shown
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "4")
    run("again")
    one, two = (final(tmp_path / name, 4) for name in ("whole", "again"))
    assert_bit_equal(one, two)
    assert all(np.any(x) for x in jax.tree.leaves(one.carry))
    table = np.asarray(one.params["model"]["words"]["spelling"])
    assert table[3, 0] == 259 and "spelling" not in str(jax.tree_util.tree_structure(one.opt_state))
    (last,) = (json.loads(x) for x in (tmp_path / "whole" / "metrics.jsonl").open() if "validation/loss" in x)
    both = (last["validation/forward_loss"] + last["validation/backward_loss"]) / 2
    np.testing.assert_allclose(both, last["validation/loss"], rtol=1e-5)


def test_what_cannot_work_is_refused():
    config, *_ = made()
    config.objective.check(config.model, LENGTH, VOCABULARY)
    bert = families.config("bert").model
    for objective, model, vocabulary, message in (
        ({}, bert, VOCABULARY, r"model\.kind: bert has no forward and backward language model"),
        ({}, config.model, Vocabulary(size=9, eos=0), "needs a vocabulary with BOS"),
        ({"has_softmax": False}, config.model, VOCABULARY, r"objective\.has_softmax: false: .* predicts no words"),
        ({"z_loss": 1e-4}, config.model, VOCABULARY, r"objective\.z_loss: of a sampled softmax"),
    ):
        with pytest.raises(UserError, match=message):
            recipe(**objective).objective.check(model, LENGTH, vocabulary)
    with pytest.raises(UserError, match=r"data\.packing: .*bidirectional_lm fills every row"):
        config.objective.data_spec(32).check_packing(config.objective.kind)
