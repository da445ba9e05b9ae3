"""Skip-gram: its loss pair by pair, what it trains in models of all families, and that another run starts from it."""

import doctest
import functools

import jax
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.objectives import skip_gram
from tests import families
from tests.models.helpers import drawn

OBJECTIVE = {"kind": "skip_gram", "window": 3, "negatives": 4, "noise": 5, "scale": 2.0}


@functools.cache
def case(family):
    """(objective, network, parameters, batch, compiled (parameters, batch) → ((loss, metrics), gradients))."""
    model, data = {"layers": 1}, {"batch_size": 3, "length": 9}
    config = families.config(family, model=model, objective=OBJECTIVE, data=data)
    network = families.network(config)

    def loss(params, batch):
        sums, metrics = config.objective.loss(network.bind(params), batch)
        return sums["skip_gram"], metrics

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    batch = families.batch(config) | {"eval_mask": np.ones((3, 9), np.float32)}
    return config.objective, network, drawn(network), batch, step


@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_loss_is_that_of_a_loop_over_pairs(family):
    h, _, params, batch, step = case(family)
    segments = batch["encoder_segment_ids"].copy()
    segments[0] = [1, 1, 1, 2, 2, 2, 2, 0, 0]  # two texts in a row
    batch = batch | {"encoder_segment_ids": segments}
    (found, metrics), _ = step(params, batch)

    v_VxD, u_VxD = params["model"]["token_embed"]["table"], params["heads"]["contexts"]["table"]
    score_VxV = np.float64(h.scale) * np.asarray(v_VxD, np.float64) @ np.asarray(u_VxD, np.float64).T
    total = pairs = 0.0
    for tokens, segments, noise in zip(
        *(batch[f"encoder_{x}"] for x in ("input_tokens", "segment_ids")), batch["noise_tokens"]
    ):
        for i, j in np.ndindex(9, 9):
            if 0 < abs(i - j) <= h.window and segments[i] == segments[j] > 0:
                weight = (h.window + 1 - abs(i - j)) / h.window
                near = np.log1p(np.exp(-score_VxV[tokens[i], tokens[j]]))
                total += weight * (near + h.negatives * np.log1p(np.exp(score_VxV[tokens[i], noise])).mean())
                pairs += weight
    np.testing.assert_allclose(found, total, rtol=1e-5)
    np.testing.assert_allclose(h.weights(batch)["skip_gram"], pairs, rtol=1e-6)
    np.testing.assert_allclose(metrics["target_loss"], (total, pairs), rtol=1e-5)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_two_tables_alone_are_trained(family):
    _, _, params, batch, step = case(family)
    _, gradients = step(params, batch)
    moved = {"/".join(str(k.key) for k in path) for path, x in jax.tree.leaves_with_path(gradients) if np.any(x)}
    assert moved == {"model/token_embed/table", "heads/contexts/table"}
    rows = np.any(gradients["model"]["token_embed"]["table"], axis=1)
    shown = batch["encoder_input_tokens"][batch["encoder_segment_ids"] > 0]
    assert set(np.flatnonzero(rows)) <= set(shown.tolist())  # of padding and noise no vectors, only contexts


def test_zero_contexts_have_the_baseline():
    h, _, params, batch, step = case("bert")
    heads = params["heads"] | {"contexts": {"table": 0 * params["heads"]["contexts"]["table"]}}
    (total, _), _ = step(params | {"heads": heads}, batch)
    np.testing.assert_allclose(total / h.weights(batch)["skip_gram"], h.baseline.loss(()), rtol=1e-6)


def test_a_window_as_long_as_a_row_is_refused():
    h, network, *_ = case("bert")
    with pytest.raises(UserError, match=r"objective.window: 3 must be less than data.length, 3"):
        h.check(network.config, 3, Vocabulary(size=200))


def test_docstrings():
    assert doctest.testmod(skip_gram).failed == 0
