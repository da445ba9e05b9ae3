"""Stores that are read while they are made: the same records, whatever is there; failures end the readers."""

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from jaxpt.data._tf import tf
from jaxpt.data.records import cache
from jaxpt.data.records.growing import Growing, grow
from jaxpt.data.records.store import Store, shard_name
from jaxpt.data.stream.order import ByShards, groups, parts
from jaxpt.errors import UserError
from jaxpt.runtime import background
from jaxpt.runtime.progress import Progress
from tests.waiting import LIMIT

SHARDS, EACH = 6, 5
KEY = 3
READ = [number for group in groups(SHARDS, KEY) for number in group]


@dataclasses.dataclass
class Numbers:
    """Shards of EACH + n % 2 records; all but the first that is read wait for `gate`."""

    name: str = "numbers"
    gate: threading.Event = dataclasses.field(default_factory=threading.Event)
    fails: int | None = None
    is_endless: bool = False
    made: list = dataclasses.field(default_factory=list)
    failure = None
    consumed = 0

    def open(self):
        return self

    def shards(self):
        return [dataclasses.make_dataclass("Shard", [("size", int, 10)])()] * SHARDS

    def dataset(self, number, shard):
        if number != READ[0]:
            assert self.gate.wait(LIMIT)
            if self.is_endless:
                return tf.data.Dataset.range(1 << 60).map(lambda i: {"tokens": tf.fill([1], i), "label": i})
        if number == self.fails:
            self.failure = UserError("numbers 7: broken")
            raise self.failure
        self.made.append(number)
        i = tf.data.Dataset.range(EACH + number % 2)
        return i.map(lambda i: {"tokens": tf.fill([i % 3 + 1], 100 * number + i), "label": i})

    def counts(self):
        return {"documents": EACH}

    def check(self, counts):
        assert counts["documents"] == EACH * SHARDS


@pytest.fixture(autouse=True)
def no_processes(monkeypatch):
    monkeypatch.setattr(cache, "_STARTUP", 1e9)


def start(directory, work):
    return grow(work, directory, {}, Progress(), lambda shards: READ)


def read(store, count):
    _, address = ByShards(store, KEY).at(np.arange(count))
    records = store.fetch_at(*parts(address))
    return records["tokens"].values.tolist(), records["tokens"].lengths.tolist(), records["label"].tolist()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    work = Numbers()
    work.gate.set()
    return cache.build(work, tmp_path_factory.mktemp("whole") / "numbers", {}, Progress(), workers=1)


def test_the_first_shard_is_read_while_the_others_wait(tmp_path, whole):
    work = Numbers()
    store, told = start(tmp_path / "numbers", work), []
    store.when_whole(told.append)
    try:
        count = int(store.records_of(READ[:1])[0])
        assert isinstance(store, Growing) and not store.is_whole and store.ready() == READ[:1]
        assert store.spec == whole.spec and store.shards == SHARDS
        assert read(store, count) == read(whole, count) and work.made == READ[:1] and not told
        assert not store.wait(stop=lambda: True) and whole.wait()
    finally:
        work.gate.set()
    assert store.wait() and read(store, 2 * len(whole)) == read(whole, 2 * len(whole))
    assert work.made == READ and store.checksum == whole.checksum and len(store) == len(whole)
    np.testing.assert_array_equal(store.lengths("tokens"), whole.lengths("tokens"))
    assert [each.checksum for each in told] == [whole.checksum]
    store.when_whole(told.append)
    assert len(told) == 2 and isinstance(start(tmp_path / "numbers", work), Store)


def test_a_build_that_was_killed_goes_on_and_a_damaged_shard_is_made_again(tmp_path, whole):
    directory, work = tmp_path / "numbers", Numbers()
    directory.mkdir()
    for number in READ[:3]:
        shutil.copy(whole.directory / shard_name(number, SHARDS), directory)
    damaged = directory / shard_name(READ[1], SHARDS)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    store = start(directory, work)
    try:
        assert store.ready() == sorted([READ[0], READ[2]])
    finally:
        work.gate.set()
    assert store.checksum == whole.checksum and work.made == [READ[1], *READ[3:]]


@pytest.mark.parametrize("place", [0, 3])
def test_a_failure_ends_the_readers_in_one_line(tmp_path, place):
    work = Numbers(fails=READ[place])
    work.gate.set()
    with pytest.raises(UserError, match=r"^numbers 7: broken$"):
        store = start(tmp_path / "numbers", work)
        read(store, SHARDS * EACH)
    if place:  # who needs no shard that is missing is told, too
        with pytest.raises(UserError, match=r"^numbers 7: broken$"):
            store.fetch_at(np.array([READ[0]]), np.array([0]))
        assert [shard_name(n, SHARDS) for n in sorted(READ[:place])] == sorted(
            p.name for p in store.directory.iterdir()
        )


def test_a_run_that_fails_ends_its_preparer(tmp_path, whole, monkeypatch):
    """It leaves the shards that are whole, and nothing else; the next run makes those that are missing."""
    monkeypatch.setattr(background, "_PATIENCE", LIMIT)
    work = Numbers(is_endless=True)
    work.gate.set()
    with pytest.raises(UserError, match="wrong"), background.scope():
        store = start(tmp_path / "numbers", work)
        assert "jaxpt-preparer" in [thread.name for thread in threading.enumerate()]
        raise UserError("something else is wrong")
    assert "jaxpt-preparer" not in [thread.name for thread in threading.enumerate()]
    assert [path.name for path in store.directory.iterdir()] == [shard_name(READ[0], SHARDS)]
    with pytest.raises(background.Stopped):
        store.wait()
    again = Numbers(gate=work.gate)
    assert start(tmp_path / "numbers", again).checksum == whole.checksum and again.made == READ[1:]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["begun", "starting", "run"])
def test_a_program_ends_while_records_are_made(tmp_path, when):
    """Where this fails the program waits for a process that waits for work, and the time is over."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "tests.data.records.endless", when]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "shards made: [0]\n"), result.stderr
