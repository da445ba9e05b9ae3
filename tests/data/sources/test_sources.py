import gzip
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxpt.config import DataConfig
from jaxpt.data.fingerprint import changes
from jaxpt.data.sources import base as sources
from jaxpt.data.sources import readers
from jaxpt.data.sources.base import held_out
from jaxpt.data.sources.opening import open_source
from jaxpt.data.tasks import classification
from jaxpt.errors import UserError

LINES = [f"document number {i}" for i in range(200)]


def config(path=None, **settings):
    return DataConfig(tokenizer={"kind": "bpe"}, path=str(path) if path else None, **settings)


def read(path=None, split="train", **settings):
    return list(open_source(config(path, **settings)).documents(split))


def write(path, lines=LINES):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path):
    return write(tmp_path / "a.txt")


def both(path, **settings):
    return [document for split in ("train", "validation") for document in read(path, split, **settings)]


# ---- formats --------------------------------------------------------------------------------------------------------


def test_lines_jsonl_parquet_and_gzip_give_the_same_documents(tmp_path, text):
    jsonl = write(tmp_path / "a.jsonl", [json.dumps({"id": 1, "text": line}) for line in LINES])
    zipped = tmp_path / "b.txt.gz"
    zipped.write_bytes(gzip.compress(text.read_bytes()))
    parquet = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": LINES, "n": range(200)}), parquet, row_group_size=7)
    expected = sorted((0, i, line) for i, line in enumerate(LINES))
    for path in (text, jsonl, zipped, parquet, f"file://{text}", f"file://{zipped}", f"file://{parquet}"):
        assert sorted(both(path)) == expected, path


def test_a_file_is_a_document(tmp_path):
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    texts = {f"{i:02}.txt": f"Title {i}\n\nbody {i}\n" for i in range(40)}
    for name, content in texts.items():
        (folder / name).write_text(content)
    (folder / "below" / "00.md.gz").write_bytes(gzip.compress(b"packed\n"))
    (folder / "blank.txt").write_text(" \n\n")
    (folder / "notes.pdf").write_bytes(b"%PDF")
    data = config(folder, documents="file", validation_fraction=0.2)
    source = open_source(data)
    found = [document for split in ("train", "validation") for document in source.documents(split)]
    assert sorted(text for _, _, text in found) == sorted(["packed", *(t.rstrip("\n") for t in texts.values())])
    assert {number for _, number, _ in found} == {0} and len({file for file, _, _ in found}) == 41
    assert source.counts["train"]["empty"] == 1, "a blank file is a document without text"
    assert source.found == (f"data.path: {folder}: 42 files (41 .txt, 1 .md.gz); left out: 1 .pdf",)
    assert len(list(readers.cuts(str(folder / "00.txt"), data, 4))) == 1, "a file is not cut"
    with pytest.raises(UserError, match=r"blank\.txt: no documents in it$"):
        list(open_source(config(folder / "blank.txt", documents="file")).documents("train"))


def test_files_without_a_document_are_skipped_where_others_have_some(tmp_path):
    """Of texts in several files a few are blank; at the end of hours of preparing it would end the run."""
    for name, content in {"a.txt": "", "b.txt": "\n\n", "c.jsonl": '{"text": ""}\n', "d.jsonl": "\n"}.items():
        (tmp_path / name).write_text(content)
    text = write(tmp_path / "e.txt")
    source = open_source(config(f"{tmp_path}/*.*"))
    assert len([*source.documents("train"), *source.documents("validation")]) == len(LINES)
    skipped = f"train: 4 of 5 files without a document, skipped: {tmp_path}/a.txt, {tmp_path}/b.txt and 2 more"
    assert [source.check(split, source.counts[split]) for split in ("train", "validation")] == [skipped, ""]
    readers.check_beginnings(config(f"{tmp_path}/*.*"))
    text.unlink()
    for check in (readers.check_beginnings, lambda data: list(open_source(data).documents("train"))):
        with pytest.raises(UserError, match=r"a\.txt: no documents in it, nor in 3 other files$"):
            check(config(f"{tmp_path}/*.*"))
    write(tmp_path / "e.txt", [*[""] * 30, "the first text comes late"])
    readers.check_beginnings(config(f"{tmp_path}/*.*"))


@pytest.mark.parametrize("every", [1, 10, 11, 20, 25])
def test_pieces_of_a_file_end_where_they_are_long_enough(tmp_path, every):
    """The first line end, and the first group of rows, at which a piece has `every` bytes."""
    lines = write(tmp_path / "a.txt", ["123456789"] * 5)  # with their ends 10 bytes each
    steps = max(-(-every // 10), 1)
    wanted = [min(steps, 5 - first) for first in range(0, 5, steps)]
    found = list(readers.cuts(str(lines), config(lines), every))
    assert [size for _, size in found] == [10 * count for count in wanted]
    assert [mark.line for mark, _ in found] == list(range(0, 5, steps))
    parquet = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["123456789"] * 5}), parquet, row_group_size=1, use_dictionary=False)
    sizes = [pq.ParquetFile(parquet).metadata.row_group(n).column(0).total_uncompressed_size for n in range(5)]
    found = list(readers.cuts(str(parquet), config(parquet), sizes[0] * steps))
    assert [size for _, size in found] == [sizes[0] * count for count in wanted]
    assert [(mark.offset, mark.number) for mark, _ in found] == [(first, first) for first in range(0, 5, steps)]


def test_no_document_is_lost_where_a_file_is_cut(tmp_path):
    """Blank lines may be of U+3000 or follow a byte order mark; older runs keep the cuts that they had."""
    documents = [f"文書{i}" for i in range(40)]
    blanks = ["", "\u3000", "\xa0"]
    lines = [line for i, text in enumerate(documents) for line in (text, blanks[i % 3])]
    path = write(tmp_path / "a.txt", ["\ufeff", *lines])
    data = config(path, documents="blank_line", validation_path=str(write(tmp_path / "b.txt", ["other"])))
    found = {}
    for is_older in (False, True):
        source = open_source(data, shard_bytes=60, ascii_blanks=is_older)
        found[is_older] = [text for pieces in source.shards("train") for *_, text in source.documents("train", pieces)]
    assert found[False] == documents and len(found[True]) < len(documents)


def test_a_directory_of_labelled_files(tmp_path):
    for folder, rows in (("train", 40), ("test", 3)):
        (tmp_path / folder).mkdir()
        lines = "".join(f"word {i},{'ab'[i % 2]}\n" for i in range(rows))
        (tmp_path / folder / "part.csv").write_text(f"text,label\n{lines}")
    (tmp_path / "train" / "README.md").write_text("about")
    task = classification.ClassificationTask(kind="classification", labels=("a", "b"))
    source = open_source(config(tmp_path / "train", test_path=str(tmp_path / "test")), task=task)
    assert len([*source.documents("train"), *source.documents("validation")]) == 40
    assert source.found == (
        f"data.path: {tmp_path}/train: 1 file (1 .csv); left out: 1 .md",
        f"data.test_path: {tmp_path}/test: 1 file (1 .csv)",
    )


def test_a_document_ends_at_a_newline_alone(tmp_path):
    """Unicode counts other characters as line ends."""
    text = "one\u2028two\u2029three\x85four\x0bfive\x0csix\x1cseven"
    lines = [f"{n} {text}" for n in range(50)]
    jsonl = write(tmp_path / "a.jsonl", [json.dumps({"text": line}, ensure_ascii=False) for line in lines])
    for path in (write(tmp_path / "a.txt", lines), jsonl):
        assert sorted(document for _, _, document in both(path)) == sorted(lines)


def test_json_nested_too_deeply_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", ['{"text": "one"}', '{"text": ' + "[" * 10_000 + "]" * 10_000 + "}"])
    with pytest.raises(UserError, match=r"a\.jsonl: line 2: (not JSON|.* column 'text' wants text)") as error:
        read(path)
    assert len(str(error.value)) < 300


def test_a_damaged_file_says_where(tmp_path):
    lines = [f"document {n}" for n in range(3300)]
    pq.write_table(pa.table({"text": lines}), tmp_path / "a.parquet", row_group_size=1100)
    whole = (tmp_path / "a.parquet").read_bytes()
    damaged = tmp_path / "damaged.parquet"
    start = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(2).column(0).data_page_offset
    damaged.write_bytes(whole[:start] + b"\xff" * 200 + whole[start + 200 :])
    with pytest.raises(UserError, match=r"damaged\.parquet: not a readable Parquet file after row 2,048 \(") as error:
        both(damaged)
    damaged.write_bytes(whole[:500])
    with pytest.raises(UserError, match=r"damaged\.parquet: not a readable Parquet file \("):
        both(damaged)
    assert "\n" not in str(error.value)
    torn = tmp_path / "torn.txt.gz"
    torn.write_bytes(gzip.compress("".join(f"{hash(n)} {n}\n" for n in range(5000)).encode())[:-2000])
    with pytest.raises(UserError, match=r"torn\.txt\.gz: truncated or damaged gzip file after line [1-4],\d{3} \("):
        both(torn)


def test_two_fields_make_one_document(tmp_path):
    pairs = [{"en": f"a cat {i}", "de": f"eine Katze {i}"} for i in range(50)]
    odd = [{"en": "parted\x1fhere", "de": "x"}, {"en": "untranslated", "de": " "}]
    jsonl = write(tmp_path / "a.jsonl", [json.dumps(pair) for pair in pairs + odd])
    pq.write_table(pa.Table.from_pylist(pairs + odd), tmp_path / "a.parquet", row_group_size=7)
    expected = [(0, i, f"eine Katze {i}\x1fa cat {i}") for i in range(50)] + [(0, 50, "x\x1fparted here")]
    for path in (jsonl, tmp_path / "a.parquet"):
        assert sorted(both(path, fields=("de", "en"))) == expected
        with pytest.raises(UserError, match=r"(row|line) 1 \(data.fields\): no column 'fr'; it has en, de"):
            read(path, fields=("de", "fr"))
    with pytest.raises(UserError, match="a text file has no fields"):
        read(write(tmp_path / "a.txt"), fields=("de", "en"))
    with pytest.raises(UserError, match=r"built-in corpus has code and en, not de and en; .* which data.path names"):
        read(fields=("de", "en"))
    with pytest.raises(UserError, match=r"data.fields: JSONL and Parquet files have fields"):
        read("squad", source="tfds", fields=("de", "en"))


@pytest.mark.slow
def test_the_built_in_pairs_in_either_order():
    texts = ([text for *_, text in both(None, fields=f)] for f in (("code", "en"), ("en", "code")))
    one, other = ([text.split(readers.PAIR_SEPARATOR) for text in order] for order in texts)
    assert sorted(one) == sorted(pair[::-1] for pair in other)
    assert all(code.startswith("def ") for code, _ in one)


def test_blank_lines_part_documents(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\r\n\r\n \r\nthree\n\n\n".encode() + "\n\n".join(LINES).encode())
    found = sorted(both(path, documents="blank_line"))
    assert found[:3] == [(0, 0, "one\ntwo"), (0, 1, "three"), (0, 2, LINES[0])]
    assert len(found) == 2 + len(LINES)


def test_globs_are_sorted_and_origins_name_file_and_line(tmp_path):
    for name in ("b", "a"):
        write(tmp_path / f"{name}.txt", ["", f"{name} first", "   ", *LINES])
    found = sorted(both(tmp_path / "*.txt"))
    assert found[0] == (0, 1, "a first")
    assert next(d for d in found if d[0] == 1) == (1, 1, "b first")
    assert found[1] == (0, 3, LINES[0])


def test_empty_documents_are_counted(tmp_path):
    source = open_source(config(write(tmp_path / "a.txt", ["", "  ", *LINES])))
    train = list(source.documents("train"))
    assert source.counts["train"] == {"documents": len(train), "empty": 2, "files": {"0": len(LINES)}}
    held = list(source.documents("validation"))
    assert source.counts["validation"] == {"documents": len(held), "empty": 0, "files": {"0": len(LINES)}}
    apart = open_source(config(tmp_path / "a.txt", validation_path=str(write(tmp_path / "v.txt", ["", "held"]))))
    assert len(list(apart.documents("validation"))) == apart.counts["validation"]["empty"] == 1


def test_half_a_surrogate_pair_does_no_harm(tmp_path):
    path = write(tmp_path / "a.jsonl", ['{"text": "broken \\ud83d emoji"}'])
    ds = open_source(config(path, validation_path=str(path))).dataset("train")
    assert next(ds.as_numpy_iterator())["text"] == b"broken ? emoji"


def test_dataset_gives_text_and_origin(text):
    source = open_source(config(text))
    got = [(*map(int, d["origin"]), d["text"].decode()) for d in source.dataset("train").as_numpy_iterator()]
    assert got == list(source.documents("train"))


# ---- splits ---------------------------------------------------------------------------------------------------------


def test_splits_are_disjoint_stable_and_together_everything(text):
    train, held = ({d[2] for d in read(text, s, validation_fraction=0.2)} for s in ("train", "validation"))
    assert not train & held
    assert train | held == set(LINES)
    assert 20 <= len(held) <= 60
    assert held >= {d[2] for d in read(text, "validation", validation_fraction=0.1)}
    assert held == {line for line in LINES if held_out(line, 0.2)}


def test_equal_documents_stand_on_one_side(tmp_path):
    path = write(tmp_path / "a.txt", LINES * 3)
    train, held = ([d[2] for d in read(path, s)] for s in ("train", "validation"))
    assert not set(train) & set(held)
    assert len(train) + len(held) == 3 * len(LINES)


def test_validation_path_holds_nothing_out(tmp_path, text):
    valid = write(tmp_path / "v.txt", ["held"])
    assert len(read(text, "train", validation_path=str(valid))) == len(LINES)
    assert read(text, "validation", validation_path=str(valid)) == [(0, 0, "held")]


@pytest.mark.slow
def test_builtin_is_the_default():
    assert len(read(split="train")) > len(read(split="validation")) > 0


# ---- mistakes -------------------------------------------------------------------------------------------------------


def mistakes(tmp_path):
    """(configuration, words of its message)"""
    good = json.dumps({"text": "fine"})
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"first\nsecond\ncaf\xe9\n")
    numbers = tmp_path / "n.parquet"
    pq.write_table(pa.table({"text": [1, 2]}), numbers)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 nonsense")
    (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(b"some words\n" * 1000)[:40])
    (tmp_path / "plain.txt.gz").write_bytes(b"not gzip")
    (tmp_path / "dir").mkdir()
    (tmp_path / "empty.txt").write_bytes(b"")
    return {
        "missing": (config(tmp_path / "nowhere.txt"), "nowhere.txt: no such file"),
        "glob": (config(tmp_path / "*.csv"), "no file matches"),
        "directory": (config(tmp_path / "dir"), "dir: a directory without a file to read (no files); wants files that"),
        "suffix": (config(write(tmp_path / "a.xyz")), "set data.source"),
        "no path": (config(source="jsonl"), "data.path is missing"),
        "empty": (config(tmp_path / "empty.txt"), "empty.txt: no documents"),
        "blank": (config(write(tmp_path / "blank.txt", ["", " "])), "blank.txt: no documents"),
        "not UTF-8": (config(latin), "latin.txt: line 3: not UTF-8 (byte 0xe9)"),
        "broken": (config(write(tmp_path / "b.jsonl", [good, '{"text": "x'])), "b.jsonl: line 2: not JSON"),
        "list": (config(write(tmp_path / "l.jsonl", [good, "[1]"])), "line 2: wants a JSON object, got [1]"),
        "field": (
            config(write(tmp_path / "f.jsonl", [good, '{"title": "t", "body": "b"}'])),
            "line 2 (data.field): no column 'text'; it has title, body",
        ),
        "number": (
            config(write(tmp_path / "t.jsonl", ['{"text": 3}'])),
            "line 1 (data.field): column 'text' wants text, got 3",
        ),
        "column": (config(numbers, field="body"), "n.parquet: row 1 (data.field): no column 'body'; it has text"),
        "column type": (config(numbers), "n.parquet: row 1 (data.field): column 'text' wants text, got 1"),
        "torn parquet": (config(tmp_path / "torn.parquet"), "torn.parquet: not a readable Parquet file"),
        "torn gzip": (config(tmp_path / "torn.txt.gz"), "torn.txt.gz: truncated or damaged gzip file"),
        "no gzip": (config(tmp_path / "plain.txt.gz"), "plain.txt.gz: truncated or damaged gzip file"),
        "no validation": (config(write(tmp_path / "one.txt", ["only"])), "leaves the validation split empty"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("through", ["documents", "dataset"])
def test_bad_input_is_named_in_one_line(tmp_path, through):
    for name, (data, words) in mistakes(tmp_path).items():
        with pytest.raises(UserError) as error:
            source = open_source(data)
            for split in ("train", "validation"):
                if through == "documents":
                    list(source.documents(split))
                else:
                    read_through_tensorflow(source, split)
        assert words in str(error.value), name
        assert "\n" not in str(error.value), name


def read_through_tensorflow(source, split):
    list(source.dataset(split))
    if source.failure is not None:  # as who writes records asks
        raise source.failure


# ---- fingerprint ----------------------------------------------------------------------------------------------------


def test_fingerprint_follows_content_not_place(tmp_path, text):
    (tmp_path / "moved").mkdir()
    moved = write(tmp_path / "moved" / "a.txt")
    before = open_source(config(text)).fingerprint()
    assert open_source(config(moved)).fingerprint() == before
    assert open_source(config(moved, validation_fraction=0.3)).fingerprint() != before
    write(moved, [*LINES, "one more"])
    assert open_source(config(moved)).fingerprint() != before


def test_fingerprint_of_a_file_in_a_zip(tmp_path, monkeypatch):
    """Another content under the same name is other data: prepared records of the old one are not taken for it."""

    def fingerprint_of(folder, lines):
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(folder / "a.zip", "w") as packed:
            packed.writestr("in/a.txt", "".join(f"{line}\n" for line in lines))
        return open_source(config(str(folder / "a.zip"))).fingerprint()

    for large in (False, True):
        if large:
            monkeypatch.setattr(sources, "_HASHED_BYTES", 0)
        before = fingerprint_of(tmp_path / "here", LINES)
        assert before["files"]["train"][0].keys() == {"name", "size", "mtime_nsec" if large else "blake2b"}
        assert large or fingerprint_of(tmp_path / "there", LINES) == before
        assert fingerprint_of(tmp_path / "here", ["Other", *LINES[1:]]) != before
    old = before | {"files": {split: [{"name": f"{tmp_path}/here/a.zip!in/a.txt"}] for split in before["files"]}}
    assert not changes({"source": old}, {"source": before})
    assert changes({"source": old}, {"source": fingerprint_of(tmp_path / "here", LINES) | {"held_out": 0.5}})


# ---- shards ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(sources, "SHARD_BYTES", 500)


def pieces_of(path, **settings):
    """Documents of each shard, and of the whole."""
    corpus = open_source(config(path, **settings))
    shards = [list(corpus.documents("train", shard)) for shard in corpus.shards("train")]
    return shards, list(corpus.documents("train"))


def test_shards_put_together_are_the_whole(tmp_path, small_shards):
    text = write(tmp_path / "a.txt")
    blocks = write(tmp_path / "blocks.txt", "\n\n \n".join(f"{line}\nand more" for line in LINES).split("\n"))
    jsonl = write(tmp_path / "a.jsonl", [json.dumps({"text": line}) + "\n" * (i % 3) for i, line in enumerate(LINES)])
    zipped = tmp_path / "b.txt.gz"
    zipped.write_bytes(gzip.compress(text.read_bytes()))
    parquet = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": LINES, "n": range(200)}), parquet, row_group_size=7)
    for path, documents in (
        (text, "line"),
        (blocks, "blank_line"),
        (jsonl, "line"),
        (zipped, "line"),
        (parquet, "line"),
    ):
        shards, whole = pieces_of(path, documents=documents)
        assert len(shards) > 3 and all(shards), path
        assert [document for shard in shards for document in shard] == whole, path
        assert max(map(len, shards)) < 60, path


def test_small_files_share_a_shard(tmp_path, small_shards):
    for i in range(20):
        write(tmp_path / f"{i:02}.txt", LINES[10 * i : 10 * i + 10])
    shards, whole = pieces_of(tmp_path / "*.txt")
    assert [document for shard in shards for document in shard] == whole
    assert len(shards) < 10 and len({file for file, _, _ in shards[0]}) > 1


def test_a_corpus_has_no_more_shards_than_may_be_open(tmp_path, small_shards, monkeypatch):
    monkeypatch.setattr(sources, "MOST_SHARDS", 3)
    shards, whole = pieces_of(write(tmp_path / "a.txt"))
    assert len(shards) == 3 and sum(map(len, shards)) == len(whole)
