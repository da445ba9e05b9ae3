"""Files are found, unpacked and read, those of a bucket too; what cannot be read ends in one line, in seconds."""

import gzip
import json
import os
import socket
import threading
import urllib.error
import urllib.request
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxpt.config import DataConfig
from jaxpt.data.sources.opening import open_source
from jaxpt.data.tables import expand, files, read
from jaxpt.data.tables.files import read_lines
from jaxpt.errors import UserError
from tests import buckets

LINES = [f"document number {i}" for i in range(200)]


def test_expand(tmp_path):
    for name in ("b.tsv", "a.tsv", "c.tsv.gz", "[x].tsv"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder").mkdir()
    root = str(tmp_path)
    assert expand(f"{root}/[ab].tsv", "data.path") == [f"{root}/a.tsv", f"{root}/b.tsv"]
    assert expand((f"{root}/c.*", f"{root}/[x].tsv"), "k") == [f"{root}/c.tsv.gz", f"{root}/[x].tsv"]
    for path, message in (
        ("*.csv", rf"data\.path: no file matches {root}/\*\.csv"),
        ("d.tsv", rf"data\.path: {root}/d\.tsv: no such file"),
        ("folder", rf"data\.path: {root}/folder is a directory; name its files, such as {root}/folder/\*\.jsonl"),
    ):
        with pytest.raises(UserError, match=message):
            expand(f"{root}/{path}", "data.path")


def test_directories_that_exist_stand_for_themselves_in_a_glob(tmp_path):
    for name in ("[x]/a.tsv", "[x]/s?/b.tsv", "x/c.tsv", "n\nl*/d.tsv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for pattern, names in (("[x]/*.tsv", ["[x]/a.tsv"]), ("[x]/*/*.tsv", ["[x]/s?/b.tsv"]),
                           ("[xy]/*.tsv", ["x/c.tsv"]), ("n\nl*/*.tsv", ["n\nl*/d.tsv"])):  # fmt: skip
        assert expand(f"{tmp_path}/{pattern}", "k") == [f"{tmp_path}/{name}" for name in names]


ANY_DEPTH = {
    "**/*.txt": ["a.txt", "b/c.txt", "b/d/e.txt", "f/d/g.txt"],
    "**/d/*.txt": ["b/d/e.txt", "f/d/g.txt"],
    "*/**/*.txt": ["b/c.txt", "b/d/e.txt", "f/d/g.txt"],
    "**/**/[ae].txt": ["a.txt", "b/d/e.txt"],
    "**/d": ["b/d/e.txt", "f/d/g.txt"],
    "**/*": ["a.txt", "b/c.txt", "b/d/e.txt", "f/d/g.txt", "n.pdf"],
}


def tree(folder, *names):
    for name in (*ANY_DEPTH["**/*"], *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


@pytest.mark.parametrize("pattern", ANY_DEPTH)
@pytest.mark.parametrize("is_relative", [False, True])
def test_two_stars_are_directories_at_any_depth(tmp_path, monkeypatch, pattern, is_relative):
    tree(tmp_path, ".git/x.txt", "b/.x.txt")
    monkeypatch.chdir(tmp_path)
    root, lines, names = "" if is_relative else f"{tmp_path}/", [], ANY_DEPTH[pattern]
    assert expand(root + pattern, "data.path", [".txt"], lines.append) == [f"{root}{name}" for name in names]
    assert lines[-1] == f"data.path: {root}{pattern}: {len(names)} files"


@pytest.mark.parametrize("pattern", ["**/*.txt", "**/**/*.txt", "**/d/*.txt"])
def test_two_stars_read_each_file_once(tmp_path, pattern):
    """Links may go round in a circle, or to what is there as well."""
    tree(tmp_path)
    wanted = expand(f"{tmp_path}/{pattern}", "data.path")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    (tmp_path / "f" / "d" / "d").symlink_to(tmp_path / "b" / "d")
    assert sorted(map(os.path.realpath, expand(f"{tmp_path}/{pattern}", "data.path"))) == wanted


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / os.fsdecode(b"sch\xf6n.txt")).write_text("x")
    for paths in (str(tmp_path), f"{tmp_path}/*"):
        with pytest.raises(UserError, match=r"data\.path: .*n\.txt: its name has bytes that are not UTF-8; rename"):
            expand(paths, "data.path", [".txt"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("a b\nc\n".encode("utf-16-be"), "line 1: many bytes are zero, as in UTF-16; convert the file to UTF-8"),
        (
            b"a\n" + "café\n".encode("utf-16-le"),
            r"line 2: not UTF-8 \(byte 0xe9\), many bytes are zero, as in UTF-16; ",
        ),
        ("café\n".encode("utf-16"), "line 1: many bytes are zero, as in UTF-16; convert"),
        (b"caf\xe9\n", r"line 1: not UTF-8 \(byte 0xe9\); convert"),
    ],
)
def test_text_in_utf_16_is_told(data, words, tmp_path):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(UserError, match=rf"a\.txt: {words}"):
        list(files.read_lines(str(tmp_path / "a.txt")))


def test_a_directory_stands_for_its_files(tmp_path):
    names = ("b/x.txt", "b.txt", "a/y.txt.gz", "z.jsonl", "a/n.pdf", "m.pdf", "LICENSE")
    names += (".git/x.txt", "a/.x.txt", "e.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name == "e.txt" else "x")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as packed:
        packed.writestr("in/c.txt", "x")
        packed.writestr("in/c.pdf", "x")
    lines = []
    found = expand((str(tmp_path), f"{tmp_path}/b.txt"), "data.path", [".txt", ".jsonl"], lines.append)
    wanted = ["a/y.txt.gz", "b.txt", "b/x.txt", "y.zip!in/c.txt", "z.jsonl", "b.txt"]
    assert found == [f"{tmp_path}/{name}" for name in wanted]
    left_out = "3 .pdf, 1 without a suffix, 1 empty"
    assert lines == [f"data.path: {tmp_path}: 5 files (3 .txt, 1 .txt.gz, 1 .jsonl); left out: {left_out}"]
    assert f"{tmp_path}/a/n.pdf" in expand(str(tmp_path), "k", [""])
    with pytest.raises(UserError) as error:
        expand(f"{tmp_path}/b", "data.path", [".parquet", ".csv"])
    assert str(error.value) == (
        f"data.path: {tmp_path}/b: a directory without a file to read (1 .txt); wants files that end in .parquet, .csv"
    )


@pytest.mark.parametrize("data", [b"a\tb\rc\td\r", b"a\tb\rc\td", b"a\tb\rc\td\n", b"a\tb\rc\td\r\n"])
def test_lines_that_end_in_cr_alone(tmp_path, data):
    (tmp_path / "mac.tsv").write_bytes(data)
    with pytest.raises(UserError, match=r"mac\.tsv: its lines end in CR alone, as on old Macs; wants LF or CR LF: tr "):
        list(read_lines(str(tmp_path / "mac.tsv")))
    (tmp_path / "dos.tsv").write_bytes(b"a\r\nb\rc\r\n")
    assert [line for _, line in read_lines(str(tmp_path / "dos.tsv"))] == ["a\r\n", "b\rc\r\n"]


@pytest.mark.parametrize(
    "data, message",
    [
        (gzip.compress(b"text\tlabel\n" + bytes(range(48, 122)) * 400, mtime=0)[:60], "truncated or damaged gzip file"),
        (b"text\tlabel\na\t1\n", "truncated or damaged gzip file"),
        (gzip.compress(b"text\n", mtime=0)[:12] + b"\xff" * 30, "truncated or damaged gzip file"),
    ],
)
def test_bad_gzip(tmp_path, data, message):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"a\.tsv\.gz: {message}"):
        list(read(path))


def test_missing_and_unreadable_files(tmp_path):
    for format in ("tsv", "csv", "json", "jsonl", "conll", "conllu", "text", "parquet"):
        with pytest.raises(UserError, match=f"{tmp_path}/none: no such file"):
            list(read(tmp_path / "none", format))
        with pytest.raises(UserError, match=f"{tmp_path}: "):
            list(read(tmp_path, format))


@pytest.mark.slow
def test_remote_files_are_opened_by_tensorflow(tmp_path):
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"text\tlabel\na\t1\n"))
    url = f"file://{tmp_path}"
    assert expand(f"{url}/*.gz", "data.path") == [f"{url}/a.tsv.gz"]
    tree(tmp_path / "tree")
    for pattern, names in ANY_DEPTH.items():
        found = expand(f"{url}/tree/{pattern}", "data.path", [".txt"])
        assert found == [f"{url}/tree/{name}" for name in names], pattern
    assert next(read(f"{url}/a.tsv.gz")).values == {"text": "a", "label": "1"}
    with pytest.raises(UserError, match=r"none\.tsv: no such file"):
        next(read(f"{url}/none.tsv"))
    with pytest.raises(UserError, match=r"data\.path: .*none\.tsv: no such file"):
        expand(f"{url}/none.tsv", "data.path")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (str(tmp_path / "pipe.txt"), "/dev/zero"):
        with pytest.raises(UserError, match=r"data\.path: .* is a pipe or a device, expected a file"):
            expand(path, "data.path")
    os.mkfifo(tmp_path / "pipe.tsv")
    with pytest.raises(UserError, match=r"pipe\.tsv: is a pipe or a device, expected a file"):
        next(read(str(tmp_path / "pipe.tsv")))


def test_a_line_that_would_fill_memory_is_refused(tmp_path, monkeypatch):
    """Gigabytes in one line, packed into a few megabytes: it is read up to the bound, whatever follows."""
    monkeypatch.setattr(files, "MAX_LINE", 1 << 20)
    monkeypatch.setattr(files, "MAX_FILE", 1 << 22)
    line = b"a" * (1 << 20)
    for name, pack in (("bomb.gz", gzip.open), ("bomb.txt", open)):
        with pack(tmp_path / name, "wb") as file:
            file.writelines([b"fine\n", *[line] * 9, b"\n"])
        with pytest.raises(UserError, match=rf"{name}: line 2: longer than 1 MB; cut the document into several"):
            list(files.read_lines(str(tmp_path / name)))
        with pytest.raises(UserError, match=rf"{name}: byte 5: longer than 1 MB"):
            list(files.raw_lines(str(tmp_path / name), 5))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.jsonl", line * 9)
    with pytest.raises(UserError, match=r"bomb.zip!a.jsonl: line 1: longer than 1 MB"):
        list(files.read_lines(str(tmp_path / "bomb.zip!a.jsonl")))
    with gzip.open(tmp_path / "many.json.gz", "wb") as file:
        file.writelines([line[1:] + b"\n"] * 5)
    with pytest.raises(UserError, match=r"many.json.gz: more than 4 MB, read at once; wants several files or JSONL"):
        files.read_whole(str(tmp_path / "many.json.gz"))


def test_a_zip_is_read_as_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.txt", "one\ntwo\nthree\n")
    assert [line for _, line in files.read_lines(str(tmp_path / "a.zip!a.txt"), 4, 1)] == ["two\n", "three\n"]
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[content.index(b"a.txt") + 6] ^= 255  # in the packed bytes
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"a.zip!a.txt: truncated or damaged zip file"):
        list(files.read_lines(str(tmp_path / "a.zip!a.txt")))


def test_a_gz_in_a_zip_is_unpacked_too(tmp_path):
    path, content = str(tmp_path / "a.zip"), gzip.compress(b"one\ntwo\nthree\n")
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("a.txt.gz", content)
        packed.writestr("b.txt.gz", content[:-9])
    whole, cut = expand(path, "data.path")
    assert [line for _, line in read_lines(whole, 4, 1)] == ["two\n", "three\n"]
    assert next(read(whole)).values == {"text": "one"}
    assert files.size(whole) > 2 * len(content)
    with files.open_file(whole, unpack=False) as file:
        assert file.read() == content
    with pytest.raises(UserError, match=r"a\.zip!b\.txt\.gz: truncated or damaged gzip file"):
        list(read_lines(cut))


# ---- remote files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch):
    """No test asks the network."""
    files.unreachable.cache_clear()
    monkeypatch.setenv("NO_GCE_CHECK", "true")

    def refuse(address, timeout=None):
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)  # no machine of Google's answers
    yield
    files.unreachable.cache_clear()


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
    monkeypatch.setattr(files, "_SECONDS", 0.1)
    ended = threading.Event()
    answer(monkeypatch, lambda: ended.wait(300))  # then it would be another error
    with pytest.raises(UserError, match="no answer in"):
        files.expand("gs://bucket/*.txt", "data.path")
    ended.set()


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
