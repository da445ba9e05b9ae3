"""Skip-gram and CBOW: loss and gradients beside a count by hand, pair by pair, as the released programs go."""

import doctest
import functools

import jax
import numpy as np
import pytest

from jaxpt.config import resolve
from jaxpt.data import huffman, subwords
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.word_vectors import WordVectorsConfig
from jaxpt.objectives import rows, skip_gram, word2vec
from jaxpt.objectives.base import Objective
from jaxpt.objectives.glove import GloVe
from jaxpt.train import sparse
from tests import families
from tests.models.helpers import drawn

V, D, B, T = 20, 4, 2, 40
"""T: more than one block of 32 words, and less than two."""
NGRAMS = {"buckets": 7, "per_word": 3}
CASES = [
    (kind, classifier, grams)
    for kind in ("skip_gram", "cbow")
    for classifier in ("negative_sampling", "hierarchical_softmax")
    for grams in (None, NGRAMS)
]


def objective(kind, **options):
    return resolve(kind, "jaxpt.objectives", Objective)(window=3, negatives=4, noise=5, code_length=8, **options)


def batch_of(h, seed=0):
    """A batch of toy text: two texts in the first row, padding behind both."""
    rng = np.random.default_rng(seed)
    words = rng.integers(2, V, (B, T)).astype(np.int32)
    segments = np.ones((B, T), np.int32)
    segments[0, 20:], segments[0, 37:], segments[1, 33:] = 2, 0, 0
    counts = np.arange(V) + 1
    batch = {"encoder_input_tokens": words, "encoder_segment_ids": segments}
    batch |= {
        "windows": rng.integers(1, h.window + 1, (B, T)).astype(np.int32),
        "eval_mask": np.ones((B, T), np.float32),
    }
    if h.classifier == "negative_sampling":
        batch["noise_tokens"] = rng.integers(2, V, (B, 2 * h.noise)).astype(np.int32)
    else:
        batch["huffman_paths"] = huffman.paths(counts, h.code_length)[words]
    if h.subwords is not None:
        table = rng.integers(0, h.subwords.buckets, (V, h.subwords.per_word)).astype(np.int32)
        table[::2, -1] = -1
        batch["subwords"] = table[words]
    return batch


def by_hand(h, kind, batch, tables):
    """(loss, number of decisions, {path: gradient}): every pair, or word, one after the other, in float64.

    As word2vec.c and fastText: the vector is the mean of its rows, and each of them is given the whole gradient.
    """
    grads = {path: np.zeros_like(x) for path, x in tables.items()}
    loss = count = 0.0
    k = h.negatives / h.noise
    for b, i in np.ndindex(B, T):
        segments, reach = batch["encoder_segment_ids"][b], batch["windows"][b, i]
        near = [j for j in range(T) if 0 < abs(i - j) <= reach and segments[i] == segments[j] > 0]
        decisions = [([i], j) for j in near] if kind == "skip_gram" else [(near, i)] if near else []
        for inputs, target in decisions:
            parts = [(rows.TOKENS, batch["encoder_input_tokens"][b, j]) for j in inputs]
            if h.subwords is not None:
                parts += [(word2vec.SUBWORDS, g) for j in inputs for g in batch["subwords"][b, j] if g >= 0]
            hidden = np.mean([tables[path][row] for path, row in parts], 0)
            if h.classifier == "negative_sampling":
                noise = batch["noise_tokens"][b].reshape(2, -1)[i // 32]
                outputs = [(batch["encoder_input_tokens"][b, target], 1, 1.0), *((n, -1, k) for n in noise)]
            else:
                outputs = [(p >> 1, 1 - 2 * (p & 1), 1.0) for p in batch["huffman_paths"][b, target] if p >= 0]
            to_hidden = 0.0
            for row, sign, weight in outputs:
                score = sign * hidden @ tables[rows.CONTEXTS][row]
                loss += weight * np.log1p(np.exp(-score))
                slope = -weight * sign / (1 + np.exp(score))
                to_hidden = to_hidden + slope * tables[rows.CONTEXTS][row]
                grads[rows.CONTEXTS][row] += slope * hidden
            for path, row in parts:
                grads[path][row] += to_hidden
            count += 1
    return loss, count, grads


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "classifier", "grams"), CASES)
def test_loss_and_gradients_are_those_of_a_count_by_hand(kind, classifier, grams):
    h = objective(kind, classifier=classifier, subwords=grams)
    batch, rng = batch_of(h), np.random.default_rng(1)
    sizes = {rows.TOKENS: V, rows.CONTEXTS: V} | ({word2vec.SUBWORDS: 7} if grams else {})
    tables = {path: rng.normal(size=(size, D)) for path, size in sizes.items()}
    ids, grads, sums = jax.jit(lambda t, b: sparse.row_gradients(h, t, h.examples(b)))(
        {path: x.astype(np.float32) for path, x in tables.items()}, batch
    )
    loss, count, wanted = by_hand(h, kind, batch, tables)
    np.testing.assert_allclose(sums[kind], (loss, count), rtol=1e-5)
    np.testing.assert_allclose(sums["target_loss"], (loss, count), rtol=1e-5)
    for path, x in wanted.items():
        got = np.zeros_like(x)
        np.add.at(got, np.clip(ids[path], 0, len(x) - 1), np.asarray(grads[path], np.float64))  # padding: zeros
        np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-4)


@functools.cache
def of_family(family):
    """(objective, network, parameters, batch) of a Transformer."""
    options = {"kind": "skip_gram", "window": 3, "scale": 2.0}
    config = families.config(family, model={"layers": 1}, objective=options, data={"batch_size": B, "length": T})
    network = families.network(config)
    return config.objective, network, drawn(network), batch_of(config.objective.model_copy(update={"noise": 32}))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_two_tables_alone_of_a_transformer_are_trained(family):
    h, network, params, batch = of_family(family)
    grads = jax.jit(jax.grad(lambda params, batch: h.loss(network.bind(params), batch)[0]["skip_gram"]))(params, batch)
    moved = {"/".join(str(k.key) for k in path) for path, x in jax.tree.leaves_with_path(grads) if np.any(x)}
    assert moved == {rows.TOKENS, rows.CONTEXTS}
    of_rows = np.any(grads["model"]["token_embed"]["table"], axis=1)
    assert set(np.flatnonzero(of_rows)) <= set(batch["encoder_input_tokens"].ravel().tolist())


@pytest.mark.parametrize("classifier", ["negative_sampling", "hierarchical_softmax"])
def test_the_baseline_is_vectors_of_zeros(classifier):
    h = objective("skip_gram", classifier=classifier)
    batch = batch_of(h)
    tables = {path: np.zeros((V, D)) for path in (rows.TOKENS, rows.CONTEXTS)}
    loss, count, _ = by_hand(h, "skip_gram", batch, tables)
    np.testing.assert_allclose(h.baseline.loss([batch]), loss / count, rtol=1e-5)


def test_vectors_of_words_are_means_with_their_ngrams():
    h, rng = objective("skip_gram", subwords={"buckets": 7, "min_length": 3, "max_length": 3}), np.random.default_rng(0)
    tables = {rows.TOKENS: rng.normal(size=(4, D)), word2vec.SUBWORDS: rng.normal(size=(7, D))}
    of_cat = [subwords.fnv1a(gram) % 7 for gram in (b"<ca", b"cat", b"at>")]
    (vector,) = h.word_vectors(tables, np.array([2]), ["cat"])
    np.testing.assert_allclose(vector, (tables[rows.TOKENS][2] + tables[word2vec.SUBWORDS][of_cat].sum(0)) / 4)
    np.testing.assert_allclose(h.composer(tables)("cat"), tables[word2vec.SUBWORDS][of_cat].mean(0))
    assert objective("skip_gram").composer(tables) is None
    long = objective("skip_gram", subwords={"buckets": 7, "min_length": 4})
    assert long.composer(tables)("a") is None, "<a> has three characters"


def test_settings_that_do_not_fit_are_one_line():
    model = WordVectorsConfig(vocab_size=V, embed_dim=D)
    with pytest.raises(UserError, match=r"objective.window: 3 must be less than data.length, 3"):
        objective("skip_gram").check(model, 3, Vocabulary(size=V))
    with pytest.raises(UserError, match=r"objective.subwords.min_length: 5 is more than max_length, 4"):
        objective("cbow", subwords={"min_length": 5, "max_length": 4}).check(model, 9, Vocabulary(size=V))
    for h in (objective("cbow", z_loss=1e-4), GloVe(z_loss=1e-4)):
        assert h.idle_settings() == (f"objective.z_loss: not used by {h.kind}; remove it",)


def test_settings_of_the_other_classifier_are_refused():
    model, kind = WordVectorsConfig(vocab_size=V, embed_dim=D), resolve("cbow", "jaxpt.objectives", Objective)
    tree = {"classifier": "hierarchical_softmax"}
    for options in ({}, tree, tree | {"code_length": 9, "negatives": 5}, {"negatives": 9}):
        kind(**options).check(model, 9, Vocabulary(size=V))
    for options in (tree | {"negatives": 9}, tree | {"noise": 9}, tree | {"noise_exponent": 0.5}, {"code_length": 9}):
        name = [*options][-1]
        with pytest.raises(UserError, match=rf"objective\.{name}: not used with objective\.classifier=.*its default"):
            kind(**options).check(model, 9, Vocabulary(size=V))


def test_tables_of_ngrams_start_as_fasttexts():
    h = objective("skip_gram", subwords={"buckets": 5000})
    params = h.network(WordVectorsConfig(vocab_size=V, embed_dim=D)).init(jax.random.key(0))
    table = np.abs(params["heads"]["subwords"]["table"])
    assert 0.9 / D < table.max() <= 1 / D and abs(table.mean() * D - 0.5) < 0.02


def test_without_subsampling_a_text_fills_its_rows():
    def cut(subsample):
        spec = objective("skip_gram", subsample=subsample).data_spec(40)
        return [call.kwargs["length"] for call in spec.transforms(None, 0).offline if "length" in call.kwargs]

    assert cut(0.0) == [40] and cut(1e-3) == [52]


def test_docstrings():
    for module in (skip_gram, word2vec, huffman, subwords):
        assert doctest.testmod(module).failed == 0
