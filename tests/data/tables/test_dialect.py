"""The delimiter and the encoding of tables that do not say them."""

import doctest
import gzip
from pathlib import Path

import pytest

from jaxpt import errors
from jaxpt.data import tables
from jaxpt.data.tables import dialect
from jaxpt.errors import UserError

ROWS = [{"text": "Tür, klemmt; Café", "label": "böse"}, {"text": "läuft\nwieder", "label": "gut"}]


def table(delimiter, encoding):
    """Tickets as a spreadsheet saves them."""
    quoted = [[f'"{value}"' for value in row.values()] for row in ROWS]
    return "".join(f"{delimiter.join(fields)}\r\n" for fields in (["text", "label"], *quoted)).encode(encoding)


@pytest.fixture
def notes(monkeypatch):
    lines = []
    monkeypatch.setattr(errors, "note", lines.append)
    return lines


def test_examples_in_docstrings():
    assert doctest.testmod(dialect) == (0, 4)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("delimiter", dialect.DELIMITERS)
def test_a_csv_is_read_however_it_was_saved(delimiter, encoding, tmp_path, notes):
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    (tmp_path / "a.csv").write_bytes(mark + table(delimiter, encoding))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(mark + table(delimiter, encoding)))
    for file in ("a.csv", "a.csv.gz"):
        rows = list(tables.read(tmp_path / file))
        assert [row.values for row in rows] == ROWS and [row.number for row in rows] == [2, 3]
    name = {"utf-16": "UTF-16", "utf-16-be": "UTF-16", "latin-1": "Windows-1252", "cp1252": "Windows-1252"}.get(
        encoding
    )
    separated = {",": "", "\t": "fields separated by tabs"}.get(delimiter, f"fields separated by '{delimiter}'")
    assert len(notes) == (2 if name or separated else 0), "each file once"
    assert all(separated in note and (name or "") in note for note in notes)


def test_a_file_is_noted_once_and_again_when_it_changed(tmp_path, notes):
    path = tmp_path / "a.csv"
    for count in (1, 2):
        path.write_bytes(table(";", "utf-8") + b"a;b\n" * count)
        assert [len(list(tables.read(path))), len(list(tables.read(path)))] == [2 + count] * 2
        assert notes == [f"{path}: fields separated by ';'"] * count


def test_what_is_given_is_not_looked_for(tmp_path, notes):
    (tmp_path / "a.csv").write_bytes("text;label\nа, б;1\n".encode("cp1251"))
    options = {"delimiter": ";", "encoding": "cp1251"}
    assert next(tables.read(tmp_path / "a.csv", **options)).values == {"text": "а, б", "label": "1"} and not notes
    (tmp_path / "a.tsv").write_bytes("text;label\nä;1\n".encode("utf-16-le"))
    options = {"delimiter": ";", "encoding": "utf-16-le"}
    assert next(tables.read(tmp_path / "a.tsv", **options)).values == {"text": "ä", "label": "1"}
    with pytest.raises(UserError, match=r"a\.csv: line 2: not ascii \(byte 0xe0\); set the right encoding"):
        list(tables.read(tmp_path / "a.csv", encoding="ascii"))
    with pytest.raises(UserError, match=r"a\.csv: line 1: not utf-32; set the right encoding"):
        list(tables.read(tmp_path / "a.csv", encoding="utf-32"))
    packed = gzip.compress("".join(["text,label\n", *(f"row {n},{n % 2}\n" for n in range(9999))]).encode("utf-16"))
    (tmp_path / "b.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match=r"b\.csv\.gz: truncated or damaged gzip file after line [1-9],?\d+ \("):
        list(tables.read(tmp_path / "b.csv.gz"))


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        ("text\na; b\nc\n", ","),  # one column
        ("a,b;c\n1,2;3\n", ","),  # both would do: the usual one
        ("text;score\ngood, very;1,5\n", ";"),
        ("text\tlabel\n" + "x, y\tz\n" * 300 + '"torn\n', "\t"),
        ("text;label\na;b\nc;d;e\n", ";"),  # a mistake below, which the reader names
    ],
)
def test_the_delimiter_is_what_divides_all_rows_alike(content, delimiter, tmp_path):
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    assert dialect.dialect(str(tmp_path / "a.csv"), True, None, None) == (delimiter, "utf-8")


@pytest.mark.parametrize(
    ("delimiter", "named"), [(";", '";": set delimiter: ";"'), (",", '",": set delimiter: ","'), ("|", '"|": set')]
)
def test_a_tsv_that_is_separated_otherwise_says_which_setting_fits(delimiter, named, tmp_path):
    (tmp_path / "a.tsv").write_text(f"text{delimiter}label\na{delimiter}1\n", encoding="utf-8")
    (row,) = tables.read(tmp_path / "a.tsv")
    with pytest.raises(UserError) as error:
        tables.column(row, "label", "a.tsv: line 2")
    assert str(error.value).startswith(f"a.tsv: line 2: no column 'label'; it has text{delimiter}label; the header")
    assert f"looks separated by {named}" in str(error.value) and "(task.delimiter, " in str(error.value)
    (tmp_path / "a.tsv").write_text(f"text{delimiter}label\na\tb{delimiter}1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2: 2 fields, wants 1 \(text.label\); the header looks separated by"):
        list(tables.read(tmp_path / "a.tsv"))


def test_a_csv_that_is_read_with_commas_names_its_tabs(tmp_path):
    (tmp_path / "a.csv").write_text("text\tlabel\na\t1\n", encoding="utf-8")
    (row,) = tables.read(tmp_path / "a.csv", delimiter=",")
    with pytest.raises(UserError, match=r'; the header looks separated by tabs: set delimiter: "\\t" \('):
        tables.column(row, "label")


def test_rows_below_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("good;x\nbad, so bad;y\n", encoding="utf-8")
    assert [row.values for row in tables.read(tmp_path / "a.csv", header=("text", "label"))] == [
        {"text": "good", "label": "x"}, {"text": "bad, so bad", "label": "y"},
    ]  # fmt: skip


def test_shared_tables_are_read_as_before():
    data = Path(__file__).parents[4] / "shared" / "data" / "classification" / "banking77" / "train.csv.gz"
    if not data.exists():
        pytest.skip("labelled sets are not here")
    assert dialect.dialect(str(data), True, None, None) == (",", "utf-8")
