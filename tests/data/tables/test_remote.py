"""Objects of a bucket are read as files are; what cannot be read ends in one line, in seconds."""

import gzip
import json
import socket
import time
import urllib.error
import urllib.request
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxpt.config import DataConfig
from jaxpt.data.sources.opening import open_source
from jaxpt.data.tables import files, remote
from jaxpt.errors import UserError
from tests import buckets

LINES = [f"document number {i}" for i in range(200)]


@pytest.fixture
def offline(monkeypatch):
    """No test asks the network."""
    remote.unreachable.cache_clear()
    monkeypatch.setenv("NO_GCE_CHECK", "true")

    def refuse(address, timeout=None):
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)  # no machine of Google's answers
    yield
    remote.unreachable.cache_clear()


def answer(monkeypatch, error):
    def urlopen(request, timeout):
        if callable(error):
            error()
            raise TimeoutError
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("path", ["s3://bucket/a.txt", "hf://datasets/a/b.jsonl", "https://example.com/a.txt"])
def test_other_schemes(path):
    with pytest.raises(UserError, match=rf"^data.path: {path}: \w+:// is not supported, gs:// is; download the files"):
        files.expand(path, "data.path")


@pytest.mark.usefixtures("offline")
def test_no_network(monkeypatch):
    answer(monkeypatch, urllib.error.URLError(OSError(-2, "Name or service not known")))
    with pytest.raises(UserError, match=r"googleapis.com/ cannot be reached \(Name or service not known\); check net"):
        files.expand("gs://bucket/*.txt", "data.path")


@pytest.mark.usefixtures("offline")
def test_a_network_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 0.1)
    answer(monkeypatch, lambda: time.sleep(5))
    begun = time.monotonic()
    with pytest.raises(UserError, match="no answer in"):
        files.expand("gs://bucket/*.txt", "data.path")
    assert time.monotonic() - begun < 3


# ---- a bucket on loopback -------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """Texts in several formats."""
    root = tmp_path / "objects"
    (root / "texts" / "below").mkdir(parents=True)
    for n in range(5):
        lines = "".join(json.dumps({"text": line}) + "\n" for line in LINES[n::5])
        (root / "texts" / "below" / f"{n} of 5.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    plain = "".join(f"{line}\n" for line in LINES)
    (root / "plain.txt").write_text(plain)
    pq.write_table(pa.table({"text": LINES}), root / "rows.parquet", row_group_size=7)
    with zipfile.ZipFile(root / "packed.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("in/plain.txt", plain)
    with buckets.reached(root, tmp_path, monkeypatch) as bucket:
        yield bucket


@pytest.mark.parametrize(
    "path",
    ["texts/below/*.jsonl.gz", "texts", "plain.txt", "rows.parquet", "packed.zip", "texts/below/3 of 5.jsonl.gz"],
)
def test_texts_in_a_bucket_are_those_on_a_disk(bucket, path):
    """The same documents in the same order, and the same fingerprint: a run goes on when its data have moved."""

    def source(where):
        return open_source(DataConfig(tokenizer={"kind": "bpe"}, path=f"{where}/{path}", validation_fraction=0.1))

    here, there = source(bucket.root), source(f"gs://{bucket.name}")
    for split in ("train", "validation"):
        assert list(there.documents(split)) == list(here.documents(split)), split
    assert there.fingerprint() == here.fingerprint()
    assert sum(len(list(here.documents(split))) for split in ("train", "validation")) in (200, 40)


@pytest.mark.parametrize(
    ("path", "message"),
    [("none.txt", "no such file"), ("*.csv", r"no file matches gs://"), ("texts", r"is a directory; name its files")],
)
def test_what_a_bucket_does_not_have(bucket, path, message):
    with pytest.raises(UserError, match=message):
        files.expand(f"gs://{bucket.name}/{path}", "data.path")
    with pytest.raises(UserError, match=r"^data.path: gs://elsewhere/plain.txt: no such file"):
        files.expand("gs://elsewhere/plain.txt", "data.path")


def test_a_storage_that_is_busy_or_breaks_off(bucket):
    path = f"gs://{bucket.name}/plain.txt"
    bucket.faults["plain.txt"] = ["busy", "cut"]
    assert [line.rstrip() for _, line in files.read_lines(path)] == LINES
    reads = [range_ for name, range_ in bucket.asked if name.endswith("/plain.txt") and range_]
    assert len(reads) >= 3 and len(set(reads)) == 1  # the same bytes, asked for again


def test_an_object_that_may_not_be_read(bucket):
    bucket.faults["plain.txt"] = ["refused"] * 9
    with pytest.raises(UserError) as error:
        list(files.read_lines(f"gs://{bucket.name}/plain.txt"))
    assert str(error.value).startswith(f"gs://{bucket.name}/plain.txt: cannot be read (")
    assert "403" in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).endswith("; to log in: gcloud auth application-default login)")


def test_a_bucket_that_may_not_be_read(bucket):
    bucket.is_locked = True
    for path in ("plain.txt", "*.txt"):
        with pytest.raises(UserError) as error:
            files.expand(f"gs://{bucket.name}/{path}", "data.path")
        assert str(error.value).startswith(f"data.path: gs://{bucket.name}/{path}: cannot be read (")
        assert "HTTP response code 401" in str(error.value) and "\n" not in str(error.value)
        assert str(error.value).endswith("; to log in: gcloud auth application-default login)")
