"""BART's noises over three thousand texts, each by itself and all together."""

import collections
import math

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.preprocessors import bart
from tests.data.preprocessors import corpus

MASK, BOS, EOS = 258, 2, 1
SPACE, STOP = ord(" ") + 3, ord(".") + 3
TEXTS = corpus.texts()
OFF = {
    "permute_sentences": 0.0, "mask_rate": 0.0, "mask_length": "span", "poisson_lambda": 3.0, "replace": "span",
    "random_probability": 0.0, "insert_rate": 0.0, "rotate": 0.0,
}  # fmt: skip


def noised(rows=TEXTS, number=0, **settings):
    """Inputs without BOS and EOS, as lists; the targets are compared with the texts."""
    ids = {"vocabulary": seqio.ByteVocabulary(), "mask": MASK, "vocab_size": 259, "bos": BOS, "eos": EOS}
    made = corpus.run(bart.noise, rows, number, **OFF | settings | ids)
    for text, target in zip(rows, made["targets"]):
        assert target.tolist() == [BOS, *text, EOS]
    inputs = [x.tolist() for x in made["inputs"]]
    assert all(x[0] == BOS and x[-1] == EOS for x in inputs)
    return [x[1:-1] for x in inputs]


def words(text):
    """What stands before the first space, and each space with what follows it."""
    at = np.flatnonzero(np.asarray(text) == SPACE)
    return [piece.tolist() for piece in np.split(np.asarray(text), at)]


def test_without_noise_the_inputs_are_the_text():
    assert noised() == [text.tolist() for text in TEXTS]


def test_word_masking_takes_the_share_rounded_up_and_whole_words():
    for text, inputs in zip(TEXTS, noised(mask_rate=0.3, mask_length="word")):
        first, *rest = words(text)
        assert inputs.count(MASK) == math.ceil(len(rest) * 0.3)
        kept = [[]]
        for token in inputs:
            kept.append([]) if token in (SPACE, MASK) else None
            kept[-1].append(token)
        assert kept[0] == first
        assert all(got in ([MASK], word) for got, word in zip(kept[1:], rest, strict=True))


def test_token_deletion_takes_the_share_of_tokens():
    rows = corpus.numbered(corpus.lengths(), first=3)
    for text, inputs in zip(rows, noised(rows, mask_rate=0.3, mask_length="subword", replace="nothing")):
        assert len(inputs) == len(text) - math.ceil(len(text) * 0.3) and inputs == sorted(set(inputs) & set(text))


def test_each_token_of_a_masked_word_has_a_mask():
    for text, inputs in zip(TEXTS, noised(mask_rate=0.3, mask_length="word", replace="token")):
        first, *rest = words(text)
        assert inputs[: len(first)] == first
        at, masked = len(first), 0
        for word in rest:
            got = inputs[at : at + len(word)]
            assert got == word or got == [MASK] * len(word)
            at, masked = at + len(word), masked + (got != word)
        assert masked == math.ceil(len(rest) * 0.3) and at == len(inputs)


def test_infilling_leaves_one_mask_a_span_and_never_makes_a_text_longer():
    """Every word is masked at most once, in order, and no more of them than the share."""
    rows, sizes = [[SPACE] * n for n in corpus.lengths()], collections.Counter()
    rows = [np.array(row) for row in rows]
    for text, inputs in zip(rows, noised(rows, mask_rate=0.3)):
        budget, masks = math.ceil(len(text) * 0.3), inputs.count(MASK)
        assert len(inputs) <= len(text) and len(text) - inputs.count(SPACE) <= budget
        sizes["masks"] += masks
        sizes["lost"] += len(text) - inputs.count(SPACE)
        sizes["budget"] += budget
    assert 0.75 < sizes["lost"] / sizes["budget"] < 0.95  # spans overlap
    assert sizes["lost"] / sizes["masks"] == pytest.approx(2.6, abs=0.3)


def test_lengths_are_poisson_trimmed_to_the_budget():
    lengths, empty = bart.span_lengths(corpus.keys(1000), tf.fill([1000], 200), 3.0)
    lengths = lengths.numpy()
    assert (lengths.sum(1) == 200).all()
    count, zeros = (lengths > 0).sum(), empty.numpy().sum()
    assert zeros / (zeros + count) == pytest.approx(math.exp(-3), abs=0.003)
    assert (lengths == 2).sum() / (zeros + count) == pytest.approx(math.exp(-3) * 4.5, rel=0.04)
    assert not lengths[:, (lengths > 0).sum(1).max() :].any()
    lengths, empty = bart.span_lengths(corpus.keys(50), tf.zeros([50], tf.int32), 3.0)
    assert not lengths.numpy().any() and not empty.numpy().any()


def test_random_tokens_are_a_share_of_the_masks():
    """Of lengths of mean 8 one in three thousand is an insertion: of few insertions more than a share is random."""
    rows, settings = [np.full(n, SPACE) for n in corpus.lengths()], {"poisson_lambda": 8.0, "random_probability": 0.1}
    inputs = np.concatenate([np.array(x) for x in noised(rows, mask_rate=0.3, **settings)])
    other = inputs[inputs != SPACE]
    assert (other != MASK).mean() == pytest.approx(0.1, abs=0.01)
    assert other.min() < 10 and other.min() >= 1


def test_insertions_are_a_share_of_the_length_and_the_text_stays_in_order():
    rows = corpus.numbered(corpus.lengths(), first=300)
    at = collections.Counter()
    for text, inputs in zip(rows, noised(rows, insert_rate=0.1)):
        assert [i for i in inputs if i != MASK] == text.tolist()
        assert inputs.count(MASK) == math.ceil((len(text) + 2) * 0.1)
        at[inputs.index(MASK)] += len(text) == 3
    assert {0, 1, 2, 3} <= set(at)


def sentences(text):
    """Cut after each full stop that follows another token; what follows the last is by itself."""
    found, first = [], 0
    for n, token in enumerate(text):
        is_end = token == STOP or n == len(text) - 1
        if is_end and not (n > 0 and text[n - 1] == STOP):
            found.append(tuple(text[first : n + 1]))
            first = n + 1
    return found, tuple(text[first:])


def test_sentences_change_places_and_their_tokens_stay_together():
    texts = [np.where(text % 11 == 0, STOP, text) for text in TEXTS]  # more sentences than the corpus has
    texts[0] = np.array([STOP, STOP, 5, STOP, STOP])
    moved = 0
    for text, inputs in zip(texts, noised(texts, permute_sentences=1.0)):
        found, tail = sentences(text.tolist())
        assert len(inputs) == len(text) and tuple(inputs[len(inputs) - len(tail) :]) == tail
        rest, left = inputs[: len(inputs) - len(tail)], collections.Counter(found)
        while rest:
            sentence = next(s for s in sorted(left, key=len, reverse=True) if left[s] and tuple(rest[: len(s)]) == s)
            left[sentence] -= 1
            rest = rest[len(sentence) :]
        moved += inputs != text.tolist()
    assert moved > 0.2 * len(texts)


def test_orders_of_sentences_are_uniform():
    text = np.array([10, STOP, 20, STOP, 30, STOP])
    orders = collections.Counter(tuple(x[::2]) for x in noised([text] * 6000, permute_sentences=1.0))
    assert len(orders) == 6
    assert sum((n - 1000) ** 2 / 1000 for n in orders.values()) < 20.5  # 5 degrees of freedom, 1 in 1,000
    half = noised([text] * 600, permute_sentences=0.4)  # ceil(1.2): two of the three
    assert {tuple(x[::2]) for x in half} == {(10, 20, 30), (20, 10, 30), (30, 20, 10), (10, 30, 20)}


def test_rotation_begins_anywhere():
    rows = corpus.numbered([4] * 5000, first=300)
    begins = collections.Counter(x[0] for x in noised(rows, rotate=1.0))
    assert begins[300] / 5000 == pytest.approx(0.4, abs=0.03)  # turns of 0 and of 4
    for x in noised(rows, rotate=1.0)[:100]:
        assert x == [300 + (x[0] - 300 + n) % 4 for n in range(4)]
    turned = sum(x[0] != 300 for x in noised(rows, rotate=0.5))
    assert turned / 5000 == pytest.approx(0.3, abs=0.03)


def test_all_noises_together_on_the_shortest_texts():
    settings = {"permute_sentences": 1.0, "mask_rate": 0.3, "insert_rate": 0.1, "rotate": 1.0, "poisson_lambda": 1.0}
    for text, inputs in zip(TEXTS, noised(**settings, random_probability=0.1)):
        assert len(inputs) <= len(text) + math.ceil((len(text) + 2) * 0.1)
