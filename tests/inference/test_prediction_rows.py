"""What `jaxpt predict` reads, and the records that it makes of rows and answers."""

import doctest
import io
import sys

import pytest

from jaxpt.data.labelled import examples
from jaxpt.data.labelled.files import RowFile
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.multi_label import MultiLabelTask
from jaxpt.data.tasks.tagging import TaggingTask
from jaxpt.errors import UserError
from jaxpt.inference import prediction_rows

TASK = ClassificationTask(labels=("a", "b", "c"))
ANSWER = {"label": "b", "probabilities": {"a": 0.2, "b": 0.7123456789, "c": 0.0876543211}}


def rows_of(tmp_path, text, task=TASK, name="rows.csv"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return examples.read(task, [RowFile(str(tmp_path / name))])


def written(rows, task=TASK, answer=ANSWER, top_k=2, is_flat=True):
    return list(prediction_rows.records(task, rows, [answer] * len(rows), top_k, is_flat))


def test_examples_in_docstrings():
    assert doctest.testmod(prediction_rows).failed == 0


def test_a_row_without_an_id_is_called_by_its_number_from_0(tmp_path):
    """Whatever line it stands in: so the file of predictions joins the table that pandas reads."""
    rows = rows_of(tmp_path, 'text,day\n"two\nlines",1\n\nnext,2\n')
    best = {"label": "b", "probability": 0.712346, "label_2": "a", "probability_2": 0.2}
    assert written(rows) == [
        {"id": 0, "text": "two\nlines", "day": "1", **best},
        {"id": 1, "text": "next", "day": "2", **best},
    ]


@pytest.mark.parametrize(
    ("column", "task"), [("id", TASK), ("idx", TASK), ("ticket", TASK.model_copy(update={"id": "ticket"}))]
)
def test_a_row_has_the_id_of_its_file(column, task, tmp_path):
    (record,) = written(rows_of(tmp_path, f"text,{column}\na film,x7\n"), task)
    assert record["id"] == record[column] == "x7" and next(iter(record)) == "id"


def test_columns_of_the_input_keep_their_names(tmp_path):
    (record,) = written(rows_of(tmp_path, "text,label\na film,c\n"), top_k=1)
    assert record == {"id": 0, "text": "a film", "label": "c", "predicted_label": "b", "probability": 0.712346}


def test_the_likeliest_labels(tmp_path):
    rows = rows_of(tmp_path, "text\na film\n")
    (record,) = written(rows, is_flat=False)
    assert list(record["probabilities"].items()) == [("b", 0.712346), ("a", 0.2)] and record["probability"] == 0.712346
    answer = {"labels": ["b", "c"], "probabilities": {"b": 0.9, "c": 0.8, "a": 0.1}}
    (record,) = written(rows, MultiLabelTask(labels=("a", "b", "c")), answer)
    assert record["labels"] == "b|c" and (record["label_2"], record["probability_2"]) == ("c", 0.8)


def test_words_are_written_once(tmp_path):
    task = TaggingTask(labels=("A", "B"))
    rows = rows_of(tmp_path, '{"tokens": ["a", "film"], "id": [1, 2]}\n', task, "rows.jsonl")
    answer = {"tokens": ["a", "film"], "tags": ["A", "B"], "probabilities": [0.12345678, 1.0]}
    assert written(rows, task, answer, is_flat=False) == [
        {"id": 0, "tokens": ["a", "film"], "tags": ["A", "B"], "probabilities": [0.123457, 1.0]}
    ]


def test_texts_of_the_command_line_and_of_stdin(monkeypatch):
    rows = prediction_rows.read_rows(TASK, None, ["a film", "a play"])
    assert [(row.row.values, row.where) for row in rows] == [
        ({"text": "a film"}, "--text 1"),
        ({"text": "a play"}, "--text 2"),
    ]
    for file in ("-", None):
        monkeypatch.setattr(sys, "stdin", io.StringIO("a film\r\n\na play\n"))
        rows = prediction_rows.read_rows(TASK, file, ())
        assert [row.row.values["text"] for row in rows] == ["a film", "a play"] and rows[1].where == "stdin: line 3"
        assert len({row.origin for row in rows}) == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    with pytest.raises(UserError, match="stdin: has no rows"):
        prediction_rows.read_rows(TASK, "-", ())


def test_what_is_refused(monkeypatch, tmp_path):
    pair = TASK.model_copy(update={"pair": "other"})
    monkeypatch.setattr(sys, "stdin", None)
    for arguments, message in [
        ((TASK, "a.csv", ["a"]), "--text and FILE: give one of them"),
        ((TASK, None, ()), "nothing to predict: give FILE, --text TEXT, or a text a line on stdin"),
        ((pair, None, ["a"]), "--text: gives one text, and the task reads columns text, other; give a FILE"),
        ((TASK, None, ["\ud800"]), "--text: is not UTF-8"),
        ((TASK, str(tmp_path / "no.csv"), ()), "no.csv: no such file"),
    ]:
        with pytest.raises(UserError) as error:
            prediction_rows.read_rows(*arguments)
        assert message in str(error.value)
