import gzip

import pytest

from jaxpt.data.tables import read
from jaxpt.errors import UserError


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_tsv_has_no_quotes_as_in_glue(write):
    """MRPC has single quotation marks, and a byte order mark."""
    path = write("dev.tsv", '\ufeffQuality\t#1 String\n1\t" The pie business\n\n0\tof " it , "\n')
    first, second = read(path)
    assert first == (2, {"Quality": "1", "#1 String": '" The pie business'})
    assert second == (4, {"Quality": "0", "#1 String": 'of " it , "'})


def test_csv_fields_may_have_delimiters_quotes_and_line_ends(write):
    path = write("train.csv", 'text,label\r\n"a, ""b""\nc",x\r\n\r\nd,"y"\r\n')
    assert list(read(path)) == [(2, {"text": 'a, "b"\nc', "label": "x"}), (5, {"text": "d", "label": "y"})]


def test_only_newlines_end_a_line(write):
    assert [r.values["text"] for r in read(write("a.tsv", "text\ta\none\u2028two\x0cthree\x85\t1\n"))] == [
        "one\u2028two\x0cthree\x85"
    ]


def test_a_header_for_files_without_one(write):
    """CoLA's columns have no names."""
    path = write("train.tsv", "gj04\t1\t\tThe pond froze.\ngj04\t0\t*\tFroze pond.\n")
    names = ("source", "label", "mark", "sentence")
    assert [row.number for row in read(path, header=names)] == [1, 2]
    assert next(read(path, header=names)).values["sentence"] == "The pond froze."
    with pytest.raises(
        UserError, match=r"train\.tsv: line 1: '1' is a number, no name .* name its 4 columns \(task\.header, "
    ):
        list(read(path))


def test_a_header_that_the_file_has_is_no_row(write):
    path = write("train.csv", "0,text\n1,good\n")
    assert list(read(path, header=("0", "text"))) == [(2, {"0": "1", "text": "good"})]


def test_long_fields(write):
    text = "word " * 50_000
    assert next(read(write("a.csv", f'text,label\n"{text}",1\n'))).values["text"] == text


def test_gzip(write):
    assert next(read(write("a.tsv.gz", gzip.compress(b"text\tlabel\na\t1\n")))).values == {"text": "a", "label": "1"}


def test_quoted_fields(write):
    path = write("a.tsv", 'text\tlabel\n"a\tb"\t1\n')
    assert [row.values["text"] for row in read(path, quoted=True)] == ["a\tb"]


def test_cr_cr_lf_ends_a_line(write):
    for name, delimiter in (("a.tsv", "\t"), ("a.csv", ",")):
        path = write(name, f"text{delimiter}label\r\r\na{delimiter}1\r\r\n")
        assert next(read(path)).values == {"text": "a", "label": "1"}


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.tsv", "text\tlabel\na\t1\nb\t2\t3\n", r"a\.tsv: line 3: 3 fields, wants 2 \(text, label\); a tab inside"),
        ("a.tsv", "text\tlabel\na\t1\nb\n", r"a\.tsv: line 3: 1 field, wants 2 \(text, label\)$"),
        ("a.tsv", 'text\tlabel\n"a\tb"\t1\n', r"line 2: 3 fields, .* in quotation marks\? set .* \(task\.quoted"),
        ("a.csv", 'text,label\na,1\n"b,2\nc,3\n', r"a\.csv: line 3: a quotation mark is never closed"),
        ("a.csv", 'text,label\n"b"c,2\n', r"a\.csv: line 2: ',' expected after '\"'; .* written \"\""),
        ("a.csv", "text,label\na,b,2\n", r"a\.csv: line 2: 3 fields, .*; a ',' inside of a field\?"),
        ("a.csv", "text,text\na,b\n", r"a\.csv: line 1: two columns are named 'text'"),
        ("a.csv", "sep=;\ntext;label\na;1\n", r"a\.csv: line 1: 'sep=' is for Excel; remove this line"),
        ("a.tsv", "", r"a\.tsv: is empty; wants a header row"),
        ("a.tsv", "\n\n", r"a\.tsv: is empty"),
        ("a.tsv", "text\tlabel\n", r"a\.tsv: no rows below the header"),
        ("a.tsv", b"text\tlabel\nna\xc3\xafve\t1\ncaf\xe9\t1\n", r"a\.tsv: line 3: not UTF-8 \(byte 0xe9\), as other"),
        ("a.tsv", b"text\tlabel\ncaf\xe9\t1\nna\xc3\xafve\t1\n", r"a\.tsv: line 2: not UTF-8 \(byte 0xe9\), as other"),
        ("a.tsv", 'text\tlabel\n"a\nb"\t1\n', r"a\.tsv: line 2: 1 field, .* in quotation marks\? set quoted: true"),
        ("a.tsv", "text\tlabel\na\t1\rb\t2\r", r"a\.tsv: line 2: 3 fields, .*; a CR inside of the line; lines end"),
        ("a.csv", "text,label\na,1\rb,2\r", r"a\.csv: line 2: a CR inside of the line; lines end in LF or CR LF$"),
        (
            "a.csv",
            b"text,label\n\xff\x00,1\n",
            r"a\.csv: line 2: neither UTF-8 nor Windows-1252 \(byte 0x00\); convert",
        ),
        ("a.csv", b"text,label\n\x81,1\n", r"a\.csv: line 2: neither UTF-8 nor Windows-1252 \(byte 0x81\)"),
        (
            "a.tsv",
            "text\tlabel\na\t1\n".encode("utf-16-le"),
            r"line 1: many bytes are zero, as in UTF-16: set encoding",
        ),
        (
            "a.csv",
            b"text,label\n" + "Café,1\n".encode("utf-16-le"),
            r"a\.csv: line 2: neither .* \(byte 0x00\); many bytes are zero, as in UTF-16: set encoding: utf-16-le or ",
        ),
        ("a.csv", b"text;label\na;1\nb;2;3\n", r"a\.csv: line 3: 3 fields, wants 2 .*; a ';' inside of a field"),
    ],
)
def test_bad_files(write, name, text, message):
    with pytest.raises(UserError, match=message) as error:
        list(read(write(name, text)))
    assert "\n" not in str(error.value)
