"""Windows have all tokens, no more than their room, and every token its best window."""

import itertools

import numpy as np
import pytest

from jaxpt.data.labelled.layout import TextLayout
from jaxpt.data.labelled.texts import TextsEncoder
from jaxpt.data.labelled.windows import most_context, windows
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.classification import ClassificationTask
from tests.labelled import Numbers

SIZES = [(tokens, room, stride) for tokens in (0, 1, 7, 20, 41) for room in (1, 5, 12) for stride in (1, 4, 12, 50)]


@pytest.mark.parametrize("tokens, room, stride", SIZES)
def test_windows_have_every_token(tokens, room, stride):
    found = windows([1] * tokens, room, stride)
    assert {at for window in found for at in range(*window)} == set(range(tokens))
    assert all(window.end - window.start <= room for window in found)
    assert [window.start for window in found] == [n * min(stride, room) for n in range(len(found))]
    assert found[-1].end == tokens and all(window.end < tokens for window in found[:-1])


def test_words_stay_whole():
    rng = np.random.default_rng(0)
    for _ in range(200):
        room, stride = int(rng.integers(1, 12)), int(rng.integers(1, 15))
        lengths = rng.integers(1, room + 1, int(rng.integers(1, 30)))
        found = windows(lengths, room, stride)
        assert {at for window in found for at in range(*window)} == set(range(len(lengths)))
        assert all(lengths[slice(*window)].sum() <= room for window in found)
        assert all(a.start < b.start <= a.end <= b.end for a, b in itertools.pairwise(found))


def by_hand(found, place):
    """BERT's `_check_is_max_context`, which takes the first of the best windows."""
    scores = [
        min(place - start, end - 1 - place) + 0.01 * (end - start) if start <= place < end else -1
        for start, end in found
    ]
    return scores.index(max(scores))


def test_every_token_has_its_window_of_most_context():
    for tokens, room, stride in SIZES:
        found = windows([1] * tokens, room, stride)
        got = most_context(found, np.arange(tokens))
        assert got.tolist() == [by_hand(found, place) for place in range(tokens)]
        assert (np.diff(got) >= 0).all()


def test_a_long_text_is_a_record_for_each_window():
    """All with the label of the text; a short one is one record, as it is without windows."""
    texts = [" ".join(map(str, range(10, 10 + length))) for length in (3, 11, 0)]
    rows = [LocatedRow(Row(n, {"text": text, "label": "b"}), "f", (0, n)) for n, text in enumerate(texts)]
    task = ClassificationTask(labels=("a", "b"), windows="mean")
    layout = TextLayout(before=(2,), after=(3,))
    records = list(TextsEncoder(task, layout, 8, stride=4)(rows, Numbers(), has_targets=True, train=True))
    assert [tuple(record["origin"]) for record in records] == [(0, 0), (0, 1), (0, 1), (0, 1), (0, 2)]
    assert [record["tokens"].tolist()[1:-1] for record in records[1:4]] == [
        [*range(10, 16)], [*range(14, 20)], [*range(18, 21)],
    ]  # fmt: skip
    assert all(record["target"] == 1 and not record["truncated"] for record in records)
    (plain, cut, _) = TextsEncoder(task, layout, 8)(rows, Numbers(), has_targets=True, train=True)
    assert plain["tokens"].tolist() == records[0]["tokens"].tolist() and cut["truncated"]
