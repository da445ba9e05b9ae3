"""ELMo: words read by their characters, in the vocabulary or spelled; texts of a row by themselves; its states."""

import functools

import jax
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.decode.embed import embed
from jaxpt.models import characters
from jaxpt.models.elmo import ELMoConfig
from jaxpt.models.heads import features
from jaxpt.models.layers import PARAMETER_AXES
from jaxpt.models.network import Network
from jaxpt.models.output import Output
from jaxpt.objectives.bidirectional_lm import BidirectionalLM
from tests.models.helpers import drawn

WORDS = ["</S>", "<S>", "<UNK>", "cat", "sat", "überall", "x" * 30]
SPELLED = len(WORDS)
VOCABULARY = Vocabulary(SPELLED + 512, bos=1, eos=0, unk=2, cls=1, sep=0, spelled_from=SPELLED)
SIZES = {"layers": 3, "embed_dim": 12, "cells": 8, "char_dim": 4, "filters": ((1, 4), (3, 8)), "longest_word": 12}


@functools.cache
def elmo():
    """(network, parameters with the words' characters)."""
    config = ELMoConfig(vocab_size=VOCABULARY.size, dtype="float32", **SIZES)
    network = Network(config.build())
    params = drawn(network)
    params["model"]["words"]["spelling"] = characters.spelling(WORDS, VOCABULARY, 12, VOCABULARY.size)
    return network, params


def spelled(word):
    return [SPELLED + byte + 256 * (n > 0) for n, byte in enumerate(word.encode())]


PIECES = [[1], spelled("cat"), spelled("überall"), spelled("x" * 30), [4], [0]]
"""[1, 3, 5, 6, 4, 0], some of its words spelled."""


@functools.cache
def encode():
    network, params = elmo()
    return jax.jit(lambda tokens, ids: network.bind(params).encode(tokens, segment_ids=ids, layers=True).layers)


def states(tokens, ids=None, length=64):
    """All layers' states of a row [N, L, D]."""
    row = np.pad(np.array(tokens), (0, length - len(tokens)))[None]
    ids = np.pad(np.ones(len(tokens), int) if ids is None else np.array(ids), (0, length - len(tokens)))[None]
    return np.asarray(encode()(row, ids))[:, 0, : len(tokens)]


@pytest.mark.gpu
def test_a_spelled_word_has_the_states_of_the_same_word():
    """At each of its tokens, and so do its neighbours; a word that is too long loses its end."""
    known = states([1, 3, 5, 6, 4, 0])
    found = states([i for word in PIECES for i in word])
    sizes = [len(word) for word in PIECES]
    np.testing.assert_allclose(found, np.repeat(known, sizes, axis=1), rtol=1e-5, atol=1e-6)
    assert np.abs(known[1:, 1] - known[1:, 4]).max() > 0.01


def test_a_spelled_word_counts_once_in_means():
    """As bilm-tf's batches have one vector for each word."""
    given, texts = (*elmo(), BidirectionalLM(), VOCABULARY), [[4] * 8 + [3], [4] * 8 + spelled("cat")]
    for spans in (None, [np.array([[0, len(text)]]) for text in texts]):
        known, found = embed(*given, texts, spans=spans).vectors
        np.testing.assert_allclose(found, known, rtol=1e-4, atol=1e-6)


def test_a_bilstm_reads_a_spelled_word_once():
    """And has its outputs at all of the word's tokens; each text of a row by itself."""
    (network, params), config = elmo(), features.FeaturesConfig(bilstm={"size": 3})
    heads, _ = features.declare(network.config, config, "encoder")
    reader = Network(network.config.build(), heads)
    bound = reader.bind({**drawn(reader), "model": params["model"]})

    @jax.jit
    def read_states(hidden, starts, ids):
        return features.apply(config, bound, Output(hidden, word_starts=starts), ids).hidden

    def read(tokens, ids):
        tokens, ids = np.array(tokens), np.array(ids)
        return read_states(states(tokens, ids)[-1:], (tokens < SPELLED + 256)[None], ids[None])

    sizes = [len(word) for word in PIECES]
    known, ids = read([1, 3, 5, 6, 4, 0], [1, 1, 1, 2, 2, 2]), np.repeat([1, 1, 1, 2, 2, 2], sizes)
    found = read([i for word in PIECES for i in word], ids)
    np.testing.assert_allclose(found, np.repeat(known, sizes, axis=1), rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_layers_are_the_words_twice_and_both_directions():
    found = states([1, 3, 4, 0])
    assert found.shape == (4, 4, 12)
    np.testing.assert_array_equal(found[0, :, :6], found[0, :, 6:])
    other = states([1, 3, 3, 0])  # the forward states before the word, and the backward states after it, are the same
    np.testing.assert_allclose(found[1:, :2, :6], other[1:, :2, :6], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1:, 3:, 6:], other[1:, 3:, 6:], rtol=1e-5, atol=1e-6)
    assert np.abs(found[1:, 3, :6] - other[1:, 3, :6]).min(-1).max() > 0


@pytest.mark.gpu
def test_texts_of_a_row_do_not_see_each_other():
    alone = [states([1, 3, *spelled("tac"), 0]), states([1, 4, 0])]
    row = states([1, 3, *spelled("tac"), 0, 1, 4, 0], [1] * 6 + [2] * 3)
    np.testing.assert_allclose(row, np.concatenate(alone, axis=1), rtol=1e-5, atol=1e-6)


def test_characters_are_no_weights():
    network, params = elmo()
    total = sum(x.size for x in jax.tree.leaves(params)) - params["model"]["words"]["spelling"].size
    assert network.count_params() == total
    for names in jax.tree.leaves(network.logical_axes(), is_leaf=lambda x: isinstance(x, tuple)):
        assert set(names) <= set(PARAMETER_AXES)
    table = characters.spelling(WORDS, VOCABULARY, 12, VOCABULARY.size)
    codes = [characters.WORD_BEGIN, *(byte + 1 for byte in b"cat"), characters.WORD_END]
    assert table[3].tolist() == codes + [characters.NOTHING] * 7
    assert table[1, 1] == characters.SENTENCE_BEGIN and table[0, 1] == characters.SENTENCE_END


def test_sizes_that_do_not_fit_are_refused():
    for fields, message in (
        ({"embed_dim": 13}, "embed_dim: 13 is odd"),
        ({"cells": 5}, "cells: 5 are fewer than a direction's outputs"),
        ({"filters": ((13, 2),)}, "one of 13 characters; longest_word is 12"),
    ):
        with pytest.raises(ValueError, match=message):
            ELMoConfig(vocab_size=9, **SIZES | fields)
