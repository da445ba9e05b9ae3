"""`jaxpt cache`: the records of a split, made shard by shard in parallel processes.

A shard is a function of (identity, its number, its run of documents) and nothing else: any number of processes makes
the same bytes, and a build that was killed resumes where it stopped. Each shard appears whole, under its own checksum;
the manifest comes last, and only a store that has one is ever read. One process at a time builds a store; others wait
for it, wherever the disk has locks.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxpt.data._tf import tf
from jaxpt.data.calls import Call
from jaxpt.data.records.mirror import fetch
from jaxpt.data.records.shard import Batches, is_intact, write_shard
from jaxpt.data.records.store import Store, damaged, made, publish, read_manifest, shard_name
from jaxpt.data.seqio_tasks import Documents, Offline, code, resolve
from jaxpt.data.sources.base import Pieces
from jaxpt.errors import UserError
from jaxpt.runtime import background, disk, packages, plugins
from jaxpt.runtime.process import without_script
from jaxpt.runtime.progress import Progress, clock, work_line

Job = tuple[int, Pieces, Path]
"""Number, documents and file of a shard."""
Turn = Callable[[int], Sequence[int]]
"""From how many shards there are to their numbers, in the order in which they are made."""

_POLL = 0.3  # seconds
_SMALL = 1 << 20  # bytes of text in a shard, or of unknown size
_NICENESS = 10  # of processes beside a run, which is to have the cores before them
_STARTUP = 5.0  # seconds that processes take to start: less work than that is done without them


def build(
    spec: Offline,
    directory: Path,
    identity: dict[str, Any],
    say: Progress,
    workers: int | None = None,
    verify: bool = False,
    mirror: str | None = None,
    beam: Sequence[str] | None = None,
    turn: Turn | None = None,
) -> Store:
    """Opens a store; what is missing or damaged is made.

    Args:
      spec: how its shards are made.
      directory: where it belongs.
      identity: what determines it, kept in the manifest for people to read.
      say: shows damage, progress and remaining time.
      workers: processes; by default one for each core. The records do not depend on it.
      verify: compare the checksums of all files, however large (small stores are always checked).
      mirror: where a copy of the store may lie, in a directory of the same name.
      beam: options of an Apache Beam pipeline that makes the shards, instead of processes here.
      turn: the order in which shards are made, for whoever reads them meanwhile (`growing.py`).

    Returns:
      The store.

    Raises:
      UserError: the documents are not as they should be, give no record, or the disk is full.
    """
    store = _whole(directory, verify)
    if store is not None:
        return store
    with made(directory), _lock(directory, say):
        directory.mkdir(exist_ok=True)  # whoever had the lock may have failed and removed it
        store = _whole(directory, verify)
        if store is not None:
            return store
        _sweep(directory, say)
        if mirror is not None and fetch(f"{mirror.rstrip('/')}/{directory.name}", directory, say):
            store = _whole(directory, verify)
        return store or _build(spec, directory, identity, say, workers, beam, turn)


def _whole(directory: Path, verify: bool) -> Store | None:
    return Store.open(directory, True if verify else None)


def _build(
    spec: Offline,
    directory: Path,
    identity: dict[str, Any],
    say: Progress,
    workers: int | None,
    beam: Sequence[str] | None,
    turn: Turn | None,
) -> Store:
    work, begun = spec.open(), time.monotonic()
    say.update(f"preparing {spec.name}: cutting the corpus into shards")
    shards = work.shards()
    names = [shard_name(n, len(shards)) for n in range(len(shards))]
    missing = [n for n, name in enumerate(names) if not is_intact(directory / name)]
    for n in missing:  # a reader takes a shard that has its name for one that is whole
        (directory / names[n]).unlink(missing_ok=True)
    if turn is not None:
        places = {n: place for place, n in enumerate(turn(len(shards)))}
        missing.sort(key=places.__getitem__)
    spared = 0 if turn is None else 1  # a core for whoever reads
    workers = min(workers or max(1, _cores() - spared), len(missing))
    size = sum(shards[n].size for n in missing)
    if missing:
        existing = f", {len(names) - len(missing)} shards are there" if len(missing) < len(names) else ""
        about = f"about {size / 1e6:.0f} MB of text, " if size else ""
        say.update(f"preparing {spec.name}: {about}{len(missing)} shards, {workers} processes{existing}")
    jobs = [(n, shards[n], directory / names[n]) for n in missing]
    if beam is not None and jobs:
        plugins.check_unedited(identity)
        _in_beam(spec, jobs, beam)
        jobs = []
    elif workers == 1 or turn is not None or all(shard.size < _SMALL for _, shard, _ in jobs):
        seconds = float("inf") if workers == 1 and turn is None else _STARTUP
        jobs = _one_by_one(spec.name, work, jobs, say, seconds)
    if jobs:
        plugins.check_unedited(identity)
        _in_parallel(spec, jobs, say, min(workers, len(jobs)), 0 if turn is None else _NICENESS)
    store = publish(directory, len(shards), identity, work.check)
    if skipped := work.check(store.manifest["counts"]):
        say.note(skipped)
    if missing:
        say.note(f"prepared {spec.name}: {len(store):,} records in {time.monotonic() - begun:.1f} s")
    return store


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _sweep(directory: Path, say: Progress) -> None:
    """Removes what a killed process left, and names and removes damaged shards."""
    manifest = read_manifest(directory)
    if manifest is not None:
        for name in damaged(directory, manifest, check=True):
            state = "is damaged (its checksum differs)" if (directory / name).exists() else "is gone"
            say.note(f"{directory / name} {state}; it is made again")
            (directory / name).unlink(missing_ok=True)
    elif (directory / "manifest.json").exists():
        say.note(f"{directory / 'manifest.json'} is damaged; it is made again, and shards that are damaged")
    for path in [*directory.glob(".*.partial"), *directory.glob("manifest.json*")]:
        path.unlink(missing_ok=True)


@contextmanager
def _lock(directory: Path, say: Progress) -> Iterator[None]:
    """Held by one process at a time; on a disk without locks two write the same bytes, each under names of its own."""
    handle, start = os.open(directory, os.O_RDONLY), time.monotonic()
    try:
        while not disk.lock(handle):
            say.update(f"waiting for another process that prepares {directory}: {clock(time.monotonic() - start)}")
            time.sleep(_POLL)
        yield
    finally:
        os.close(handle)


def make_shard(
    work: Documents, number: int, shard: Pieces, path: Path, report: Callable[[int], None] = lambda records: None
) -> int:
    """Writes one shard.

    Args:
      work: open source and vocabulary.
      number: which shard.
      shard: its run of documents.
      path: its file.
      report: called with the number of records so far.

    Returns:
      The number of records.

    Raises:
      UserError: the documents are not as they should be, or the disk is full.
    """

    def counts() -> dict[str, Any]:
        if work.failure is not None:  # the data set ended there
            raise work.failure
        return work.counts()

    try:
        return write_shard(work.dataset(number, shard), path, counts, report)
    except tf.errors.OpError:
        if work.failure is not None:
            raise work.failure from None
        raise


# ---- in this process ------------------------------------------------------------------------------------------------


def _one_by_one(name: str, work: Documents, jobs: list[Job], say: Progress, seconds: float) -> list[Job]:
    """Does jobs for some seconds; returns the jobs that are left."""
    begun, total, records = time.monotonic(), sum(shard.size for _, shard, _ in jobs), 0

    def report(shard_records: int) -> None:
        say.update(work_line(name, records + shard_records, work.consumed, total, time.monotonic() - begun))

    for done, (number, shard, path) in enumerate(jobs):
        if time.monotonic() - begun > seconds:
            return jobs[done:]
        records += make_shard(work, number, shard, path, report)
    return []


# ---- in processes of their own --------------------------------------------------------------------------------------


def _in_parallel(spec: Offline, jobs: list[Job], say: Progress, workers: int, niceness: int) -> None:
    context = multiprocessing.get_context("spawn")
    # For each job the bytes read and the records made; the last cell asks the workers to stop.
    cells = context.Array("q", 2 * len(jobs) + 1, lock=False)
    begun, total = time.monotonic(), sum(shard.size for _, shard, _ in jobs)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (spec, cells, niceness))
    try:
        with without_script():
            futures: set[Future[None]] = {pool.submit(_work_on, slot, *job) for slot, job in enumerate(jobs)}
        while futures:
            done, futures = wait(futures, _POLL, FIRST_EXCEPTION)
            for future in done:
                future.result()
            read, records = sum(cells[:-1:2]), sum(cells[1:-1:2])
            say.update(work_line(spec.name, records, read, total, time.monotonic() - begun))
    except BrokenProcessPool:
        raise UserError(
            "a process that prepared data was killed, perhaps for want of memory; the shards that are done are kept: "
            f"start again with fewer than {workers} --workers"
        ) from None
    except background.Stopped:  # the pool would wait for a process that reads, or that starts
        for process in list(pool._processes.values()):
            process.kill()  # at any time: a shard gets its name when it is whole
        raise
    finally:
        cells[len(cells) - 1] = 1
        pool.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """Another process failed, or the user stopped the work."""


_worker: tuple[Documents, Any]


def _start_worker(spec: Offline, cells: Any, niceness: int) -> None:
    global _worker
    if niceness and hasattr(os, "nice"):
        os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the first process too, which says it in order
    threading.Thread(target=_follow_parent, daemon=True).start()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    _worker = spec.open(), cells


def _follow_parent() -> None:
    """Ends with the parent process, however that ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work_on(slot: int, number: int, shard: Pieces, path: Path) -> None:
    work, cells = _worker
    before = work.consumed

    def report(records: int) -> None:
        cells[2 * slot], cells[2 * slot + 1] = work.consumed - before, records
        if cells[len(cells) - 1]:
            raise _Stopped

    try:
        make_shard(work, number, shard, path, report)
    except tf.errors.OpError as error:  # these do not travel between processes
        raise RuntimeError(str(error)) from None


# ---- by Apache Beam --------------------------------------------------------------------------------------------------


def _in_beam(spec: Offline, jobs: Sequence[Job], options: Sequence[str]) -> None:
    """Runs a pipeline whose elements are the shards to its end.

    All workers and this machine share the directory of the cache (a mounted file system).
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ModuleNotFoundError:
        raise UserError(f"--beam needs Apache Beam: {packages.install_command('beam')}") from None
    work = [(number, shard, os.path.abspath(path)) for number, shard, path in jobs]
    with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
        _ = pipeline | beam.Create(work) | beam.Reshuffle() | beam.Map(functools.partial(_make_in_beam, spec))
    lost = [path for _, _, path in work if not os.path.exists(path)]
    if lost:
        raise UserError(f"--beam: {lost[0]} is not there: workers and this machine must share data.cache_dir")


_opened: dict[str, Documents] = {}


def _make_in_beam(spec: Offline, job: tuple[int, Pieces, str]) -> None:
    """One shard, on a worker, which opens sources and vocabulary once."""
    number, shard, path = job
    if (key := repr(spec)) not in _opened:
        _opened.clear()
        _opened[key] = spec.open()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    make_shard(_opened[key], number, shard, Path(path))


# ---- records of all records -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The work of `Transforms.corpus`, as `build` does it: one shard, in this process.

    Its records are made of all records of a split together, such as counts of a corpus.
    """

    call: Call
    store: Store
    """All records of the split."""
    vocabulary_size: int
    split: str

    failure = None
    consumed = 0

    @property
    def name(self) -> str:
        """What is made, for messages."""
        return f"{self.split}: counts of the corpus"

    def identity(self) -> dict[str, Any]:
        """What determines the records, those of the store aside."""
        return {"corpus": {self.call.name: self.call.kwargs}, "code": code([self.call]), "ids": self.vocabulary_size}

    def open(self) -> Corpus:
        """Itself: nothing has to be opened."""
        return self

    def shards(self) -> list[Pieces]:
        """One, of unknown size."""
        return [Pieces()]

    def dataset(self, number: int, shard: Pieces) -> Batches:
        """Its records."""
        return resolve(self.call.name)(self.store, self.vocabulary_size, **self.call.kwargs)

    def counts(self) -> dict[str, Any]:
        """Of the documents that the records are made of."""
        return {name: count for name, count in self.store.manifest["counts"].items() if isinstance(count, int)}

    def check(self, counts: dict[str, Any]) -> str:
        """Nothing: the store's records were checked."""
        return ""
