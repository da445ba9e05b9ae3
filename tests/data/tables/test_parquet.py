import datetime
import decimal

import pytest

from jaxpt.data.tables import read, where
from jaxpt.errors import UserError


def test_lists_structs_and_missing_values(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"text": f"text {i}", "label": i % 2, "tags": ["a"] * (i % 3), "answers": {"text": ["x"], "answer_start": [i]}}
        for i in range(2500)
    ]
    rows[1]["text"] = None
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=700)
    found = list(read(path))
    assert [row.values for row in found] == rows
    assert [row.number for row in found] == list(range(1, 2501))
    assert where(path, found[-1]) == f"{path}: row 2500"


def test_all_values_are_json(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {
        "text": b"a",
        "day": datetime.date(2024, 5, 1),
        "price": decimal.Decimal("1.50"),
        "nested": [{"raw": b"b", "at": datetime.datetime(2024, 5, 1, 12)}],
    }
    pq.write_table(pa.Table.from_pylist([row, dict.fromkeys(row)]), tmp_path / "a.parquet")
    first, second = (row.values for row in read(tmp_path / "a.parquet"))
    nested = [{"raw": "b", "at": "2024-05-01 12:00:00"}]
    assert first == {"text": "a", "day": "2024-05-01", "price": "1.50", "nested": nested}
    assert second == dict.fromkeys(row)


def test_bad_files(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.parquet").write_text("text\tlabel\n")
    with pytest.raises(UserError, match=r"a\.parquet: not a readable Parquet file"):
        list(read(tmp_path / "a.parquet"))
    with pytest.raises(UserError, match=r"b\.parquet: no such file"):
        list(read(tmp_path / "b.parquet"))
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"c\.parquet: no rows in it"):
        list(read(tmp_path / "c.parquet"))
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "d.parquet")
    with pytest.raises(UserError, match=r"d\.parquet: two columns are named 'a'"):
        list(read(tmp_path / "d.parquet"))


def test_a_flipped_byte_of_a_file_with_checksums_is_named(tmp_path):
    """A format's own checksums are compared where a file has them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    rows = [{"text": f"text {i}"} for i in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = path.read_bytes()
    at = content.index(b"text 57")
    assert len(list(read(path))) == 100
    path.write_bytes(content[:at] + b"texT" + content[at + 4 :])
    with pytest.raises(UserError, match=r"a\.parquet: not a readable Parquet file \(.*CRC"):
        list(read(path))
