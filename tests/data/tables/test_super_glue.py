"""SuperGLUE's nested lines: the rows are those of TFDS, and have places."""

import json

import pytest

from jaxpt.data.tables import read, where
from jaxpt.data.tables.super_glue import flat
from jaxpt.errors import UserError

MULTIRC = {
    "idx": 3,
    "passage": {
        "text": "<b>Sent 1: </b>He ran.",
        "questions": [
            {"question": "Who?", "idx": 7, "answers": [{"text": "He", "label": 1, "idx": 20}, {"text": "I", "idx": 3}]},
            {"question": "What?", "idx": 8, "answers": [{"text": "Ran", "idx": 22, "label": 0}]},
        ],
    },
}
BOB = [{"text": "Bob", "start": start, "end": start + 2} for start in (8, 13)]
RECORD = {
    "idx": 5,
    "passage": {"text": "Ann met Bob. Bob ran.", "entities": [{"start": s, "end": s + 2} for s in (8, 13, 0)]},
    "qas": [
        {"query": "@placeholder ran.", "idx": 9, "answers": BOB},
        {"query": "@placeholder met Bob.", "idx": 10},
    ],
}


def wsc(text, span1, index1, span2="he", index2=4):
    target = {"span1_text": span1, "span1_index": index1, "span2_text": span2, "span2_index": index2}
    return {"text": text, "target": target, "idx": 0, "label": True}


def test_an_answer_of_multirc_is_a_row():
    rows = flat(MULTIRC)
    assert [(row["question"], row["answer"], row["label"]) for row in rows] == [
        ("Who?", "He", 1), ("Who?", "I", None), ("What?", "Ran", 0),
    ]  # fmt: skip
    assert {row["paragraph"] for row in rows} == {"<b>Sent 1: </b>He ran."}
    assert rows[1]["idx"] == {"paragraph": 3, "question": 7, "answer": 3}


def test_a_query_of_record_has_entities_and_answers_once():
    first, second = flat(RECORD)
    assert first == {
        "passage": "Ann met Bob. Bob ran.", "query": "@placeholder ran.", "entities": ["Ann", "Bob"],
        "answers": ["Bob"], "idx": {"passage": 5, "query": 9},
    }  # fmt: skip
    assert second["answers"] == []


@pytest.mark.parametrize(
    ("span", "index", "found"),
    [
        ("Tom", 2, "Tom"), ("tom", 2, "Tom"), ("Tom\nhere", 2, "Tom here"), ("The", 7, "the"),
        ("Tom here.", 2, "Tom here"),
    ],
)  # fmt: skip
def test_spans_of_wsc_are_those_of_the_text(span, index, found):
    (row,) = flat(wsc("Ann asked Tom here if he knows the way .", span, index))
    assert row["span1_text"] == found and found in row["text"]
    assert (row["label"], row["idx"], "target" in row) == (True, 0, False)


def test_other_objects_are_no_lines_of_super_glue():
    for record in ({"passage": "It rains.", "question": "Wet?"}, {"target": "a"}, {"passage": {"a": 1}}, {}):
        assert flat(record) is None


def test_rows_of_a_line_have_numbers_of_their_own(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (MULTIRC, RECORD)), "utf-8")
    rows = list(read(str(path)))
    assert [row.number for row in rows] == [1, 2, 3, 4, 5]
    assert where("train.jsonl", rows[3]) == "train.jsonl: row 4"
    path.write_text("\n" + json.dumps(wsc("Ann asked Tom if he came .", "Tom", 2)) + "\n", "utf-8")
    (row,) = read(str(path))
    assert where("train.jsonl", row) == "train.jsonl: line 2"


def test_a_line_without_one_of_its_parts(tmp_path):
    path = tmp_path / "train.jsonl"
    beyond, number = wsc("Ann asked Tom .", "Zed", 2), wsc("Ann asked Tom .", "Zed", 2)
    beyond["target"]["span1_index"], number["text"] = 9, 5
    for record, words in (
        ({"passage": {"text": "a", "questions": [{"idx": 0}]}, "idx": 0}, "has no 'answers'"),
        (beyond, r"is not one \(list index out of range\)"),
        (number, r"is not one \('int' object has no attribute 'split'\)"),
    ):
        path.write_text(json.dumps(record) + "\n", "utf-8")
        with pytest.raises(UserError, match=rf"train.jsonl: line 1: begins as a line of SuperGLUE, but {words}"):
            list(read(str(path)))
