"""What `jaxpt predict` reads, the records that it makes of rows and answers, and their files, read back."""

import csv
import doctest
import io
import json
import sys

import pyarrow.parquet as pq
import pytest

from jaxpt.cli import main
from jaxpt.data import tables
from jaxpt.data.labelled import examples
from jaxpt.data.labelled.files import RowFile
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.multi_label import MultiLabelTask
from jaxpt.data.tasks.tagging import TaggingTask
from jaxpt.errors import UserError
from jaxpt.inference import prediction_files
from jaxpt.inference.predict import predict

RECORDS = [
    {"id": 0, "text": 'a\tfilm, "good"\nand so', "tags": ["x", "y"], "label": "böse", "probability": 0.75},
    {"id": "r1", "text": "", "label": None, "extra": {"a": 1}, "probability": 1e-07},
]
TASK = ClassificationTask(labels=("a", "b", "c"))
ANSWER = {"label": "b", "probabilities": {"a": 0.2, "b": 0.7123456789, "c": 0.0876543211}}


@pytest.mark.parametrize(
    ("suffix", "rules", "text"),
    [
        (".csv", {}, RECORDS[0]["text"]),
        (".tsv", {"delimiter": "\t", "quoting": csv.QUOTE_NONE}, 'a film, "good" and so'),
    ],
)
def test_tables_of_text(suffix, rules, text, tmp_path):
    path = tmp_path / f"p{suffix}"
    prediction_files.write(path, iter(RECORDS))
    with path.open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file, **rules)
    assert list(first) == ["id", "text", "tags", "label", "probability", "extra"], "the columns of all rows"
    assert first["text"] == text and json.loads(first["tags"]) == ["x", "y"] and first["extra"] == ""
    assert float(second["probability"]) == 1e-07 and second["label"] == ""
    rows = [row.values for row in tables.read(path)]
    assert [(row["text"], row["label"]) for row in rows] == [(text, "böse"), ("", "")], "jaxpt reads what it wrote"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_lists_are_read_as_they_were_written(suffix, tmp_path):
    records = [
        {
            "tokens": ["EU", "rejects", '"it"'],
            "tags": ["B-ORG", "O", "O"],
            "topics": ["joy, really", "fear"],
            "ids": [3],
        },
        {"tokens": ["a"], "tags": ["O"], "topics": [], "ids": [0, 3]},
    ]
    prediction_files.write(tmp_path / f"p.{suffix}", records)
    rows = list(tables.read(tmp_path / f"p.{suffix}"))
    tagging = TaggingTask(labels=("B-ORG", "O"))
    for record, row in zip(records, rows, strict=True):
        assert (tagging.words(row, ""), tagging.target(row, "")) == (record["tokens"], record["tags"])
        assert MultiLabelTask(label="topics").labels_in(row, "") == record["topics"]
        assert MultiLabelTask(label="ids").labels_in(row, "") == [str(number) for number in record["ids"]]


@pytest.mark.parametrize("text", ["a\rb", "\r", "a\r\nb\r", "\n"])
def test_a_cell_of_csv_may_hold_every_end_of_line(text, tmp_path):
    prediction_files.write(tmp_path / "p.csv", [{"text": text, "label": "x"}] * 2)
    with (tmp_path / "p.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["text", "label"], [text, "x"], [text, "x"]]


def test_parquet(tmp_path):
    prediction_files.write(tmp_path / "p.parquet", iter(RECORDS))
    table = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert table[0] == {**RECORDS[0], "id": "0", "extra": None}, "a column of numbers and texts is text"
    assert table[1]["probability"] == 1e-07 and table[1]["extra"] == {"a": 1} and table[1]["tags"] is None


def test_parquet_has_objects_without_a_field_as_text(tmp_path):
    prediction_files.write(tmp_path / "p.parquet", [{"a": {}, "b": [{}], "c": {"d": {}}}, {"a": None}])
    first, second = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert first == {"a": "{}", "b": "[{}]", "c": '{"d": {}}'} and set(second.values()) == {None}


def test_jsonl(tmp_path):
    prediction_files.write(tmp_path / "p.jsonl", iter(RECORDS))
    assert [json.loads(line) for line in (tmp_path / "p.jsonl").read_text("utf-8").splitlines()] == RECORDS


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("p.xyz", "p.xyz: unknown suffix '.xyz'; expected .csv, .tsv, .parquet or .jsonl"),
        ("p", "p: unknown suffix ''; expected .csv"),
        ("no/such/p.csv", "no/such: no such directory; create it first"),
        ("there.csv", "there.csv: already exists; choose a new file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_run_is_opened(out, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("mine")
    assert main(["predict", "no_run", "rows.csv", "--out", out]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there.csv"]


def test_a_submission_needs_a_file_and_a_directory():
    with pytest.raises(UserError, match=r"--glue: .* give FILE, .* and --out DIR"):
        predict("no_run", None, "out", glue=True)


def rows_of(tmp_path, text, task=TASK, name="rows.csv"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return examples.read(task, [RowFile(str(tmp_path / name))])


def written(rows, task=TASK, answer=ANSWER, top_k=2, is_flat=True):
    return list(prediction_files.to_records(task, rows, [answer] * len(rows), top_k, is_flat))


def test_examples_in_docstrings():
    assert doctest.testmod(prediction_files).failed == 0


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


@pytest.mark.parametrize(
    ("values", "task", "row_id"),
    [
        ({"id": None, "idx": 7}, TASK, 7),
        ({"id": "a", "guid": "g"}, TASK.model_copy(update={"id": "guid"}), "g"),
        ({"id": ["1", "2"], "sent_id": "doc-1"}, TASK, "doc-1"),  # CoNLL-U's `id` numbers words
        ({"id": None}, TASK, 0),
        ({"id": "", "idx": 7}, TASK, 7),  # an empty cell of CSV
    ],
)
def test_a_column_id_that_is_not_the_rows_id_is_kept_beside_it(values, task, row_id, tmp_path):
    """As any column of the input, so that the file of predictions joins the input, and evaluations by `row_id`."""
    (record,) = written(rows_of(tmp_path, json.dumps({"text": "a film", **values}), task, "rows.jsonl"), task)
    answer = {"label": "b", "probability": 0.712346, "label_2": "a", "probability_2": 0.2}
    assert record == {"row_id": row_id, "text": "a film", **values, **answer} and next(iter(record)) == "row_id"


def test_all_rows_have_their_id_in_the_same_column(tmp_path):
    rows = rows_of(tmp_path, '{"text": "a", "id": 5}\n{"text": "b", "row_id": "x"}\n', name="rows.jsonl")
    first, second = written(rows)
    assert (first["predicted_row_id"], first["id"]) == (5, 5)
    assert (second["predicted_row_id"], second["row_id"]) == (1, "x") and "id" not in second


def test_columns_of_the_input_keep_their_names(tmp_path):
    (record,) = written(rows_of(tmp_path, "text,label\na film,c\n"), top_k=1)
    assert record == {"id": 0, "text": "a film", "label": "c", "predicted_label": "b", "probability": 0.712346}


def test_no_column_of_the_input_is_overwritten(tmp_path):
    rows = rows_of(tmp_path, "text,label,predicted_label,probability\na film,c,a,half\n")
    (record,) = written(rows, top_k=1)
    columns = {"text": "a film", "label": "c", "predicted_label": "a", "probability": "half"}
    answer = {"predicted_predicted_label": "b", "predicted_probability": 0.712346}
    assert record == {"id": 0, **columns, **answer}


def test_numbers_that_json_has_not(tmp_path):
    nan, inf = float("nan"), float("inf")
    records = [{"id": 0, "x": nan, "y": [inf, nan], "z": -inf}]
    prediction_files.write(tmp_path / "p.jsonl", records)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = (tmp_path / "p.jsonl").read_text("utf-8")
    plain = {"id": 0, "x": None, "y": ["Infinity", None], "z": "-Infinity"}
    assert json.loads(text, parse_constant=refuse) == plain
    for suffix in ("csv", "tsv"):
        prediction_files.write(tmp_path / f"p.{suffix}", records)
        (row,) = tables.read(tmp_path / f"p.{suffix}")
        assert (row.values["x"], row.values["z"]) == ("", "-Infinity")
        assert json.loads(row.values["y"], parse_constant=refuse) == plain["y"]


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
        {"row_id": 0, "tokens": ["a", "film"], "id": [1, 2], "tags": ["A", "B"], "probabilities": [0.123457, 1.0]}
    ]


def test_texts_of_the_command_line_and_of_stdin(monkeypatch):
    rows = prediction_files.read_rows(TASK, None, ["a film", "a play"])
    assert [(row.row.values, row.where) for row in rows] == [
        ({"text": "a film"}, "--text 1"),
        ({"text": "a play"}, "--text 2"),
    ]
    for file in ("-", None):
        monkeypatch.setattr(sys, "stdin", io.StringIO("a film\r\n\na play\n"))
        rows = prediction_files.read_rows(TASK, file, ())
        assert [row.row.values["text"] for row in rows] == ["a film", "a play"] and rows[1].where == "stdin: line 3"
        assert len({row.origin for row in rows}) == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    with pytest.raises(UserError, match="stdin: has no rows"):
        prediction_files.read_rows(TASK, "-", ())


def test_what_is_refused(monkeypatch, tmp_path):
    pair = TASK.model_copy(update={"pair": "other"})
    monkeypatch.setattr(sys, "stdin", None)
    for arguments, message in [
        ((TASK, "a.csv", ["a"]), "--text and FILE: give one of them"),
        ((TASK, None, ()), "nothing to predict: give FILE, --text TEXT, or a text a line on stdin"),
        ((pair, None, ["a"]), "--text: gives one text, and the task reads columns text, other; give a FILE"),
        ((TASK, None, ["\ud800"]), "--text: not UTF-8"),
        ((TASK, str(tmp_path / "no.csv"), ()), "no.csv: no such file"),
    ]:
        with pytest.raises(UserError) as error:
            prediction_files.read_rows(*arguments)
        assert message in str(error.value)
