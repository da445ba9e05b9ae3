"""Formats by suffix; and the real files, where they are."""

import collections
from pathlib import Path

import pytest

from jaxpt.data.tables import FORMATS, column, file_format, label, read, where
from jaxpt.data.tables.rows import Row
from jaxpt.errors import UserError

DATA = Path(__file__).parents[4] / "shared" / "data"
COLA = {"header": ("source", "label", "mark", "sentence")}
REAL = [
    # file, options, rows, the number of the last row, its columns
    ("glue/SST-2/train.tsv.gz", {}, 67349, 67350, "sentence label"),
    ("glue/SST-2/dev.tsv.gz", {}, 872, 873, "sentence label"),
    ("glue/CoLA/train.tsv.gz", COLA, 8551, 8551, "source label mark sentence"),
    ("glue/CoLA/dev.tsv.gz", COLA, 1043, 1043, "source label mark sentence"),
    ("glue/MRPC/train.tsv.gz", {}, 3668, 3669, "Quality|#1 ID|#2 ID|#1 String|#2 String"),
    ("glue/MRPC/dev.tsv.gz", {}, 408, 409, "Quality|#1 ID|#2 ID|#1 String|#2 String"),
    ("glue/STS-B/train.tsv.gz", {}, 5749, 5750,
     "index genre filename year old_index source1 source2 sentence1 sentence2 score"),
    ("classification/banking77/train.csv.gz", {}, 10003, 10017, "text category"),
    ("classification/banking77/test.csv.gz", {}, 3080, 3085, "text category"),
    ("tagging/ud_english_ewt/en_ewt-ud-dev.conllu.gz", {}, 2001, 32567,
     "id tokens lemma upos xpos feats head deprel deps misc sent_id text newdoc"),
    ("qa_extractive/squadshifts/new_wiki_v1.0.json.gz", {}, 7938, 7938,
     "id title context question answers is_impossible"),
    ("qa_extractive/xquad/xquad.es.json.gz", {}, 1190, 1190, "id title context question answers is_impossible"),
    ("qa_closedbook/webquestions/trainmodel.json.gz", {}, 2834, 2834, "qId answers qText"),
    ("qa_closedbook/nq_open/NQ-open.dev.jsonl.gz", {}, 3610, 3610, "question answer"),
    ("text2text/e2e_nlg/devset.csv.gz", {}, 4672, 4673, "mr ref"),
    ("text2text/gsm8k/train.jsonl.gz", {}, 7473, 7473, "question answer"),
]  # fmt: skip


@pytest.mark.parametrize("file, options, count, last, columns", REAL, ids=[one[0] for one in REAL])
def test_real_files(file, options, count, last, columns):
    if not (DATA / file).exists():
        pytest.skip("labelled sets are not here")
    rows = list(read(DATA / file, **options))
    assert len(rows) == count and rows[-1].number == last
    assert list(rows[0].values) == (columns.split("|") if "|" in columns else columns.split())
    if "glue" in file and "STS" not in file:
        name = "Quality" if "MRPC" in file else "label"
        assert {label(column(row, name)) for row in rows} == {"0", "1"}
    if "banking77" in file:
        assert len({row.values["category"] for row in rows}) == 77
    if "ewt" in file:
        assert (
            len({tag for row in rows for tag in row.values["upos"]}) == 17
            and sum(row.values["newdoc"] for row in rows) == 318
        )
        assert all(row.values["text"] and row.values["sent_id"] for row in rows)
    if "qa_extractive" in file:
        found = collections.Counter(
            row.values["context"][a["answer_start"] :].startswith(a["text"])
            for row in rows
            for a in row.values["answers"]
        )
        assert found[True] > 100 * found[False]


@pytest.mark.parametrize(
    "path, format",
    [
        ("a.tsv", "tsv"), ("a.csv.gz", "csv"), ("a.ndjson", "jsonl"), ("a.json.gz", "json"), ("a.b.parquet", "parquet"),
        ("a.conllu", "conllu"), ("a.md", "text"), ("a.iob", "conll"), ("gs://bucket/a.conll", "conll"),
    ],
)  # fmt: skip
def test_format_by_suffix(path, format):
    assert file_format(path) == format and file_format(path, "tsv") == "tsv"


def test_bad_formats_and_options_are_said_at_once():
    """Before the first row is wanted, and before the file is opened."""
    with pytest.raises(UserError, match=r"a\.doc: the suffix says nothing .* wants \.tsv, \.csv, "):
        read("a.doc")
    with pytest.raises(UserError, match=r"^A\.XLSX: is a spreadsheet, .* as \.csv$"):
        read("A.XLSX")
    with pytest.raises(UserError, match="a: no format 'conl'; did you mean conl"):
        read("a", "conl")
    with pytest.raises(UserError, match=r"a\.tsv: format tsv has no option 'names'; it has header, quoted, "):
        read("a.tsv", names=())
    with pytest.raises(UserError, match=r"a\.jsonl: format jsonl has no option 'header'; it has start, columns, "):
        read("a.jsonl", header=())


def test_where_says_row_for_files_without_lines():
    assert where("a.tsv.gz", Row(3, {})) == "a.tsv.gz: line 3"
    assert where("a.json.gz", Row(3, {})) == "a.json.gz: row 3"
    assert where("glue/sst2", Row(3, {}), "tfds") == "glue/sst2: row 3"
    assert {format for format in FORMATS if "row" in where("a", Row(1, {}), format)} == {
        "json", "parquet", "array_record", "tfds", "hf", "builtin",
    }  # fmt: skip
