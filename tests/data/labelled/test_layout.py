import doctest

import numpy as np
import pytest

from jaxpt.data.labelled import layout
from jaxpt.data.labelled.layout import TextLayout, cut, lay
from jaxpt.errors import UserError


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(layout)
    assert tried and not failed


def slowly_cut(a, b, room):
    """BERT's published rule: one token after the other off the longer text."""
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return a, b


def test_the_longer_text_is_cut_as_in_berts_code():
    rng = np.random.default_rng(0)
    for _ in range(500):
        a, b = (list(range(n)) for n in rng.integers(0, 12, 2))
        room = int(rng.integers(0, 24))
        kept, is_cut = cut([a, b], room, "longest_first", "here")
        assert tuple(kept) == slowly_cut(a, b, room)
        assert is_cut == (len(a) + len(b) > room)


def test_halves_are_those_of_gpt1s_code():
    """train.py: max_len = n_ctx // 2 - 2, of [start] a [delimiter] b [classify]."""
    for length in (16, 17):
        for sizes in ((20, 20), (3, 20), (20, 3), (5, 6), (6, 7)):
            kept, is_cut = cut([list(range(size)) for size in sizes], length - 3, "halves", "here")
            want = [min(size, length // 2 - 2) for size in sizes]
            assert [len(ids) for ids in kept] == want and is_cut == (want != list(sizes))


def test_one_text_alone_is_cut_or_an_error():
    assert cut([[1, 2, 3], [4, 5]], 3, "first", "here") == ([[1], [4, 5]], True)
    assert cut([[1, 2, 3], [4, 5]], 4, "second", "here") == ([[1, 2, 3], [4]], True)
    assert cut([[1, 2, 3]], 2, "left", "here") == ([[2, 3]], True) and cut([[1, 2]], 2, "left", "") == ([[1, 2]], False)
    for truncate, words in (("error", "f: line 3: 5 tokens, data.length leaves room for 2"), ("second", "too many")):
        with pytest.raises(UserError, match=words):
            cut([[1, 2, 3], [4, 5]], 2, truncate, "f: line 3")


@pytest.mark.parametrize(
    ("layout", "one", "two", "types"),
    [
        (TextLayout((2,), (3,), (3,), 1), [2, 7, 3], [2, 7, 3, 8, 3], [0, 0, 0, 1, 1]),
        (TextLayout((0,), (5, 5), (5,)), [0, 7, 5], [0, 7, 5, 5, 8, 5], [0] * 6),
        (TextLayout((), (4,), (4, 3), 1, 2, "last"), [7, 4, 3], [7, 4, 8, 4, 3], [0, 0, 1, 1, 2]),
        (TextLayout((), (1,), (1,), pooled="last"), [7, 1], [7, 1, 8, 1], [0] * 4),
    ],
)
def test_special_tokens_of_each_layout(layout, one, two, types):
    assert lay(layout, [[7]]).tokens == one and layout.room(len(one), 1) == 1
    assert lay(layout, [[7], [8]])[:2] == (two, types) and layout.room(len(two), 2) == 2
