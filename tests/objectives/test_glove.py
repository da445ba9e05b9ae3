"""GloVe: loss and gradients pair by pair, and the counts of a corpus beside a loop over it."""

import collections
import doctest

import jax
import numpy as np
import pytest

from jaxpt.data.preprocessors import cooccurrences
from jaxpt.errors import UserError
from jaxpt.objectives import rows
from jaxpt.objectives.glove import BIAS, CONTEXT_BIAS, GloVe
from jaxpt.train import sparse

V, D = 6, 3


def test_loss_and_gradients_are_those_of_a_loop_over_pairs():
    h, rng = GloVe(x_max=10.0), np.random.default_rng(0)
    tables = {rows.TOKENS: D, rows.CONTEXTS: D, BIAS: 1, CONTEXT_BIAS: 1}
    tables = {path: rng.normal(size=(V, width)) for path, width in tables.items()}
    words, contexts = rng.integers(0, V, (2, 2, 5)).astype(np.int32)
    counts = np.array([[0.5, 3, 10, 40, 1], [2, 0.1, 0, 0, 0]], np.float32)  # the last three are padding
    batch = {"words": words, "contexts": contexts, "counts": counts}
    ids, grads, sums = jax.jit(lambda t, b: sparse.row_gradients(h, t, b))(
        {path: x.astype(np.float32) for path, x in tables.items()}, batch
    )
    wanted, loss = {path: np.zeros_like(x) for path, x in tables.items()}, 0.0
    for i, j, x in zip(words.ravel(), contexts.ravel(), counts.ravel().tolist()):
        if x > 0:
            w, u, weight = tables[rows.TOKENS][i], tables[rows.CONTEXTS][j], min(1, (x / 10) ** 0.75)
            error = w @ u + tables[BIAS][i, 0] + tables[CONTEXT_BIAS][j, 0] - np.log(x)
            loss += 0.5 * weight * error**2
            wanted[rows.TOKENS][i] += weight * error * u
            wanted[rows.CONTEXTS][j] += weight * error * w
            wanted[BIAS][i] += weight * error
            wanted[CONTEXT_BIAS][j] += weight * error
    np.testing.assert_allclose(sums["glove"], (loss, 7), rtol=1e-5)
    for path, x in wanted.items():
        got = np.zeros_like(x)
        np.add.at(got, ids[path], grads[path])
        np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-5)


class Records:
    """What `count` asks of a store."""

    def __init__(self, texts):
        self._texts = texts

    def values(self, name):
        return np.concatenate(self._texts)

    def lengths(self, name):
        return np.array([len(text) for text in self._texts])


@pytest.mark.parametrize("chunk", [1 << 21, 7])
def test_pairs_are_counted_as_by_a_loop(monkeypatch, chunk):
    monkeypatch.setattr(cooccurrences, "_CHUNK", chunk)
    rng = np.random.default_rng(0)
    texts, window, unknown = [rng.integers(0, V, size) for size in (30, 1, 17)], 4, 1
    wanted = collections.Counter()
    for text in texts:
        text = text[text != unknown]  # as cooccur.c: a word out of the vocabulary does not move the window
        for i, j in np.ndindex(len(text), len(text)):
            if 0 < abs(i - j) <= window:
                wanted[text[i], text[j]] += 1 / abs(i - j)
    batches = cooccurrences.count(Records(texts), V, window=window, length=4, unknown=unknown)
    (made,) = batches.make()
    assert made["words"].lengths.tolist() == [4] * (len(wanted) // 4) + [len(wanted) % 4] * (len(wanted) % 4 > 0)
    found = dict(zip(zip(made["words"].values, made["contexts"].values), made["counts"].values))
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose([found[pair] for pair in wanted], [*wanted.values()], rtol=1e-6)


def test_a_text_without_pairs_is_one_line():
    with pytest.raises(UserError, match=r"no two known words of the text are as near; lower data.tokenizer.min_count"):
        cooccurrences.count(Records([np.array([1, 2, 1]), np.array([3, 1])]), V, window=2, length=4, unknown=1)
    (short,) = cooccurrences.count(Records([np.full(5, 2)]), V, window=9, length=4, unknown=1).make()
    assert short["counts"].values == pytest.approx(2 * (4 + 3 / 2 + 2 / 3 + 1 / 4)), "shorter than the window"


def test_the_baseline_is_the_best_constant():
    h, counts = GloVe(), np.array([[1.0, 50.0, 0.0], [400.0, 3.0, 7.0]], np.float32)
    real = counts[counts > 0]
    weights = np.minimum(real / 100, 1) ** 0.75
    constants = np.linspace(0, 8, 8001)
    best = (0.5 * weights * (np.log(real) - constants[:, None]) ** 2).mean(1).min()
    np.testing.assert_allclose(h.baseline.loss([{"counts": counts}]), best, rtol=1e-4)
    assert h.baseline.unit == "weighted squared error"


def test_docstrings():
    assert doctest.testmod(cooccurrences).failed == 0
