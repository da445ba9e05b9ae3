"""ArrayRecord files: tf.train.Examples and JSON objects, from any record on."""

import json

import pytest

from jaxpt.data import tables
from jaxpt.data.tables import Offset, array_record
from jaxpt.errors import UserError

array_record_module = pytest.importorskip("array_record.python.array_record_module")


def write(path, records):
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return str(path)


def example(**features):
    import tensorflow as tf

    kinds = {str: "bytes_list", int: "int64_list", float: "float_list"}
    feature = {}
    for key, values in features.items():
        plain = [x.encode() if isinstance(x, str) else x for x in values]
        feature[key] = tf.train.Feature(**{kinds[type(values[0])]: {"value": plain}})
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def test_examples(tmp_path):
    path = write(tmp_path / "a.array_record", [example(text=["käse"], label=[1], ids=[3, 4]), example(text=["two"])])
    first, second = tables.read(path)
    assert first == (1, {"text": "käse", "label": 1, "ids": [3, 4]}) and second == (2, {"text": "two"})
    assert [row.values for row in tables.read(path, columns=("text",))] == [{"text": "käse"}, {"text": "two"}]
    like_json = next(record for n in range(123) if (record := example(text=["a" * n]))[1:2] == b"{")
    ((_, values),) = tables.read(write(tmp_path / "f.array_record", [like_json]))
    assert set(values["text"]) == {"a"}


def test_json_from_any_record_on(tmp_path):
    path = write(tmp_path / "b.arrayrecord", [json.dumps({"text": f"text {i}"}).encode() for i in range(2500)])
    assert [row.number for row in tables.read(path)] == list(range(1, 2501))
    assert next(tables.read(path, start=Offset(number=2300))) == (2301, {"text": "text 2300"})
    places = [offset.number for offset, _ in array_record.cuts(path, 1 << 14)]
    assert places[0] == 0 and 1 < len(places) < 30 and places == sorted(set(places))


@pytest.mark.parametrize(
    ("records", "answer"),
    [
        ([b"plain text"], r"c.array_record: row 1: wants a tf.train.Example or a JSON object"),
        ([b'{"text": '], r"c.array_record: row 1: not JSON"),
        ([], r"c.array_record: no records in it"),
    ],
)
def test_other_records(records, answer, tmp_path):
    with pytest.raises(UserError, match=answer):
        list(tables.read(write(tmp_path / "c.array_record", records)))


def test_other_files(tmp_path):
    (tmp_path / "d.array_record").write_bytes(b"no records" * 100_000)
    with pytest.raises(UserError, match="not a readable ArrayRecord file"):
        list(tables.read(str(tmp_path / "d.array_record")))
    with pytest.raises(UserError, match="no such file"):
        list(tables.read(str(tmp_path / "none.array_record")))


def test_a_corpus_is_the_same_as_in_jsonl(tmp_path):
    from jaxpt.data.sources import opening
    from tests import families

    lines = [json.dumps({"text": f"text {i}"}) for i in range(50)]
    record_path = write(tmp_path / "e.array_record", [line.encode() for line in lines])
    (tmp_path / "e.jsonl").write_text("\n".join(lines) + "\n")
    settings = families.config("gpt2").data
    mine, theirs = (
        [*opening.open_source(settings.model_copy(update={"source": "auto", "path": str(path)})).documents("train")]
        for path in (record_path, tmp_path / "e.jsonl")
    )
    assert mine == theirs and len(mine) > 40
