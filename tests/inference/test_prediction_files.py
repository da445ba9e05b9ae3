"""Files of predictions: each format read back, and what is refused before anything runs."""

import csv
import json

import pyarrow.parquet as pq
import pytest

from jaxpt.cli import main
from jaxpt.data import tables
from jaxpt.errors import UserError
from jaxpt.inference import prediction_files
from jaxpt.inference.predict import predict

RECORDS = [
    {"id": 0, "text": 'a\tfilm, "good"\nand so', "tags": ["x", "y"], "label": "böse", "probability": 0.75},
    {"id": "r1", "text": "", "label": None, "extra": {"a": 1}, "probability": 1e-07},
]


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
