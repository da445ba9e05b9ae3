from jaxpt.data.tables import overlap
from jaxpt.data.tables.overlap import digest


def test_rows_of_the_other_split_are_counted():
    assert overlap(iter(["a", "b"]), iter(["b", "b", "c", "B", "b "])) == 2
    assert overlap([], ["a"]) == overlap(["a"], []) == 0


def test_pairs():
    assert overlap([("a", "b")], [("a", "b"), ("b", "a"), ["a", "b"]]) == 2


def test_digests_are_the_same_everywhere():
    assert digest("the cat sat") == 0xD700343DBC4FB4E6
    assert digest("\ud800") != digest("")  # half a surrogate pair, as JSON can spell it
