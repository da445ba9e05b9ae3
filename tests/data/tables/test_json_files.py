import json

import pytest

from jaxpt.data.tables import answers, read
from jaxpt.errors import UserError

SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Normans",
            "paragraphs": [
                {
                    "context": "The Normans lived in Normandy.",
                    "qas": [
                        {"id": "1", "question": "Where?", "answers": [{"text": "Normandy", "answer_start": 21}] * 2},
                        {"id": 2, "question": "When?", "answers": [], "is_impossible": True, "plausible_answers": []},
                    ],
                },
                {"context": "Rollo led.", "qas": [{"id": "3", "question": "Who?"}]},
            ],
        }
    ],
}


@pytest.fixture
def write(tmp_path):
    def write(content, name="a.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def test_jsonl_passes_blank_lines_over(write):
    assert list(read(write('{"a": 1}\n\n{"a": [2]}', "a.jsonl"))) == [(1, {"a": 1}), (3, {"a": [2]})]


@pytest.mark.parametrize(
    "content",
    [
        [{"a": 1}, {"a": 2}],
        {"a": [1, 2]},
        {"version": 1, "data": [{"a": 1}, {"a": 2}]},
        '{"a": 1}\n{"a": 2}\n',
    ],
)
def test_forms_of_json(write, content):
    assert list(read(write(content))) == [(1, {"a": 1}), (2, {"a": 2})]


@pytest.mark.parametrize("format", ["auto", "json"])
def test_squad_has_a_row_for_each_question(write, format):
    rows = list(read(write(SQUAD), format))
    assert [row.number for row in rows] == [1, 2, 3]
    assert rows[0].values == {
        "id": "1",
        "title": "Normans",
        "context": "The Normans lived in Normandy.",
        "question": "Where?",
        "answers": [{"text": "Normandy", "answer_start": 21}] * 2,
        "is_impossible": False,
    }
    assert rows[1].values["is_impossible"] and rows[1].values["id"] == "2"
    assert rows[2].values["answers"] == []


def test_answers_of_other_forms():
    wanted = [{"text": "a", "answer_start": 0}, {"text": "b", "answer_start": 3}]
    assert answers({"text": ["a", "b"], "answer_start": [0, 3]}) == wanted
    assert answers([{**answer, "more": 1} for answer in wanted]) == wanted
    with pytest.raises(UserError, match="equal lengths"):
        answers({"text": ["a"], "answer_start": []})


def test_half_a_surrogate_pair_is_no_text(write):
    path = write('{"a": "\\ud83d", "b": ["\\ud83d\\ude00 \\uDE00"]}', "a.jsonl")
    assert next(read(path)).values == {"a": "?", "b": ["😀 ?"]}


def broken(change):
    content = json.loads(json.dumps(SQUAD))
    change(content["data"][0]["paragraphs"][0])
    return content


@pytest.mark.parametrize(
    "content, format, message",
    [
        ("", "auto", r"a\.json: is empty; wants a list of objects"),
        ('[{"a": 1},\n{"a": }]', "auto", r"a\.json: line 2: not JSON \(Expecting value, column 7\)"),
        ('{"a": 1}\n{"a": }\n', "auto", r"a\.json: line 2: not JSON .*; wants one object a line"),
        ([{"a": 1}, "b"], "auto", r"a\.json: row 2: wants a JSON object, got 'b'"),
        ([], "auto", r"a\.json: an empty list"),
        (3, "auto", r"a\.json: 3; wants a list of objects"),
        ({"a": 1}, "auto", r"a\.json: \{'a': 1\}; wants a list of objects"),
        ("[" * 100_000, "auto", r"a\.json: not readable as JSON"),
        ('[{"a": ' + "9" * 5000 + "}]", "auto", r"a\.json: not readable as JSON \(Exceeds the limit"),
        ("[" * 100_000, "jsonl", r"a\.json: line 1: not JSON"),
        ({"a": [1, 2], "b": [1]}, "auto", r"a\.json: columns of unequal lengths: a 2, b 1"),
        ('{"a": 1}\n[2]\n', "jsonl", r"a\.json: line 2: wants a JSON object, got \[2\]"),
        ('{"a": 1}\n{"a"', "jsonl", r"a\.json: line 2: not JSON"),
        ("\n", "jsonl", r"a\.json: is empty; wants a JSON object a line"),
        (broken(lambda p: p.pop("context")), "auto", r"article 1: paragraph 1: no 'context'; it has qas"),
        (broken(lambda p: p["qas"][1].pop("question")), "auto", r"row 2: no 'question'; it has id, answers, "),
        (broken(lambda p: p["qas"][0].update(answers="x")), "auto", r"row 1: answers wants a list, got 'x'"),
        (
            broken(lambda p: p["qas"][0].update(answers=[{"text": "x", "answer_start": "3"}])),
            "auto",
            r"row 1: 'answer_start' wants a whole number, got '3'",
        ),
    ],
)
def test_bad_files(write, content, format, message):
    with pytest.raises(UserError, match=message) as error:
        list(read(write(content), format))
    assert "\n" not in str(error.value)
