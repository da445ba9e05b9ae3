"""Choices as records, and records as lines of rows."""

import numpy as np
import pytest

from jaxpt.data.labelled import rows
from jaxpt.data.labelled.choices import ChoicesEncoder, rows_of_choices
from jaxpt.data.labelled.layout import TextLayout
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.multiple_choice import MultipleChoiceTask
from jaxpt.errors import UserError

LAYOUT = TextLayout(before=(2,), between=(3,), after=(3,), second_type=1)
ROWS = [
    {"text": "5 6", "choices": ["7", "8 9", "4"], "label": 1},
    {"text": "5", "choices": ["7 7", "8"], "label": 0},
]


class Numbers:
    """Words are their ids."""

    def encode_batch(self, texts):
        return [[int(word) for word in text.split()] for text in texts]


def records(length=16, given=ROWS, **keys):
    encoder = ChoicesEncoder(MultipleChoiceTask(most_choices=3), LAYOUT, length, **keys)
    places = [LocatedRow(Row(n, values), f"line {n}", (0, n)) for n, values in enumerate(given)]
    found = list(encoder(places, Numbers(), True, True))
    for record in found:
        for name, like in encoder.like().items():
            assert record[name].dtype == like.dtype and (like.shape == (0,) or record[name].shape == like.shape)
    return found


def test_records():
    first, second = records()
    assert first["tokens"].reshape(3, 7).tolist() == [
        [2, 5, 6, 3, 7, 3, 0], [2, 5, 6, 3, 8, 9, 3], [2, 5, 6, 3, 4, 3, 0],
    ]  # fmt: skip
    assert first["token_types"].reshape(3, 7)[1].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert first["sizes"].tolist() == [6, 7, 6] and second["sizes"].tolist() == [6, 5, 0]
    assert (first["target"], second["target"]) == (1, 0)
    assert first["origin"].tolist() == [0, 0] and second["origin"].tolist() == [0, 1]


def test_long_choices_are_cut_and_counted():
    first, _ = records(6)
    assert first["sizes"].tolist() == [6, 6, 6] and first["truncated"] == 1
    with pytest.raises(UserError, match=r"line 0: 4 tokens, data\.length leaves room for 3"):
        records(6, truncate="error")


def made(packs=None, length=48, examples=2, **keys):
    return rows_of_choices(rows.together(records()), length, examples, 3, "encoder", "first", packs=packs, **keys)


def test_a_row_is_a_line_for_each_choice():
    got = made()
    tokens = got["encoder_input_tokens"].reshape(2, 3, 16)
    assert tokens[0, 1, :7].tolist() == [2, 5, 6, 3, 8, 9, 3] and not tokens[0, :, 7:].any() and not tokens[1, 2].any()
    assert got["encoder_segment_ids"].reshape(2, 3, 16)[0, 0].tolist() == [1] * 6 + [0] * 10
    assert got["encoder_positions"].reshape(2, 3, 16)[0, 0, :7].tolist() == [0, 1, 2, 3, 4, 5, 0]
    assert got["choice_weights"].tolist() == [[[1, 1, 1], [0, 0, 0]], [[1, 1, 0], [0, 0, 0]]]
    assert got["labels"].tolist() == [[1, 0], [0, 0]] and got["label_weights"].tolist() == [[1, 0], [1, 0]]


def test_packed_examples_share_lines():
    got, apart = made(np.array([0, 2])), made()
    tokens = got["encoder_input_tokens"].reshape(3, 16)
    assert tokens[0, :13].tolist() == [2, 5, 6, 3, 7, 3, 0, 2, 5, 3, 7, 7, 3]
    assert got["encoder_segment_ids"].reshape(3, 16)[0, :13].tolist() == [1] * 6 + [0] + [2] * 6
    assert got["choice_positions"].tolist() == [[[0, 0, 0], [7, 7, 7]]]
    assert got["labels"].tolist() == [[1, 0]] and got["label_weights"].tolist() == [[1, 1]]
    real, alone = got["encoder_segment_ids"] > 0, apart["encoder_segment_ids"] > 0
    for name in ("input_tokens", "token_types", "positions"):
        a, b = got[f"encoder_{name}"][real], apart[f"encoder_{name}"][alone]
        assert sorted(a.tolist()) == sorted(b.tolist())


def test_a_decoder_after_an_encoder_reads_each_choice_shifted():
    found = rows_of_choices(rows.together(records()), 48, 1, 3, "encoder", "last", start=1)
    lines = found["decoder_input_tokens"].reshape(2, 3, 16)
    assert lines[0, 1, :7].tolist() == [1, 2, 5, 6, 3, 8, 9] and lines[1, 0, :6].tolist() == [1, 2, 5, 3, 7, 7]
    assert found["choice_positions"].tolist() == [[[5, 6, 5]], [[5, 4, 0]]]


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="longer than 12 tokens"):
        made(np.array([0, 2]), length=36)
    with pytest.raises(ValueError, match="more than 1 in a row"):
        made(np.array([0, 2]), examples=1)
