"""Whole words, n-grams and spans on real text: against the published programs, which draw one unit after the other."""

import math
from pydoc_data.topics import topics

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.preprocessors import masked_lm, units
from jaxpt.data.preprocessors.batched import fold_in
from jaxpt.data.vocabularies import to_seqio
from jaxpt.objectives.masked_lm import MaskedLM

CLS, SEP, MASK, LENGTH, EXAMPLES = 2, 3, 4, 40, 10_000
UNITS = ("word", "ngram", "span")


@pytest.fixture(scope="module")
def text():
    """(vocabulary, whether an id starts a word, records [CLS] a [SEP] b [SEP])."""
    texts = list(topics.values())
    tokenizer = tokenizers.train(texts[::2], TokenizerConfig(kind="wordpiece", lowercase=True), 500)
    ids = np.concatenate([np.array(x) for x in tokenizer.encode_batch(texts)])
    rows = np.resize(ids, (EXAMPLES, LENGTH - 3))
    cls, sep = np.full((EXAMPLES, 1), CLS), np.full((EXAMPLES, 1), SEP)
    records = np.concatenate([cls, rows[:, :20], sep, rows[:, 20:], sep], axis=1).astype(np.int32)
    return to_seqio(tokenizer), tokenizer.word_starts(), records


def masked(vocabulary, records, unit, rounding="nearest", **options):
    """(masked records, whether each place was chosen)."""
    defaults = {
        "max_predictions": 20,
        "mask_probability": 0.8,
        "random_probability": 0.1,
        "never": [0, 1, CLS, SEP, MASK],
    }
    ids = {"mask": MASK, "cls": CLS, "sep": SEP, "vocab_size": vocabulary.vocab_size, "vocabulary": vocabulary}
    how = {"rate": 0.15, "unit": unit, "shares": MaskedLM(unit=unit).word_shares(), "rounding": rounding}
    batch = {"tokens": tf.RaggedTensor.from_tensor(records, row_splits_dtype=tf.int64)}
    keys = tf.constant(fold_in(np.arange(len(records), dtype=np.uint64), 0))
    out = masked_lm.mask.batched(batch, keys, **defaults | ids | how | options)
    chosen = np.zeros(records.shape, bool)
    chosen[out["masked_positions"].value_rowids(), out["masked_positions"].values] = True
    np.testing.assert_array_equal(out["masked_targets"].values, records[chosen])
    return out["tokens"].to_tensor().numpy(), chosen


def heads(records, starts):
    """Whether a word begins: by the vocabulary, and after a special token."""
    special = np.isin(records, [CLS, SEP])
    return special | starts[records] | np.roll(special, 1, axis=1)


@pytest.fixture(scope="module")
def choices(text):
    vocabulary, _, records = text
    return {unit: masked(vocabulary, records, unit, "up" if unit == "span" else "nearest") for unit in UNITS}


@pytest.mark.parametrize("unit", UNITS)
def test_words_stay_whole(text, choices, unit):
    """And as many are chosen as fit: no word that was left would, unless its n-gram met a word that was taken. A
    span's last word alone may be cut."""
    _, starts, records = text
    shown, chosen = choices[unit]
    head = heads(records, starts)
    assert not chosen[np.isin(records, [CLS, SEP])].any()
    np.testing.assert_array_equal(np.delete(shown, 0, 1)[~chosen[:, 1:]], np.delete(records, 0, 1)[~chosen[:, 1:]])
    count = chosen.sum(1)
    inside = chosen[:, 1:] != chosen[:, :-1]  # the choice begins or ends here
    begins, splits = (inside & chosen[:, 1:] & ~head[:, 1:]).sum(1), (inside & ~chosen[:, 1:] & ~head[:, 1:]).sum(1)
    assert (begins == 0).all()
    if unit == "span":
        assert (count == math.ceil(0.15 * (LENGTH - 3))).all() and splits.max() == 1 and splits.mean() < 0.5
        return
    assert (splits == 0).all() and (count <= 6).all() and count.mean() > 5.8
    word = np.cumsum(head, axis=1)
    for row in np.flatnonzero(count < 6):
        left = np.bincount(word[row], weights=~chosen[row] & ~np.isin(records[row], [CLS, SEP]))
        taken = np.bincount(word[row], weights=chosen[row]) > 0
        for fits in np.flatnonzero((left > 0) & (left <= 6 - count[row])):
            # ALBERT's rule passes over an n-gram of which another word is taken, though its first one would fit.
            assert unit == "ngram" and taken[fits + 1 : fits + 3].any()


def test_fates_are_drawn_for_each_piece_or_each_span(text, choices):
    """Of neighbours chosen together pieces go their own ways, a span's never: 80/10/10 of pieces or of spans."""
    _, _, records = text
    for unit, (shown, chosen) in choices.items():
        is_masked = (shown == MASK) & chosen
        both = chosen[:, 1:] & chosen[:, :-1]
        differ = (is_masked[:, 1:] != is_masked[:, :-1])[both].mean()
        assert differ == 0 if unit == "span" else abs(differ - 2 * 0.8 * 0.2) < 0.02
        first = chosen & ~np.roll(chosen, 1, axis=1) if unit == "span" else chosen
        assert shown[chosen & ~is_masked & (shown != records)].min() > MASK
        for share, expected in ((is_masked[first], 0.8), ((shown == records)[first], 0.1 + 0.1 / 495)):
            assert abs(share.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / first.sum())


def published(unit, order, lengths, budget, words, runs):
    """ALBERT's and SpanBERT's choice, unit after unit; `words` and `runs` of text are numbered by place."""
    taken = set()
    size = len(words)

    def span(start, n):
        return [i for i in range(start, size) if runs[i] == runs[start] and words[i] < words[start] + n]

    for anchor, n in zip(order, lengths):
        start = min(i for i in range(size) if words[i] == words[anchor])
        if unit == "span":
            if anchor in taken:
                continue
            for i in span(start, n):
                if len(taken) >= budget:
                    break
                taken.add(i)
            continue
        if len(taken) >= budget:
            break
        fitting = [m for m in range(1, n + 1) if len(taken) + len(span(start, m)) <= budget]
        if fitting and not taken & set(span(start, fitting[-1])):
            taken |= set(span(start, fitting[-1]))
    return taken


@pytest.mark.parametrize("unit", UNITS)
def test_the_choice_is_that_of_the_published_program(text, unit):
    _, starts, records = text
    records = records[:150]
    special = np.isin(records, [CLS, SEP])
    candidates = np.flatnonzero(~special)
    first = np.arange(len(records) + 1) * (LENGTH - 3)
    found = units.words(records.ravel(), candidates, first, starts)
    keys = fold_in(np.arange(len(records), dtype=np.uint64), 0)
    shares = MaskedLM(unit=unit).word_shares()
    places = units.choose(keys, found, np.full(len(records), 9), unit, shares)
    orders, lengths = units.draws(keys, found, unit, shares)
    runs = np.cumsum(special.ravel())[candidates].reshape(len(records), -1)
    for row, count in enumerate(np.diff(found.splits_R1)):
        of_row = found.word_C[first[row] : first[row + 1]]
        words = of_row - of_row[0]
        order = [int(np.flatnonzero(words == word)[0]) for word in orders[row, :count]]
        expected = published(unit, order, lengths[row, :count], 9, words, runs[row])
        assert places[row][places[row] < 2**31 - 1].tolist() == sorted(expected)


@pytest.mark.slow
def test_shares_of_lengths(text):
    """Words of one piece, three or ten of 600 to choose: how often they stand together tells how units are drawn."""
    vocabulary, starts, _ = text
    plain = np.flatnonzero(starts)[10:400]
    records = np.resize(plain, (3000, 600)).astype(np.int32)
    records[:, 0] = CLS
    runs = {}
    for unit, count in (("ngram", 3), ("span", 10)):
        _, chosen = masked(vocabulary, records, unit, max_predictions=count)
        assert (chosen.sum(1) == count).all()
        runs[unit] = (chosen & ~np.roll(chosen, 1, axis=1)).sum(1)
    # 1 + 1 + 1 of n-grams: twice a single word, the third has room for no more.
    longest = MaskedLM(unit="span").word_shares()[9]
    for found, expected in (
        (runs["ngram"] == 1, 2 / 11),
        (runs["ngram"] == 3, (6 / 11) ** 2),
        (runs["span"] == 1, longest),
    ):
        assert abs(found.mean() - expected) < 0.012 + 3 * np.sqrt(expected * (1 - expected) / 3000)


def test_word_starts():
    texts = list(topics.values())[:30]
    for kind, begins in (("wordpiece", ["the"]), ("sentencepiece", ["▁the"]), ("bpe", [" the"])):
        tokenizer = tokenizers.train(texts, TokenizerConfig(kind=kind), 600)
        starts, pieces = tokenizer.word_starts(), tokenizer.tokens(range(tokenizer.vocabulary.size))
        assert [p for p in begins if starts[pieces.index(p)]] == begins
        assert 0.2 < starts.mean() < 0.9
        ids = np.array(tokenizer.encode("The tokenization of uncharacteristically long words."))
        assert starts[ids][1:].sum() in (5, 6)  # and the full stop, which WordPiece keeps apart
