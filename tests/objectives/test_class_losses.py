"""Losses over classes: against sums by hand, and against torch and scikit-learn's formula."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.objectives import class_losses

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(0)
LOGITS, OTHER = RNG.normal(0, 3, (2, 12, 4)).astype(np.float32)
TARGETS = RNG.integers(0, 4, 12)
WEIGHTS = np.array([0.5, 2.0, 1.0, 0.1], np.float32)


def mean(logits, **options):
    loss, weight = class_losses.class_cross_entropy(logits, jnp.asarray(TARGETS), **options)
    return loss.sum() / weight.sum()


r_drop = jax.jit(class_losses.r_drop)


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_cross_entropy_by_hand(smoothing, weights):
    w = np.ones(4) if weights is None else weights.astype(np.float64)
    log_p = log_softmax(LOGITS)
    loss = [
        -(1 - smoothing) * w[t] * row[t] - smoothing / 4 * (w * row).sum() for row, t in zip(log_p, TARGETS)
    ]  # fmt: skip
    found = jax.jit(lambda x: mean(x, label_smoothing=smoothing, class_weights=weights))(LOGITS)
    np.testing.assert_allclose(found, sum(loss) / w[TARGETS].sum(), rtol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_cross_entropy_is_that_of_torch(smoothing, weights):
    import torch

    given = torch.tensor(LOGITS, requires_grad=True)
    weight = None if weights is None else torch.tensor(weights)
    theirs = torch.nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing)(given, torch.tensor(TARGETS))
    theirs.backward()
    run = jax.value_and_grad(lambda x: mean(x, label_smoothing=smoothing, class_weights=weights))
    value, gradient = jax.jit(run)(LOGITS)
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient, given.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parity
def test_r_drop_is_the_released_loss():
    """½ · (kl_div(log p, q) + kl_div(log q, p)) with torch's own divergence."""
    import torch
    from torch.nn import functional

    one, two = (torch.tensor(x, requires_grad=True) for x in (LOGITS, OTHER))
    p, q = one.log_softmax(-1), two.log_softmax(-1)
    theirs = (functional.kl_div(p, q.exp(), reduction="sum") + functional.kl_div(q, p.exp(), reduction="sum")) / 2
    theirs.backward()
    value, gradients = jax.jit(jax.value_and_grad(lambda a, b: r_drop(a, b).sum(), (0, 1)))(LOGITS, OTHER)
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-6)
    for mine, x in zip(gradients, (one, two)):
        np.testing.assert_allclose(mine, x.grad, rtol=1e-4, atol=1e-5)


def test_r_drop_is_symmetric_and_zero_of_equal_predictions():
    found = np.asarray(r_drop(LOGITS, OTHER))
    np.testing.assert_allclose(found, r_drop(OTHER, LOGITS), rtol=1e-6)
    assert (found > 0).all() and (np.asarray(r_drop(LOGITS, LOGITS + 5)) < 1e-5).all()
    p, q = log_softmax(LOGITS), log_softmax(OTHER)
    np.testing.assert_allclose(found, ((np.exp(p) - np.exp(q)) * (p - q)).sum(-1) / 2, rtol=1e-4)


def test_a_class_that_cannot_be_adds_nothing():
    @jax.jit
    def both(one, other):
        return class_losses.r_drop(one, other), class_losses.class_cross_entropy(one, TARGETS % 3)[0]

    masked = [np.where(np.arange(4) == 3, -np.inf, x).astype(np.float32) for x in (LOGITS, OTHER)]
    for found, wanted in zip(both(*masked), both(LOGITS[:, :3], OTHER[:, :3])):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_balanced_weights():
    counts = [5, 1, 14]
    found = class_losses.balanced_class_weights(counts)
    np.testing.assert_allclose(found, [20 / 15, 20 / 3, 20 / 42], rtol=1e-6)
    assert (found * counts).sum() == pytest.approx(20)
    with pytest.raises(UserError, match="balanced: no training example has the class no, maybe"):
        class_losses.balanced_class_weights([3, 0, 0], ["yes", "no", "maybe"])


def test_balanced_weights_of_label_sets():
    counts = [5, 1, 20]
    np.testing.assert_allclose(class_losses.balanced_label_weights(counts, 20), [3, 19, 1 / 20])
    with pytest.raises(UserError, match="balanced: no training example has the class no"):
        class_losses.balanced_label_weights([3, 0], 9, ["yes", "no"])


def test_examples_in_the_docstrings():
    assert doctest.testmod(class_losses)[0] == 0
