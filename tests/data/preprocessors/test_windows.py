"""Windows against a plain reference: every token, every origin."""

import itertools
from pydoc_data.topics import topics

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.data.preprocessors import windows
from jaxpt.data.preprocessors.documents import ragged
from tests import grids
from tests.data.preprocessors import corpus

SEPARATOR, LONGEST = 1, 22


def documents(sizes, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(10, 1000, n).tolist() for n in sizes]


def cut(docs, **kwargs):
    origin = tf.constant([[n % 3, n] for n in range(len(docs))], tf.int64)
    ds = tf.data.Dataset.from_tensor_slices({"tokens": tf.ragged.constant(docs, tf.int32), "origin": origin})
    return [(ex["tokens"].tolist(), ex["origin"].tolist()) for ex in windows.cut(ds, **kwargs).as_numpy_iterator()]


def reference(docs, length, join, separator=None, overlap=0, shortest=1, group=None):
    end = [] if separator is None else [separator]
    docs = [[(token, [n % 3, n, i]) for i, token in enumerate([*doc, *end])] for n, doc in enumerate(docs)]
    size = (group or len(docs)) if join else 1
    for text in (list(itertools.chain(*docs[n : n + size])) for n in range(0, len(docs), size)):
        for start in range(0, max(len(text) - overlap, 1), length - overlap):
            window = text[start : start + length]
            if len(window) >= shortest:
                yield [token for token, _ in window], window[0][1]


WAYS = [
    (join, *way)
    for join in (True, False)
    for way in (
        (1, 0, 1, None),
        (7, 0, 1, None),
        (7, 1, 2, SEPARATOR),
        (7, 6, 1, None),
        (64, 3, 5, SEPARATOR),
        (5000, 0, 1, None),
    )
]
KEPT = [way for way in WAYS if way[3] > 1] + [(True, 1, 0, 1, None), (True, 7, 6, 1, None), (False, 5000, 0, 1, None)]


@pytest.mark.slow
@pytest.mark.parametrize(("join", "length", "overlap", "shortest", "separator"), grids.cases(WAYS, *KEPT))
def test_windows_are_the_references(join, length, overlap, shortest, separator):
    docs = documents([*range(1, 40), 300, 1, 1, 2, *[5] * 20])  # more than one group of documents
    kwargs = {"length": length, "join": join, "separator": separator, "overlap": overlap, "shortest": shortest}
    assert cut(docs, **kwargs) == list(reference(docs, **kwargs))


@pytest.mark.slow
@pytest.mark.parametrize("join", [True, False])
def test_windows_of_real_text(join):
    """Ten thousand windows of the topics of `help()` as bytes: each the stretch of its origin, and all of it."""
    length, overlap, shortest = 48, 9, 20
    docs = [np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 3 for text in topics.values()]
    origin = np.stack([np.arange(len(docs)) % 3, np.arange(len(docs))], 1)
    ds = tf.data.Dataset.from_tensor_slices({"tokens": corpus.ragged(docs), "origin": origin})
    settings = {"join": join, "separator": SEPARATOR, "overlap": overlap, "shortest": shortest}
    made = list(windows.cut(ds, length, **settings).ragged_batch(4096))
    parts, origin = [ragged(part["tokens"]) for part in made], np.concatenate([part["origin"] for part in made])
    tokens, sizes = (np.concatenate(x) for x in zip(*((x.values, x.row_lengths()) for x in parts)))
    assert len(sizes) > 10_000 and sizes.max() == length and sizes.min() >= shortest

    ended = np.array([len(doc) + 1 for doc in docs])
    text = np.concatenate([np.append(doc, SEPARATOR) for doc in docs])
    begins, ends = np.cumsum(ended) - ended, np.cumsum(ended)
    np.testing.assert_array_equal(origin[:, 0], origin[:, 1] % 3)
    first = begins[origin[:, 1]] + origin[:, 2]
    stop = np.full_like(first, len(text)) if join else ends[origin[:, 1]]
    np.testing.assert_array_equal(sizes, np.minimum(length, stop - first))
    nth = np.arange(len(tokens)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    np.testing.assert_array_equal(tokens, text[np.repeat(first, sizes) + nth])
    # Each goes on from the one before it; only a rest of a text that is too short is in none.
    is_next = np.diff(first) == length - overlap
    assert first[0] == 0 and (is_next if join else is_next | np.isin(first[1:], begins)).all()
    covered = np.cumsum(
        np.bincount(first, minlength=len(text) + 1) - np.bincount(first + sizes, minlength=len(text) + 1)
    )
    rests = np.diff(np.flatnonzero(np.diff(np.concatenate([[1], covered[:-1] > 0, [1]]))))[::2]
    assert len(rests) <= (1 if join else len(docs)) and rests.max(initial=0) < shortest - overlap


@pytest.mark.slow
def test_the_last_window():
    """A window of 6 that shares 2: the rest makes one if, and only if, it brings a new token."""
    docs = documents([1, 2, 3, 6, 7, 8, 11, 12])
    kwargs = {"length": 6, "join": True, "overlap": 2, "group": 1}  # each by itself
    assert cut(docs, **kwargs) == list(reference(docs, **kwargs))


@pytest.mark.slow
def test_nothing_is_lost():
    docs = documents(np.random.default_rng(1).integers(1, 50, 70))
    tokens = [token for doc in docs for token in doc]
    for join in (True, False):
        assert [t for window, _ in cut(docs, length=8, join=join) for t in window] == tokens
    overlapped = cut(docs, length=8, join=True, overlap=1, shortest=2)
    assert tokens[:1] + [t for window, _ in overlapped for t in window[1:]] == tokens


@pytest.mark.parametrize("group", [1, 3, 128])
def test_windows_start_anew_after_each_group_of_documents(group):
    docs = documents([9, 1, 30, 2, 5, 6, 7])
    kwargs = {"length": 7, "join": True, "separator": SEPARATOR, "overlap": 1, "shortest": 2, "group": group}
    assert cut(docs, **kwargs) == list(reference(docs, **kwargs))


def test_an_overlap_as_long_as_the_window_is_refused():
    with pytest.raises(ValueError, match="overlap 4"):
        cut(documents([9]), length=4, join=True, overlap=4)


def test_no_documents_no_windows():
    for join in (True, False):
        ds = tf.data.Dataset.from_tensors({"tokens": tf.range(3), "origin": tf.zeros([2], tf.int64)}).take(0)
        assert list(windows.cut(ds, length=4, join=join)) == []


def test_enclose():
    ds = tf.data.Dataset.from_tensors({"tokens": tf.constant([7, 0]), "origin": tf.constant([1, 2, 3])})
    ex = next(windows.enclose(ds, cls=2, sep=3).as_numpy_iterator())
    assert {k: v.tolist() for k, v in ex.items()} == {
        "tokens": [2, 7, 0, 3],
        "token_types": [0, 0, 0, 0],
        "origin": [1, 2, 3],
    }


def filled(docs, length, join, separator):
    tokens = [list(itertools.chain(*doc)) for doc in docs]
    ds = tf.data.Dataset.from_tensor_slices({
        "tokens": corpus.ragged(tokens),
        "sentence_lengths": corpus.ragged([[len(s) for s in doc] for doc in docs]),
        "origin": tf.constant([[n % 3, n] for n in range(len(docs))], tf.int64),
    })  # fmt: skip
    made = windows.fill(ds, length, join, separator).as_numpy_iterator()
    return [(ex["tokens"].tolist(), ex["origin"].tolist()) for ex in made]


def test_lines_and_documents_end_as_in_fairseq():
    """As break_mode `complete` of TokenBlockDataset: a blank line is a line of its own, where it does not fit any more
    it begins the next block; without documents joined there is none (`complete_doc`)."""
    docs = [[[5, 6], [7]], [[8, 9]], [[10]]]

    def blocks(join):
        ds = tf.data.Dataset.from_tensor_slices({
            "tokens": corpus.ragged([list(itertools.chain(*doc)) for doc in docs]),
            "sentence_lengths": corpus.ragged([[len(line) for line in doc] for doc in docs]),
            "origin": tf.constant([[0, n] for n in range(3)], tf.int64),
        })  # fmt: skip
        made = windows.fill(windows.end_lines(ds, 3, join), 5, join)
        return [ex["tokens"].tolist() for ex in windows.enclose(made, 2, None).as_numpy_iterator()]

    assert blocks(True) == [[2, 5, 6, 3, 7, 3], [2, 3, 8, 9, 3, 3], [2, 10, 3, 3]]
    assert blocks(False) == [[2, 5, 6, 3, 7, 3], [2, 8, 9, 3], [2, 10, 3]]


@pytest.mark.slow
@pytest.mark.parametrize(("join", "separator"), [(True, SEPARATOR), (True, None), (False, SEPARATOR)])
def test_windows_of_whole_sentences(join, separator):
    """Every token once and in order; no window that could have held one more sentence; long sentences are cut.

    A thousand windows and more of real lines of words.
    """
    lines = [[len(line.split()) for line in text.splitlines() if line.strip()] for text in corpus.documents()]
    docs, draw = [], np.random.default_rng(0)
    for sizes in (sizes for sizes in lines if sizes):
        docs.append([draw.integers(10, 1000, min(size, LONGEST)).tolist() for size in sizes])
    docs = docs[:50]
    docs[7].append(list(range(2000, 2100)))
    made = filled(docs, LONGEST, join, separator)
    assert len(made) > 1000
    flat = [(t, [n % 3, n, i]) for n, d in enumerate(docs) for i, t in enumerate(itertools.chain(*d))]
    assert [t for window, _ in made for t in window if t != SEPARATOR] == [t for t, _ in flat]
    bounds = [np.cumsum([0, *map(len, d)]) for d in docs]
    begins = {(n, int(i)) for n, of_document in enumerate(bounds) for i in of_document[:-1]}
    at = 0
    for (window, origin), (following, after) in zip(made, [*made[1:], ([], [0, 0, 0])]):
        real = [t for t in window if t != SEPARATOR]
        assert flat[at][1] == origin and len(window) <= LONGEST
        assert (origin[1], origin[2]) in begins or 2000 <= real[0] < 2100
        documents = {o[1] for _, o in flat[at : at + len(real)]}
        assert window.count(SEPARATOR) == (len(documents) - 1 if join and separator else 0)
        assert window[0] != SEPARATOR != window[-1] and (join or len(documents) == 1)
        at += len(real)
        if following and (join or after[1] == origin[1]):
            ends = bounds[after[1]]
            sentence = ends[np.searchsorted(ends, after[2], side="right")] - after[2]
            assert len(window) + min(sentence, LONGEST) + (after[1] != origin[1] and separator is not None) >= LONGEST
