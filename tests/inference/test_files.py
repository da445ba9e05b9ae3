"""Files of prompts that are not as they must be, and files of results after a kill at any point."""

import doctest
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from jaxpt.errors import UserError
from jaxpt.inference import files
from jaxpt.inference.files import ResumableJsonl, read_prompts
from jaxpt.runtime.progress import Progress

ROOT = Path(__file__).parents[2]


def test_examples_in_docstrings():
    assert doctest.testmod(files).failed == 0


# ---- prompts --------------------------------------------------------------------------------------------------------


def test_rows_keep_all_their_fields(tmp_path):
    rows = [{"id": 7, "prompt": "größer\u2028 中", "tags": [1.5, None, {"a": True}]}, {"prompt": "", "x": "\ud800"}]
    text = "\ufeff" + "".join(json.dumps(row) + "\r\n" for row in rows) + "\n \n"
    (tmp_path / "p.jsonl").write_bytes(text.encode())
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert read_prompts(tmp_path / "p.jsonl") == read_prompts(tmp_path / "p.jsonl.gz") == rows


def test_numbers_that_json_has_not(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "x": [NaN, -Infinity, 0.5]}\n')
    assert files.read_prompts(tmp_path / "p.jsonl") == [{"prompt": "a", "x": [None, "-Infinity", 0.5]}]


def test_a_line_of_a_text_file_is_a_prompt(tmp_path):
    (tmp_path / "p.txt").write_text(" one \x0b\u2028 two\n\nthree", encoding="utf-8")
    assert read_prompts(tmp_path / "p.txt", "question") == [{"question": " one \x0b\u2028 two"}, {"question": "three"}]


def test_rows_of_a_table_are_prompts(tmp_path):
    (tmp_path / "p.tsv").write_text("id\tprompt\n7\tone\n8\ttwo\n")
    assert read_prompts(tmp_path / "p.tsv") == [{"id": "7", "prompt": "one"}, {"id": "8", "prompt": "two"}]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.jsonl", b"", "p.jsonl: is empty; wants a JSON object a line"),
        ("p.txt", b"\n \n", "p.txt: is empty; wants one prompt a line"),
        ("p.jsonl", b'{"prompt": "a"}\n{"text": "b", "n": 1}\n', "line 2: no column 'prompt'; it has text, n"),
        ("p.jsonl", b"{}", "line 1: no column 'prompt'; it has none"),
        ("p.jsonl", b'{"prompt": "a"}\n\n{"prompt": \n', "line 3: not JSON (Expecting value"),
        ("p.jsonl", b'["a"]', "line 1: wants a JSON object, got ['a']"),
        ("p.jsonl", b'{"prompt": 3}', "line 1: column 'prompt' wants text, got 3"),
        ("p.jsonl", b'{"prompt": "\\ud800"}', "line 1: column 'prompt' holds half a surrogate pair; wants whole"),
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": "\xff"}', "line 2: not UTF-8 (byte 0xff); convert the file"),
        ("p.txt", b"a\n\xe4\n", "line 2: not UTF-8"),
        ("p.jsonl.gz", b'{"prompt": "a"}', "truncated or damaged gzip file"),
        ("p.jsonl.gz", gzip.compress(b'{"prompt": "a"}', mtime=0)[:-3], "truncated or damaged gzip file"),
        ("p.xyz", b"a\n", "p.xyz: the suffix says nothing of the format; wants .tsv, .csv, .jsonl"),
        (None, None, "gone.jsonl: no such file"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_line(name, content, words, tmp_path):
    path = tmp_path / (name or "gone.jsonl")
    if name:
        path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read_prompts(path)
    assert str(error.value).startswith(str(path)) and words in str(error.value) and "\n" not in str(error.value)


def test_a_directory_is_no_file_of_prompts(tmp_path):
    (tmp_path / "p.txt").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(tmp_path / "p.txt")


# ---- results --------------------------------------------------------------------------------------------------------

PROMPTS = [{"id": i, "prompt": f"prompt {i} größer 中"} for i in range(12)]
SETTINGS = {"seed": 0, "temperature": 0.7, "stop": ("\n", "中")}


def opened(folder, prompts=PROMPTS, settings=SETTINGS, **options):
    return ResumableJsonl(folder / "G.jsonl", prompts, settings, ["completions"], **options)


def values(i):
    return {"completions": [f"result {i} 😀\n"] * (i % 3)}


def complete(folder, order=None):
    with opened(folder) as results:
        for i in order or list(results.remaining()):
            results.write(i, values(i))
    return (folder / "G.jsonl").read_bytes()


@pytest.fixture
def whole(tmp_path):
    """The bytes of an uninterrupted run."""
    (tmp_path / "whole").mkdir()
    content = complete(tmp_path / "whole")
    assert os.listdir(tmp_path / "whole") == ["G.jsonl"]
    assert list(map(json.loads, content.decode().splitlines())) == [{**p, **values(i)} for i, p in enumerate(PROMPTS)]
    return content


def test_rows_are_in_the_order_of_the_prompts(whole, tmp_path):
    order = random.Random(0).sample(range(len(PROMPTS)), len(PROMPTS))
    lines = []
    with opened(tmp_path, say=Progress(lines.append)) as results:
        for n, i in enumerate(order):
            results.write(i, values(i))
            written = (tmp_path / "G.jsonl").read_bytes()
            assert whole.startswith(written) and written.count(b"\n") == results.done
            assert results.done == min(set(range(12)) - set(order[: n + 1]), default=12)
        assert (tmp_path / "G.jsonl.state").exists()
    assert (tmp_path / "G.jsonl").read_bytes() == whole and not (tmp_path / "G.jsonl.state").exists()
    assert "0 of 12 prompts" in lines[0] and "12 of 12 prompts" in lines[-1]


def test_a_file_that_ends_at_any_byte_is_resumed(whole, tmp_path):
    """Rows that are there stay, a torn one is written again; the end is that of an uninterrupted run."""
    prompts = PROMPTS[:3]
    whole = b"".join(whole.splitlines(keepends=True)[:3])
    opened(tmp_path, prompts).close()
    state = (tmp_path / "G.jsonl.state").read_bytes()
    state += b"".join(b"%08x\n" % zlib.crc32(line) for line in whole.splitlines(keepends=True))
    for size in range(len(whole) + 1):
        (tmp_path / "G.jsonl.state").write_bytes(state)
        (tmp_path / "G.jsonl").write_bytes(whole[:size])
        with opened(tmp_path, prompts) as results:
            assert results.done == whole[:size].count(b"\n") and whole.startswith((tmp_path / "G.jsonl").read_bytes())
            for i in reversed(results.remaining()):
                results.write(i, values(i))
        assert (tmp_path / "G.jsonl").read_bytes() == whole and os.listdir(tmp_path).count("G.jsonl.state") == 0


WRITER = """
import sys, time
from tests.inference.test_files import PROMPTS, opened, values
from pathlib import Path
with opened(Path(sys.argv[1])) as results:
    print("open", flush=True)
    left = list(results.remaining())
    for n in range(0, len(left), 3):
        for i in reversed(left[n : n + 3]):  # three at a time, out of order
            results.write(i, values(i))
            time.sleep(0.002)
    print(results.close())
"""


def test_killed_processes_lose_no_row(whole, tmp_path):
    draw = random.Random(0)
    killed = 0
    for _ in range(60):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
        if killed < 6:
            process.stdout.readline()
            time.sleep(draw.random() * 0.008)
            process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        assert whole.startswith((tmp_path / "G.jsonl").read_bytes())
        if not (tmp_path / "G.jsonl.state").exists():  # complete: a kill may come after that
            break
    assert killed >= 2
    assert (tmp_path / "G.jsonl").read_bytes() == whole and os.listdir(tmp_path).count("G.jsonl.state") == 0


def begun(folder, rows=3):
    results = opened(folder)
    for i in range(rows):
        results.write(i, values(i))
    return results.close()


def test_what_is_left_of_a_stopped_run_says_how_to_resume(tmp_path):
    path = tmp_path / "G.jsonl"
    assert begun(tmp_path) == f"{path}: 3 of 12 rows; re-run the same command to resume ({path}.state is for that)"
    complete(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["G.jsonl"]


@pytest.mark.parametrize(
    ("prompts", "settings", "words"),
    [
        (
            PROMPTS,
            {**SETTINGS, "temperature": 0.8},
            "was begun with temperature 0.7, now it is 0.8; resume with the same",
        ),
        (PROMPTS, {"seed": 0, "stop": ["\n", "中"]}, "was begun with temperature 0.7, now it is null"),
        (PROMPTS, {**SETTINGS, "beams": 4}, "was begun with beams null, now it is 4"),
        (PROMPTS[:-1], SETTINGS, r"was begun with other prompts \(12 rows then, 11 now\)"),
        ([{**PROMPTS[0], "prompt": "x"}, *PROMPTS[1:]], SETTINGS, r"with other prompts \(12 rows then, 12 now\)"),
    ],
)
def test_results_of_other_settings_or_prompts_are_refused(prompts, settings, words, tmp_path):
    begun(tmp_path)
    before = (tmp_path / "G.jsonl").read_bytes()
    with pytest.raises(UserError, match=words) as error:
        opened(tmp_path, prompts, settings)
    assert "\n" not in str(error.value)
    assert (tmp_path / "G.jsonl").read_bytes() == before and complete(tmp_path).startswith(before)


def test_a_row_that_was_altered_is_named_one_without_checksum_is_made_again(whole, tmp_path):
    begun(tmp_path)
    path, state = tmp_path / "G.jsonl", tmp_path / "G.jsonl.state"
    good, checksums = path.read_bytes(), state.read_bytes()
    digit = next(n for n in range(len(good) - 1, 0, -1) if good[n : n + 1].isdigit())
    path.write_bytes(good[:digit] + bytes([good[digit] ^ 1]) + good[digit + 1 :])
    with pytest.raises(UserError, match="line 3: is not the row of this prompt"):
        opened(tmp_path)
    path.write_bytes(good)
    state.write_bytes(checksums[:-4])  # the disk was full
    with opened(tmp_path) as results:
        assert results.done == 2
    assert complete(tmp_path) == whole


def test_files_that_are_not_ours_are_refused(whole, tmp_path):
    path = tmp_path / "G.jsonl"
    path.write_bytes(whole)
    with pytest.raises(
        UserError, match=r"G\.jsonl: already exists, and no G\.jsonl\.state says that it can be resumed"
    ):
        opened(tmp_path)
    path.unlink()
    begun(tmp_path)
    lines = whole.splitlines(keepends=True)
    for content, words in (
        (b"".join([lines[1], lines[0]]), "line 1: is not the row of this prompt"),
        (lines[0] + b"\0\0\n", "line 2: is not the row of this prompt; delete it and the lines after it"),
        (whole + lines[-1], "line 13: is beyond the last prompt"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=words):
            opened(tmp_path)
        assert path.read_bytes() == content
    (tmp_path / "G.jsonl.state").write_text("{")
    with pytest.raises(UserError, match=r"G\.jsonl\.state: is damaged; delete it and G\.jsonl"):
        opened(tmp_path)


def test_an_empty_file_without_state_is_a_new_one(whole, tmp_path):
    """As a kill right after its creation leaves it."""
    (tmp_path / "G.jsonl").touch()
    assert complete(tmp_path) == whole


def test_one_process_writes(tmp_path):
    with opened(tmp_path), pytest.raises(UserError, match="another process writes it"):
        opened(tmp_path)


def test_fields_of_the_input_are_not_overwritten(tmp_path):
    with pytest.raises(UserError, match="row 2 of the input has a field 'completions', where results go; rename it"):
        opened(tmp_path, [PROMPTS[0], {"prompt": "", "completions": []}])
    assert not os.listdir(tmp_path)


def test_rows_are_written_once(tmp_path):
    with opened(tmp_path) as results:
        results.write(0, values(0))
        results.write(2, values(2))
        for i, wrong in ((0, values(0)), (2, values(2)), (12, values(0)), (1, {}), (1, {"other": 1})):
            with pytest.raises(ValueError, match="wants each row once"):
                results.write(i, wrong)


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"G\.jsonl: cannot be written \(.*\); choose another --out"):
        opened(tmp_path / "file")


def test_a_full_disk_is_named():
    with pytest.raises(UserError, match=r"/dev/full: No space left on device; make room, then re-run"):
        results = ResumableJsonl.__new__(ResumableJsonl)
        results.path, results._file = Path("/dev/full"), open("/dev/full", "ab", buffering=0)  # noqa: SIM115
        results._append(b"x")
