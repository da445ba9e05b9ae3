"""The sampled softmax: how often each id is in a sample, and how near its gradients are to the full softmax's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models.output import Projection
from jaxpt.objectives.losses import token_loss
from jaxpt.objectives.sampled_softmax import log_uniform, sampled_loss

V, D, B, T = 200, 8, 3, 5


def given():
    rng = np.random.default_rng(0)
    table, bias = rng.normal(size=(256, D)).astype(np.float32), rng.normal(size=256).astype(np.float32)
    hidden = rng.normal(size=(B, T, D)).astype(np.float32)
    targets = np.minimum(rng.zipf(1.3, (B, T)), V) - 1
    return (hidden, table, bias), targets, (rng.random((B, T)) < 0.8).astype(np.float32)


def projection(table, bias):
    return Projection(table, bias, vocab_size=V, tied=True)


def gradients(loss):
    arrays, targets, weights = given()
    return jax.value_and_grad(lambda hidden, *p: loss(hidden, projection(*p), targets, weights), (0, 1, 2))(*arrays)


def full():
    return jax.jit(lambda: gradients(lambda *x: token_loss(*x)[0]))()


@functools.partial(jax.jit, static_argnums=1)
def sampled(keys, samples):
    return jax.vmap(lambda key: gradients(lambda *x: sampled_loss(*x, key, samples)))(keys)


def test_all_ids_are_the_full_softmax():
    for one, other in zip(jax.tree.leaves(sampled(jax.random.split(jax.random.key(0), 1), V)), jax.tree.leaves(full())):
        np.testing.assert_allclose(one[0], other, rtol=1e-4, atol=1e-5)


def test_gradients_converge_to_those_of_the_full_softmax():
    """Of one sample, and of the mean of 200, whose error is the bias."""
    wanted = np.concatenate([np.ravel(x) for x in jax.tree.leaves(full()[1])])

    def errors(samples):
        grads = sampled(jax.random.split(jax.random.key(1), 200), samples)[1]
        found = np.concatenate([np.reshape(x, (200, -1)) for x in jax.tree.leaves(grads)], axis=1)
        size = np.linalg.norm(wanted)
        return np.linalg.norm(found - wanted, axis=1).mean() / size, np.linalg.norm(found.mean(0) - wanted) / size

    single, mean = zip(*(errors(samples) for samples in (10, 40, 160)))
    assert single[0] > 1.3 * single[1] > 5 * single[2], single
    assert mean[0] > 1.5 * mean[1] > 9 * mean[2] and mean[2] < 0.03, mean


def test_ids_are_in_a_sample_as_often_as_expected():
    samples, draws = 20, 4000
    log_p, log_expected = log_uniform(V, samples)
    keys = jax.random.split(jax.random.key(2), draws)
    noise = jax.jit(jax.vmap(lambda key: jax.lax.top_k(log_p + jax.random.gumbel(key, (V,)), samples)[1]))(keys)
    found = np.bincount(np.ravel(noise), minlength=V) / draws
    np.testing.assert_allclose(np.exp(log_expected).sum(), samples, rtol=1e-5)
    # The number of draws varies, which the expectation takes for its mean: 0.02 beside four standard errors.
    assert (np.abs(found - np.exp(log_expected)) < 0.02 + 4 * np.sqrt(found * (1 - found) / draws)).all()


@pytest.mark.gpu
def test_a_target_among_the_samples_counts_once():
    """With every other id improbable the loss is near 0, whether or not the target is drawn as well."""
    table = jnp.zeros((256, D))
    bias = jnp.where(jnp.arange(256) == 0, 0.0, -20.0)  # of the most frequent id: it is in nearly each sample
    hidden, targets = np.zeros((1, 1, D), np.float32), np.zeros((1, 1), int)
    keys = jax.random.split(jax.random.key(3), 20)
    loss = jax.jit(
        jax.vmap(lambda key: sampled_loss(hidden, projection(table, bias), targets, jnp.ones((1, 1)), key, 20))
    )
    assert (loss(keys) < 1e-3).all()
