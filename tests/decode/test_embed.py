"""Embeddings equal pooled hidden states of a text alone, without padding."""

import functools

import jax
import numpy as np
import pytest

from jaxpt.decode.embed import embed, lay, pool
from jaxpt.errors import UserError
from tests import grids
from tests.decode.helpers import OBJECTIVES, network, texts

TEXTS = texts(4, 25, 4, 1, seed=1)
QUICK = ("bert", "gpt2")


@functools.cache
def _layers(made):
    def run(params, tokens, types):
        bound = made.bind(params)
        if made.config.family == "encoder":
            return bound.encode(tokens, token_types=types, layers=True).layers[:, 0]
        return (bound.decode if made.config.family == "decoder" else bound.encode)(tokens, layers=True).layers[:, 0]

    return jax.jit(run)


def layers(name, text):
    """Hidden states [N + 1, L, D] of one text, and of all its tokens."""
    made, params, _, _ = network(name)
    before, after = {"encoder": ([2], [3]), "decoder": ([], []), "encoder_decoder": ([], [1])}[made.config.family]
    types = [0] * len([*before, *text, *after])
    if name == "xlnet":
        before, after, types[-1] = [], [3, 2], 2
    elif name == "bart":
        before = [3]
    elif name == "umt5":
        before = [203 - 20 + 2]  # [NLU]
    tokens = [*before, *text, *after]
    return np.asarray(_layers(made)(params, np.array([tokens]), np.array([types[: len(tokens)]])))


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(OBJECTIVES, *QUICK, "deberta", "xlnet", "t5", "bart", "umt5"))
def test_padding_changes_no_vector(name):
    """All poolings of texts in a batch, beside the states of each text alone; of some models the states."""
    given, alone = network(name), [layers(name, text) for text in TEXTS]
    poolings = ["none"] + ["mean", "last"] * (name in (*QUICK, "xlnet")) + ["cls"] * (name in ("bert", "xlnet"))
    for pooling in poolings:
        found = embed(*given, TEXTS, pooling=pooling, layer=-1)
        assert found.truncated == 0
        for vector, of_text in zip(found.vectors, alone, strict=True):
            x = of_text[-1]
            cls = x[-1] if name == "xlnet" else x[0]
            wanted = {"mean": x.mean(0), "last": x[-1], "none": x, "cls": cls}[pooling]
            # Other shapes, so other orders of float32 sums: 8 units in the last place of the largest number.
            np.testing.assert_allclose(vector, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", QUICK)
def test_a_layer_is_chosen(name):
    given, of_text = network(name), layers(name, TEXTS[0])
    for layer in (0, 1, -2, 2):
        (vector,) = embed(*given, TEXTS[:1], layer=layer).vectors
        np.testing.assert_allclose(vector, of_text[layer].mean(0), atol=3e-6)
    with pytest.raises(UserError, match=r"layer: 3 is not one of the model's; 0 \(embeddings\) to 2 are"):
        embed(*given, TEXTS[:1], layer=3)


def test_places_of_experts_are_not_shared_between_texts():
    given = network("t5", experts=4, capacity_factor=0.5, group_rows=2)
    for text, vector in zip(TEXTS, embed(*given, TEXTS).vectors, strict=True):
        (alone,) = embed(*given, [text]).vectors
        np.testing.assert_allclose(vector, alone, atol=3e-6)


def test_vectors_have_length_one_on_request():
    plain, unit = (embed(*network("bert"), TEXTS, normalize=normalize).vectors for normalize in (False, True))
    for x, y in zip(plain, unit, strict=True):
        np.testing.assert_allclose(y, x / np.linalg.norm(x), atol=1e-6)
    zero = jax.jit(lambda x, lengths: pool(x, lengths, "mean", normalize=True))(np.zeros((1, 2, 3)), np.array([1]))
    np.testing.assert_array_equal(zero, 0)


def test_a_long_text_loses_its_end():
    (text,) = texts(40)
    found, wanted = (embed(*network("bert"), [x]) for x in (text, text[:30]))
    assert (found.truncated, wanted.truncated) == (1, 0)
    np.testing.assert_array_equal(found.vectors[0], wanted.vectors[0])


def test_bad_input_is_one_line():
    for name, wrong, options, message in [
        ("gpt2", [[5]], {"pooling": "cls"}, r"pooling: cls needs an encoder with \[CLS\], and model.kind: gpt2"),
        ("bert", [[5]], {"pooling": "max"}, "pooling: max is not known; mean, cls, last, none are"),
        ("gpt2", [[5], []], {}, "text 1: has no tokens"),
        ("bert", [[-1]], {}, "text 0: id -1 is not in the vocabulary"),
    ]:
        with pytest.raises(UserError, match=message):
            embed(*network(name), wrong, **options)


@pytest.mark.parametrize("name", QUICK)
def test_words_are_means_over_their_tokens(name):
    """Those without a token, or beyond the positions, are missing; BOS and [CLS] move none."""
    given, (short, long) = network(name), texts(5, 40)
    spans = [np.array([[0, 2], [2, 2], [2, 5]]), np.array([[0, 1], [38, 40]])]
    found = embed(*given, [short, long], layer="all", spans=spans, bos=9)
    assert [numbers.tolist() for numbers in found.rows.numbers] == [[0, 2], [0]] and found.truncated == 1
    states = layers(name, short if name == "bert" else [9, *short])[:, 1:]
    wanted = np.stack([states[:, :2].mean(1), states[:, 2:5].mean(1)], 1)
    np.testing.assert_allclose(found.vectors[0], wanted, atol=3e-6)
    assert found.by_layer().shape == (len(wanted), 3, wanted.shape[-1])


def test_special_tokens_are_those_of_pretraining():
    def laid(name, text, **options):
        made, _, objective, vocabulary = network(name)
        return lay(made, objective, vocabulary, [text], **options).tokens[0]

    assert laid("bert", [5, 6]) == [2, 5, 6, 3] and laid("bert", []) == [2, 3]
    assert laid("t5", [5, 6]) == [5, 6, 1] and laid("bart", [5, 6]) == [3, 5, 6, 1]
    assert laid("gpt2", [5, 6]) == [5, 6]
    assert laid("gpt2", [5, 6], bos=9) == laid("gpt2", [9, 5, 6], bos=9) == [9, 5, 6]
    assert laid("bert", texts(40)[0], bos=9) == [2, *texts(40)[0][:30], 3]
