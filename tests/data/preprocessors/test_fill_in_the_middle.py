"""Fill-in-the-middle over three thousand texts: shares, the order of the parts, nothing lost, uniform cuts."""

import collections

import pytest

from jaxpt.data.preprocessors import fill_in_the_middle
from tests.data.preprocessors import corpus

PRE, SUF, MID, EOS = 900, 899, 898, 1
MARKS = {"prefix": PRE, "suffix": SUF, "middle": MID, "eos": EOS}


def moved(rows, **rates):
    return [x.tolist() for x in corpus.run(fill_in_the_middle.rearrange, rows, **rates, **MARKS)["tokens"]]


def parts(ids):
    """(order, the text that they were made of)."""
    assert ids[0] == PRE and ids[-1] == EOS
    suffix, middle = ids.index(SUF), ids.index(MID)
    before, after, rest = ids[1:suffix], ids[suffix + 1 : middle], ids[middle + 1 : -1]
    return ("spm" if suffix == 1 and rest else "psm", before + rest + after)


def test_every_text_can_be_put_together_again():
    texts = [[*text, EOS] if n % 2 else [*text] for n, text in enumerate(corpus.texts())]
    made = moved(texts, rate=0.5, spm_rate=0.5)
    orders = collections.Counter()
    for text, ids in zip(texts, made):
        if PRE not in ids:
            assert ids == text
            orders["plain"] += 1
            continue
        order, again = parts(ids)
        assert again == (text[:-1] if text[-1] == EOS else text)
        assert len(ids) <= len(text) + 4
        orders[order] += len(text) > 40
    assert orders["plain"] / len(texts) == pytest.approx(0.5, abs=0.02)
    # Where the prefix is empty (2 in 53 of these), the two orders look the same.
    assert orders["spm"] / (orders["spm"] + orders["psm"]) == pytest.approx(0.5 + 0.5 * 2 / 53, abs=0.04)


def test_all_or_none():
    texts = corpus.numbered([5] * 200)
    assert moved(texts, rate=0.0, spm_rate=0.5) == [text.tolist() for text in texts]
    assert all(PRE in ids for ids in moved(texts, rate=1.0, spm_rate=0.5))


def test_cuts_are_uniform():
    """Three tokens have four places, so that equal cuts have 1/16 and different ones 2/16."""
    cuts = collections.Counter()
    for ids in moved(corpus.numbered([3] * 8000), rate=1.0, spm_rate=0.0):
        prefix = ids.index(SUF) - 1
        cuts[prefix, prefix + len(ids) - ids.index(MID) - 2] += 1
    assert len(cuts) == 10
    expected = {cut: 500 if cut[0] == cut[1] else 1000 for cut in cuts}
    assert sum((n - expected[cut]) ** 2 / expected[cut] for cut, n in cuts.items()) < 27.9  # 9 degrees of freedom
