"""A store whose shards are made while the first of them are read.

Invariants: a shard that has its name is whole, and never changes; what is read of one does not depend on the others;
whatever needs all shards (the number of records, the checksum, counts of tokens) waits for them. A preparer that fails
ends every reader with its error. It ends with the run, however that ends, and the next run goes on where it stopped.
"""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt.data.records import cache
from jaxpt.data.records.cache import Turn
from jaxpt.data.records.shard import Ragged, read_meta
from jaxpt.data.records.store import Store, shard_name
from jaxpt.data.seqio_tasks import Offline
from jaxpt.runtime import background, safetensors
from jaxpt.runtime.progress import Progress

_POLL = 0.05  # seconds

atexit.register(background.program.end)  # after multiprocessing's own, so it is called before that one


class Growing(Store):
    """A store in the making. Its methods are those of a store; what needs shards that are not there yet waits."""

    def __init__(self, directory: Path, build: Callable[[Turn], Store], turn: Turn, like: Store | None = None) -> None:
        """Starts to make the store in a thread.

        `build` makes it, with the order of its shards; `turn` gives that order. A store `like` it has the same
        features.
        """
        self.directory, self._turn, self._like, self._damaged = directory, turn, like, None
        self._order: Sequence[int] | None = None
        self._store: Store | None = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Store], None]] = []
        self._mapped = functools.cache(lambda number: safetensors.mapped(self._path(number)))
        self._meta = functools.cache(lambda number: read_meta(self._path(number)))
        self._scope = background.current()
        self._scope.start(functools.partial(self._run, build), "jaxpt-preparer")

    def _run(self, build: Callable[[Turn], Store]) -> None:
        try:
            store = build(self._begin)
            with self._lock:
                for callback in self._callbacks:
                    callback(store)
                self._store = store
        except BaseException as error:  # raised again in the threads that read
            self._failure = error

    def _begin(self, shards: int) -> Sequence[int]:
        self._order = self._turn(shards)
        return self._order

    def when_whole(self, callback: Callable[[Store], None]) -> None:
        """Calls `callback` with the whole store: in the preparer's thread, or at once if it is whole."""
        with self._lock:
            if self._store is None:
                self._callbacks.append(callback)
            else:
                callback(self._store)

    @property
    def is_whole(self) -> bool:
        """Whether all shards are made."""
        return self._store is not None

    def wait(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """As `Store.wait`.

        Raises:
          UserError: the preparer failed.
        """
        self._wait(lambda: self.is_whole or stop())
        return self.is_whole

    def wait_for_first(self) -> None:
        """Returns when the features of its records are known."""
        self._features()

    def ready(self) -> list[int]:
        """Numbers of the shards that are made; [] where it is not known yet how many there are."""
        count = self._store.shards if self._store is not None else len(self._order or ())
        return [n for n in range(count) if self._is_made(n)]

    # ---- what some shards are enough for

    @property
    def shards(self) -> int:
        """How many shards there are in all."""
        self._wait(lambda: self._order is not None or self.is_whole)
        return self._whole().shards if self._order is None else len(self._order)

    def records_of(self, shards: Sequence[int]) -> np.ndarray:
        """How many records some shards have; waits for them."""
        return np.array([self.meta(n)["records"] for n in shards], np.int64)

    def meta(self, number: int) -> dict[str, Any]:
        """What a shard says of itself, see `read_meta`; waits for it."""
        self._wait(lambda: self._is_made(number))
        return self._meta(number)

    def fetch_at(self, shards: np.ndarray, places: np.ndarray) -> dict[str, Ragged | np.ndarray]:
        """As `Store.fetch_at`; waits for the shards.

        Raises:
          UserError: the preparer failed, be it at another shard.
        """
        self._check()
        return super().fetch_at(shards, places)

    def check_in_background(self, part: int = 0, parts: int = 1) -> None:
        """Nothing: the checksums of the shards that were there were compared, the others have just been written."""

    def _features(self) -> dict[str, Any]:
        if self._like is not None:
            return self._like._features()
        self._wait(lambda: self._order is not None or self.is_whole)
        return self.meta(0 if self.is_whole else self._order[0])["features"]

    def _shard(self, number: int) -> Mapping[str, np.ndarray]:
        self._wait(lambda: self._is_made(number))
        return self._mapped(number)

    # ---- what needs all of them

    @property
    def manifest(self) -> dict[str, Any]:
        """That of the whole store."""
        return self._whole().manifest

    @property
    def _shards(self) -> dict[int, Any]:
        return self._whole()._shards

    @property
    def _starts(self) -> np.ndarray:
        return self._whole()._starts

    def _whole(self) -> Store:
        self._wait(lambda: self.is_whole)
        return self._store

    def _path(self, number: int) -> Path:
        return self.directory / shard_name(number, self.shards)

    def _is_made(self, number: int) -> bool:
        return self.is_whole or (self._order is not None and self._path(number).exists())

    def _wait(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._check()
            self._scope.check()
            time.sleep(_POLL)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def grow(
    spec: Offline,
    directory: Path,
    identity: dict[str, Any],
    say: Progress,
    turn: Turn,
    mirror: str | None = None,
    like: Store | None = None,
) -> Store:
    """Opens a store, or starts to make it and returns when the first shard is there.

    Args:
      spec, directory, identity, say, mirror: as `cache.build` takes them.
      turn: the order in which the shards are made.
      like: a store of the same features, if there is one: then it returns at once.

    Returns:
      The store.

    Raises:
      UserError: as `cache.build`.
    """
    store = Store.open(directory)
    if store is not None:
        return store

    scope = background.current()

    def update(line: str) -> None:
        scope.check()
        say.update(line)

    def build(begin: Turn) -> Store:
        return cache.build(spec, directory, identity, Progress(update, say.note), mirror=mirror, turn=begin)

    growing = Growing(directory, build, turn, like)
    growing.wait_for_first()
    return growing
