"""SimCSE from outside: an encoder's objective with data, a head and a baseline of its own."""

import functools
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt import cli
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.objectives.base import encode_batch
from jaxpt.train import step
from tests import families
from tests.extending.conftest import WORDS
from tests.models.helpers import drawn

KIND = "tests.extending.outside.simcse"
MODEL = {"layers": 1, "dropout": 0.1}
LENGTH = 12


@functools.cache
def made():
    """A configuration, its network, parameters and a batch, whose last row is filled up."""
    config = families.config("bert", model=MODEL, objective={"kind": KIND}, data={"length": LENGTH})
    network = families.network(config)
    rows = families.batch(config)
    rows["encoder_token_types"] = np.zeros_like(rows["encoder_token_types"])
    rows = {name: np.where(np.arange(8)[:, None] == 7, 0, x) for name, x in rows.items()}
    return config, network, drawn(network), rows


@functools.partial(jax.jit, static_argnums=(0, 1))
def loss(objective, network, params, rows, key):
    rngs = None if key is None else {"dropout": key}
    return objective.loss(network.bind(params, rngs), rows)


def test_the_loss_is_that_of_the_paper():
    """Without dropout both passes are alike: the loss of real rows, of similarities made in NumPy."""
    config, network, params, rows = made()
    (sums, metrics) = loss(config.objective, network, params, rows, None)

    @jax.jit
    def projected(params, rows):
        bound = network.bind(params)
        return bound.heads["projection"](encode_batch(bound, rows).hidden[:7, 0])

    z = np.array(projected(params, rows), np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    scores = np.exp(z @ z.T / 0.05)
    wanted = -np.log(np.diag(scores) / scores.sum(1)).sum()
    np.testing.assert_allclose(sums["simcse"], wanted, rtol=1e-4)
    assert config.objective.weights(rows)["simcse"] == 7 == metrics["accuracy"][1]
    others = (z @ z.T)[~np.eye(7, dtype=bool)]
    np.testing.assert_allclose(metrics["cosine_of_others"], (others.sum(), others.size), rtol=1e-4)
    assert set(params["heads"]) == {"projection"}


def test_the_two_passes_draw_other_dropout():
    """The same row twice: a sentence is told from its copy by nothing but the draws, so neither is found for sure."""
    config, network, params, rows = made()
    alike = {name: np.repeat(x[:1], 8, axis=0) for name, x in rows.items()}
    plain, dropped = (loss(config.objective, network, params, alike, key)[1] for key in (None, jax.random.key(1)))
    np.testing.assert_allclose(plain["cosine_of_others"][0], 56, rtol=1e-5)
    assert dropped["cosine_of_others"][0] < 55
    other = loss(config.objective, network, params, alike, jax.random.key(2))[1]
    assert dropped["cosine_of_others"][0] != other["cosine_of_others"][0]


def test_rows_without_a_sentence_are_no_negatives():
    config, network, params, rows = made()
    few = {name: x[:7] for name, x in rows.items()}
    with_filling, without = (loss(config.objective, network, params, x, None)[0]["simcse"] for x in (rows, few))
    np.testing.assert_allclose(with_filling, without, rtol=1e-5)


@pytest.mark.slow
def test_negatives_of_accumulated_gradients_are_those_of_the_microbatch():
    config, network, params, rows = made()

    @functools.partial(jax.jit, static_argnums=1)
    def gradients(rows, accumulation=1):
        return step.gradients(config.objective, network, params, rows, None, accumulation)[:2]

    both, found = gradients(rows, 2)
    halves = [gradients({name: x[start::2] for name, x in rows.items()}) for start in (0, 1)]  # 4 and 3 sentences
    np.testing.assert_allclose(found["loss"], sum(n * x[1]["loss"] for n, x in zip((4, 3), halves)) / 7, rtol=1e-5)
    mean = jax.tree.map(lambda a, b: (4 * a + 3 * b) / 7, *(grads for grads, _ in halves))
    for a, b in zip(*map(jax.tree.leaves, (both, mean)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * max(1, float(jnp.abs(b).max())))


def test_its_baseline_is_a_uniform_choice_within_each_batch():
    baseline, rows = made()[0].objective.baseline, made()[3]
    few = {name: x[:2] for name, x in rows.items()}
    assert baseline.loss([rows, few]) == pytest.approx((7 * np.log(7) + 2 * np.log(2)) / 9)


def test_a_model_without_dropout_is_refused():
    config = families.config("bert", model={**MODEL, "dropout": 0.0}, objective={"kind": KIND})
    with pytest.raises(UserError, match=r"model\.dropout: 0 makes both passes of simcse alike"):
        config.objective.check(config.model, LENGTH, Vocabulary(size=200, cls=1, sep=2))


def sections(dropout=0.1, **others):
    """Of a recipe with the default evaluators."""
    model = {**families.MODELS["bert"], "vocab_size": 300, "layers": 1, "dropout": dropout, "dtype": "float32"}
    data = {"tokenizer": {"kind": "wordpiece"}, "batch_size": 16}
    return {"model": model, "objective": {"kind": KIND}, "data": data, "evals": families.EVALUATED, **others}


@pytest.mark.slow
def test_it_resumes(lab):
    """With two microbatches."""
    end = lab.assert_resumes(**sections(train={"grad_accum_steps": 2}, evals=[{"kind": "heldout"}]))
    assert end.params["heads"]["projection"]["dense"]["kernel"].shape == (32, 32)


@pytest.mark.slow
def test_it_learns_to_tell_sentences_apart_and_is_evaluated(lab, capsys):
    """From a masked LM, as in the paper. After 20 steps of it two of three seeds collapse, after 80 none of four."""
    rng, words = random.Random(0), WORDS.split()
    (lab.folder / "corpus.txt").write_text("\n".join(" ".join(rng.choices(words, k=10)) for _ in range(200)))
    masked_lm = {"kind": "masked_lm", "next_sentence": False}
    assert lab.train("base", "train.steps=80", **sections(objective=masked_lm, evals=[])) == 0
    start, train = {"path": str(lab.folder / "base"), "partial": True}, {"steps": 60, "eval_every": 60}
    assert lab.train("run", **sections(dropout=0.01, init_from=start, train={**train, "grad_accum_steps": 2})) == 0
    assert "new: heads/projection/dense/bias, heads/projection/dense/kernel" in capsys.readouterr().out
    (last,) = (json.loads(x) for x in (lab.folder / "run" / "metrics.jsonl").open() if "validation/loss" in x)
    trivial = json.loads((lab.folder / "run" / "run.json").read_text())["baseline"]
    assert last["validation/target_loss"] < trivial - 0.5 and last["validation/accuracy"] > 0.9
    capsys.readouterr()
    assert cli.main(["eval", str(lab.folder / "run")]) == 0
    shown = capsys.readouterr().out
    assert "uniform choice baseline" in shown and "cosine of different sentences:" in shown
    assert cli.main(["inspect", str(lab.folder / "recipe.yaml"), "-n", "1"]) == 0
    assert "[CLS]" in capsys.readouterr().out
