"""Stores made shard by shard: killed, damaged, cut short, on a full disk; by any number of processes."""

import dataclasses
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pydoc_data.topics import topics
from types import SimpleNamespace

import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.config import TokenizerConfig
from jaxpt.data import datasets, tokenizers
from jaxpt.data._tf import tf
from jaxpt.data.records import cache, shard, store
from jaxpt.data.records.store import Store, shard_name
from jaxpt.data.sources import base
from jaxpt.errors import UserError
from jaxpt.runtime import plugins
from jaxpt.runtime.progress import Progress
from tests import families
from tests.processes import forked

SHARDS, EACH = 6, 40


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A recipe of SHARDS × EACH records; each shard takes a while."""

    name: str = "numbers"
    pause: float = 0.0
    fails: int | None = None
    log: str = ""
    size: int = 10_000_000

    def open(self):
        return Counting(self)


class Counting:
    failure = None
    consumed = 0

    def __init__(self, recipe):
        self.recipe = recipe

    def shards(self):
        return [self.recipe] * SHARDS

    def dataset(self, number, part):
        if self.recipe.log:
            with open(self.recipe.log, "a") as file:
                file.write(f"{number}\n")

        def rows():
            for i in range(EACH):
                time.sleep(self.recipe.pause / EACH)
                if number == self.recipe.fails:
                    self.failure = UserError("records 7: broken")
                    raise self.failure
                self.consumed += self.recipe.size // EACH
                yield {"tokens": np.arange(number, number + i % 5), "label": number * EACH + i}

        types = {"tokens": tf.TensorSpec([None], tf.int32), "label": tf.TensorSpec([], tf.int64)}
        return tf.data.Dataset.from_generator(rows, output_signature=types)

    def counts(self):
        return {"documents": EACH, "files": {"0": 1}}

    def check(self, counts):
        assert counts["documents"] == counts["files"]["0"] * EACH


def make(directory, recipe=Numbers(), say=None, **settings):
    return cache.build(recipe, directory, {"seed": 0}, say or Progress(), **{"workers": 1} | settings)


def content(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "numbers"
    make(directory)
    return directory


@pytest.fixture
def copy(whole, tmp_path):
    for name, data in content(whole).items():
        (tmp_path / "numbers").mkdir(exist_ok=True)
        (tmp_path / "numbers" / name).write_bytes(data)
    return tmp_path / "numbers"


def test_shards_are_one_store(whole):
    found = Store.open(whole)
    assert len(found) == SHARDS * EACH and len(list(whole.iterdir())) == SHARDS + 1
    at = np.random.default_rng(0).permutation(len(found))
    rows = found.fetch(at)
    assert rows["label"].tolist() == at.tolist() and rows["label"].dtype == np.int64
    assert rows["tokens"].lengths.tolist() == [i % EACH % 5 for i in at]
    assert rows["tokens"].values.tolist() == [i // EACH + j for i in at for j in range(i % EACH % 5)]
    assert rows["tokens"].values.dtype == np.int32
    assert found.lengths("tokens").tolist() == [i % EACH % 5 for i in range(len(found))]
    assert found.manifest["counts"] == {"documents": SHARDS * EACH, "files": {"0": SHARDS}}
    assert found.manifest["identity"] == {"seed": 0}


def test_integers_take_the_bytes_that_they_need(whole):
    import safetensors.numpy

    arrays = safetensors.numpy.load_file(whole / shard_name(5, SHARDS))
    assert {name: a.dtype.name for name, a in arrays.items()} == {
        "tokens": "uint8", "tokens.offsets": "uint8", "label": "uint8"
    }  # fmt: skip
    assert arrays["label"].tolist() == list(range(5 * EACH, 6 * EACH))


@pytest.mark.parametrize("verify", [False, True])
def test_a_flipped_byte_is_named_and_its_shard_alone_made_again(copy, whole, verify, monkeypatch):
    path = copy / shard_name(3, SHARDS)
    data = bytearray(path.read_bytes())
    at = random.randrange(1, 60) if verify else random.randrange(1, len(data) + 1)  # the last 60 bytes are no header
    data[-at] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    if verify:  # a large store is opened by its sizes
        monkeypatch.setattr(store, "CHECKED_BYTES", 0)
        assert Store.open(copy) is not None
    said, log = [], copy.parent / "log"
    again = make(copy, Numbers(log=str(log)), Progress(said.append), verify=verify)
    assert [line for line in said if path.name in line and "damaged" in line]
    assert log.read_text().split() == ["3"]
    assert content(copy) == content(whole) and len(again) == SHARDS * EACH


def test_a_large_store_is_read_through_in_the_background(copy, monkeypatch):
    """A shard that is damaged ends the run that reads it."""
    path = copy / shard_name(3, SHARDS)
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)
    monkeypatch.setattr(store, "CHECKED_BYTES", 0)
    for part, is_found in ((0, False), (1, True)):  # of two processes the second has shard 3
        found = Store.open(copy)
        found.check_in_background(part, 2)
        for thread in threading.enumerate():
            if thread.name == "jaxpt-store":
                thread.join()
        if is_found:
            with pytest.raises(UserError, match=f"{path.name}: is damaged: .* --verify. makes it again"):
                found.fetch(np.arange(3))
        else:
            assert len(found.fetch(np.arange(3))["label"]) == 3


def test_what_a_killed_process_left_is_used_or_removed(copy, whole):
    (copy / "manifest.json").unlink()
    (copy / shard_name(0, SHARDS)).unlink()
    (copy / f".{shard_name(1, SHARDS)}.0123.partial").write_bytes(b"half")
    torn = copy / shard_name(2, SHARDS)
    torn.write_bytes(torn.read_bytes()[:-1])
    assert Store.open(copy) is None
    log = copy.parent / "log"
    make(copy, Numbers(log=str(log)))
    assert log.read_text().split() == ["0", "2"]
    assert content(copy) == content(whole)


@pytest.mark.slow
def test_a_mistake_keeps_the_shards_that_are_done(tmp_path, whole):
    with pytest.raises(UserError, match="records 7: broken"):
        make(tmp_path / "numbers", Numbers(fails=4))
    assert sorted(content(tmp_path / "numbers")) == [shard_name(i, SHARDS) for i in range(4)]
    with pytest.raises(UserError, match="records 7: broken"):
        make(tmp_path / "other", Numbers(fails=0))
    assert not (tmp_path / "other").exists()
    make(tmp_path / "numbers")
    assert content(tmp_path / "numbers") == content(whole)


def test_a_full_disk_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(shard.tempfile, "TemporaryFile", lambda **_: open("/dev/full", "w+b"))  # noqa: SIM115
    with pytest.raises(UserError, match=r"the disk is full \(No space left on device\)") as error:
        make(tmp_path / "numbers")
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)
    assert not (tmp_path / "numbers").exists()


def limited(path, size, answer):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        make(path)
    except UserError as error:
        answer.send(str(error))


@pytest.mark.slow
def test_a_file_size_limit_is_said_in_one_line(tmp_path):
    ours, theirs = multiprocessing.Pipe()
    process = forked().Process(target=limited, args=(tmp_path / "n", 100, theirs))
    process.start()
    theirs.close()
    said = ours.recv()
    process.join()
    assert "\n" not in said and "the disk is full (File too large)" in said
    assert not (tmp_path / "n").exists()


def fork_workers():
    """For a process that has run nothing of TensorFlow yet: its workers need not import all of it again."""
    context = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method: context


def build(directory, log, workers):
    """What a process of its own does."""
    fork_workers()
    make(directory, Numbers(pause=0.2, log=str(log)), workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_random_moments_the_bytes_are_the_same(tmp_path, whole, workers):
    directory, log, draw = tmp_path / "numbers", tmp_path / "log", random.Random(workers)
    for kills in range(3):
        process = forked().Process(target=build, args=(directory, log, workers))
        process.start()
        seen = len(log.read_text().split()) if log.exists() else 0
        while process.is_alive() and (not log.exists() or len(log.read_text().split()) < seen + 1 + workers):
            time.sleep(0.01)
        if process.is_alive() and kills < 2:
            time.sleep(draw.uniform(0, 0.16))
            process.kill()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL and Store.open(directory) is None
    assert kills and process.exitcode == 0
    assert content(directory) == content(whole)
    done = [int(number) for number in log.read_text().split()]
    assert set(done) == set(range(SHARDS)) and len(done) <= SHARDS + 2 * workers


@pytest.mark.slow
def test_processes_stop_at_the_first_mistake_and_make_the_same_bytes(tmp_path, whole, monkeypatch):
    said, context = [], forked()  # which starts in less time
    monkeypatch.setattr(cache.multiprocessing, "get_context", lambda method: context)
    with pytest.raises(UserError, match="records 7: broken"):
        make(tmp_path / "numbers", Numbers(fails=2, pause=0.2), workers=2)
    make(tmp_path / "numbers", Numbers(pause=0.3), Progress(said.append), workers=2)
    assert content(tmp_path / "numbers") == content(whole)
    assert any("left" in line and "█" in line for line in said)


@pytest.mark.slow
def test_processes_do_not_import_what_was_edited_since(tmp_path, monkeypatch):
    """They would make other records than this process, of the same identity."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_edited_prep.py").write_text("edits = 0\n")
    plugins.import_module("my_edited_prep", "preprocessor")
    make(tmp_path / "one", workers=1)
    (tmp_path / "my_edited_prep.py").write_text("edits = 1\n")
    with pytest.raises(UserError, match="my_edited_prep was edited since it was imported: restart Python"):
        cache.build(Numbers(), tmp_path / "several", {"code": {"my_edited_prep": "…"}}, Progress(), workers=2)
    assert not (tmp_path / "several").exists()
    del sys.modules["my_edited_prep"]


def test_a_script_without_a_main_guard_is_not_run_again_by_its_processes(tmp_path, whole):
    """They would import it, and wait in it for the work that they were started for."""
    script = tmp_path / "script.py"
    script.write_text(f"""
from pathlib import Path
print("once", flush=True)
from tests.data.records.test_cache import Numbers, make
make(Path({str(tmp_path / "numbers")!r}), Numbers(pause=0.3), workers=2)
""")
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    ended = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert ended.returncode == 0 and ended.stdout == "once\n", ended.stderr
    assert content(tmp_path / "numbers") == content(whole)


@pytest.mark.slow
def test_beam_makes_the_same_bytes(tmp_path):
    """Needs the extra [beam]."""
    pytest.importorskip("apache_beam")
    make(tmp_path / "here" / "numbers")
    make(tmp_path / "beam" / "numbers", beam=["--runner=DirectRunner"])
    assert content(tmp_path / "beam" / "numbers") == content(tmp_path / "here" / "numbers")


def test_a_wait_for_another_process_says_how_long_it_is(tmp_path, monkeypatch):
    lines, answers, now = [], iter([False, False, True]), iter([10.0, 10.0, 85.0])
    monkeypatch.setattr(cache.disk, "lock", lambda handle: next(answers))
    clock = SimpleNamespace(monotonic=lambda: next(now), sleep=lambda seconds: None)
    monkeypatch.setattr(cache, "time", clock)
    with cache._lock(tmp_path, Progress(lines.append)):
        pass
    assert [line.rpartition(": ")[2] for line in lines] == ["0:00", "1:15"]


@pytest.mark.slow
def test_other_processes_make_records_of_text(tmp_path, monkeypatch):
    """With a real tokenizer and real preprocessors: all that they need is sent to them."""
    monkeypatch.setattr(base, "SHARD_BYTES", 1 << 20)
    text = " ".join(" ".join(topics.values()).split())
    pieces = [f"{n} {text[at : at + 1000]}" for n in range(6) for at in range(0, len(text), 1000)]
    (tmp_path / "text.txt").write_text("\n".join(pieces))
    tokenizer = tokenizers.train(pieces[:200], TokenizerConfig(kind="sentencepiece"), 300, tmp_path / "tokenizer")
    source = {"path": str(tmp_path / "text.txt"), "cache_dir": str(tmp_path / "cache"), "length": 64}
    source["tokenizer"] = {"kind": "sentencepiece", "path": str(tmp_path / "tokenizer")}
    tree = families.tree("t5", model={"vocab_size": 300}, data=source)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    data = datasets.prepare(configs.build(tree), save=False, workers=2)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before > 2  # others that have imported TensorFlow
    row = next(data.train.batches())["encoder_input_tokens"][0]
    assert tokenizer.vocabulary.first_sentinel in row
