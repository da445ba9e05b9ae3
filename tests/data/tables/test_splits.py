import collections
import pickle
import random

import pytest

from jaxpt.data.tables import digest, held_out, overlap


def table(seed=0, count=1000):
    random_ = random.Random(seed)
    return [(f"text {i}", random_.choices("abc", (0.7, 0.25, 0.05))[0]) for i in range(count)]


def split_of(rows, fraction=0.1):
    return held_out(rows, lambda row: row[0], lambda row: row[1], fraction)


def chosen(rows, split):
    return [row for row in rows if split.is_held_out(*row)]


def test_the_fraction_of_each_label():
    rows = table()
    counts = collections.Counter(label for _, label in rows)
    held = collections.Counter(label for _, label in chosen(rows, split_of(rows)))
    assert held == {label: round(0.1 * count) for label, count in counts.items()}


def test_order_and_chunks_do_not_matter():
    rows = table()
    shuffled = random.Random(1).sample(rows, len(rows))
    split = split_of(rows)
    assert split == split_of(shuffled) and hash(split) == hash(split_of(shuffled))
    assert pickle.loads(pickle.dumps(split)) == split and repr(split) == repr(split_of(shuffled))
    halves = chosen(rows[:500], split) + chosen(rows[500:], split)
    assert halves == chosen(rows, split)


def test_small_labels():
    """One of two is held out, the only one never, nor all."""
    rows = [("a1", "a"), ("b1", "b"), ("b2", "b"), ("c", "c"), ("c", "c"), ("c", "c")]
    assert [label for _, label in chosen(rows, split_of(rows))] == ["b"]
    assert collections.Counter(label for _, label in chosen(rows, split_of(rows, 0.99))) == {"b": 1}


def test_equal_texts_are_on_one_side_whatever_their_labels():
    random_ = random.Random(3)
    rows = [(f"text {random_.randrange(200)}", random_.choice("abcdefgh")) for _ in range(600)]
    split = split_of(rows, 0.2)
    sides = collections.defaultdict(set)
    for row in rows:
        sides[row[0]].add(split.is_held_out(*row))
    assert all(len(of) == 1 for of in sides.values()) and split.exceptions
    assert 0.1 < len(chosen(rows, split)) / len(rows) < 0.3
    held = chosen(rows, split)
    assert overlap((t for t, _ in rows if t not in {h for h, _ in held}), (t for t, _ in held)) == 0
    assert split == split_of(rows[::-1], 0.2)


def test_strata_of_a_regression_are_quantiles():
    rows = [(f"text {i}", i * i / 100) for i in range(1000)]
    split = held_out(rows, lambda row: row[0], lambda row: row[1], 0.1, quantiles=5)
    held = [round(value**0.5 * 10) for _, value in rows if split.is_held_out(_, value)]
    assert collections.Counter(i // 200 for i in held) == dict.fromkeys(range(5), 20)
    equal = [(f"text {i}", 1.0) for i in range(50)]
    split = held_out(equal, lambda row: row[0], lambda row: row[1], 0.1, quantiles=5)
    assert len(chosen(equal, split)) == 5


def test_by_hash_alone():
    rows = [(f"text {i}", f"other {i}") for i in range(200)]
    split = held_out(rows, lambda row: row, lambda row: "", 0.1)
    assert sum(split.is_held_out(row) for row in rows) == 20


def test_more_rows_are_held_out_of_a_larger_fraction():
    rows = table()
    assert set(chosen(rows, split_of(rows, 0.1))) < set(chosen(rows, split_of(rows, 0.3)))


def test_what_is_wrong():
    with pytest.raises(ValueError, match="fraction"):
        split_of(table(), 1.0)
    with pytest.raises(ValueError, match="quantiles"):
        held_out([], str, float, 0.1, quantiles=1)
    with pytest.raises(KeyError, match="unseen"):
        split_of(table()).is_held_out("text", "unseen")


def test_rows_of_the_other_split_are_counted():
    assert overlap(iter(["a", "b"]), iter(["b", "b", "c", "B", "b "])) == 2
    assert overlap([], ["a"]) == overlap(["a"], []) == 0


def test_pairs():
    assert overlap([("a", "b")], [("a", "b"), ("b", "a"), ["a", "b"]]) == 2


def test_digests_are_the_same_everywhere():
    assert digest("the cat sat") == 0xD700343DBC4FB4E6
    assert digest("\ud800") != digest("")  # half a surrogate pair, as JSON can spell it
