"""Texts and their translations in one record, over 2,000 pairs of real text."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.preprocessors import translations
from jaxpt.data.sources.readers import PAIR_SEPARATOR
from tests.data.preprocessors import corpus

COUNT, SEP, LENGTH = 2_000, 1, 100


@pytest.mark.slow
def test_each_side_is_enclosed_and_long_pairs_are_left_out():
    texts = [bytes((ids - 3).astype(np.uint8)) for ids in corpus.texts(2 * COUNT)]
    pairs = [(a, b) for a, b in zip(texts[::2], texts[1::2])]
    ds = tf.data.Dataset.from_tensor_slices(
        {"text": [a + PAIR_SEPARATOR.encode() + b for a, b in pairs], "origin": [[0, i] for i in range(COUNT)]}
    )
    ds = translations.join(ds, seqio.ByteVocabulary(), ["de", "en"], LENGTH, SEP, ["en", "fr", "de"], types=True)
    kept = set()
    for ex in ds.as_numpy_iterator():
        number = int(ex["origin"][1])
        kept.add(number)
        a, b = (len(text) + 2 for text in pairs[number])
        sides = [[SEP, *(byte + 3 for byte in text), SEP] for text in pairs[number]]
        assert ex["tokens"].tolist() == sides[0] + sides[1]
        assert ex["token_types"].tolist() == [2] * a + [0] * b
        assert ex["positions"].tolist() == [*range(a), *range(b)]
    assert kept == {i for i, (a, b) in enumerate(pairs) if len(a) + len(b) + 4 <= LENGTH}
    assert 0.5 * COUNT < len(kept) < COUNT


def test_pairs_with_a_long_or_an_empty_text_are_left_out():
    """XLM's `remove_long_sentences` and `remove_empty_sentences`."""
    pairs = [("ab", "cd"), ("abc", "d"), ("abcd", "e"), ("e", "abcd"), ("", "a"), ("a", "")]
    texts = [a + PAIR_SEPARATOR + b for a, b in pairs]
    ds = tf.data.Dataset.from_tensor_slices({"text": texts, "origin": [[0, i] for i in range(len(texts))]})
    made = translations.join(ds, seqio.ByteVocabulary(), ["de", "en"], 20, SEP, [], types=True, text_length=3)
    assert [int(ex["origin"][1]) for ex in made.as_numpy_iterator()] == [0, 1]
