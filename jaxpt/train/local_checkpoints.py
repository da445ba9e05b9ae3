"""Checkpoints on each host's own disk or in its memory (`checkpoint.local_dir`), between those of the run_dir.

A large state takes long to reach storage that all hosts share. Here each process writes what its own devices hold to
its own host, often; checkpoints of the run_dir, which outlive the hosts, can then be rare. A start takes the newest
step of which the hosts together have every part. A process on a new host lacks some: another one that has the same
replica sends them. Where a part is nowhere, or this mesh cuts the arrays into other parts, the run goes on from the
run_dir's newest checkpoint.

    LOCAL_DIR/RUN_ID/process_K/STEP/state.safetensors   each part that process K had, once; and `meta`, a JSON value
                                    checksums.json      of the file, with its run and step

The idea is GEMINI's, https://doi.org/10.1145/3600006.3613145.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxpt.config import CheckpointConfig
from jaxpt.errors import StorageError, UserError, listed
from jaxpt.runtime import disk, safetensors
from jaxpt.train import checkpoint, checksums, corruption
from jaxpt.train.state import Setup, State, named_arrays

FILE = "state.safetensors"
META = "meta"
_KEPT = 2
"""Whole checkpoints of a process that stay while it writes another one: of any two processes, one that is a save ahead
of the other still has the other's newest."""
_CHUNK = 1 << 24
"""Bytes that are sent at a time."""

Parts = dict[str, frozenset[int]]
"""{name of a part of an array: the processes that need it}."""


def name_of(array: str, index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    """The name of a part of an array.

    Example:
      >>> name_of("params/embed", (slice(0, 4), slice(None)), (8, 3))
      'params/embed[0:4,0:3]'
    """
    ends = (piece.indices(size) for piece, size in zip(index, shape, strict=True))
    return f"{array}[{','.join(f'{start}:{stop}' for start, stop, _ in ends)}]"


def parts_of(shapes: State) -> Parts:
    """All parts of a placed state, on all processes, in an order that is the same on each of them."""
    owners: dict[str, set[int]] = {}
    for array, x in named_arrays(shapes).items():
        for device, index in x.sharding.devices_indices_map(x.shape).items():
            owners.setdefault(name_of(array, index, x.shape), set()).add(device.process_index)
    return {name: frozenset(processes) for name, processes in owners.items()}


class LocalCheckpoints:
    """The checkpoints of this process on its host, and the others' as far as they can be reached."""

    def __init__(self, config: CheckpointConfig, run_id: str, report: Callable[[str], None]) -> None:
        """Makes the directory.

        Args:
          config: with a `local_dir`.
          run_id: of the run; a directory may hold several runs'.
          report: is given a line where something cannot be written or read; the run goes on.

        Raises:
          UserError: nothing can be written there.
        """
        self.every = config.local_every
        self._run_id, self._report = run_id, report
        self._run = Path(config.local_dir) / run_id
        self._own = self._run / f"process_{jax.process_index()}"
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            disk.check_writable(self._own)
            for cut_off in self._own.glob(".*.partial"):
                shutil.rmtree(cut_off)
        except OSError as error:
            place = f"checkpoint.local_dir: {config.local_dir}"
            raise UserError(f"{place}: cannot write: {error.strerror}") from None
        self._pool, self._pending = ThreadPoolExecutor(1), None

    def check_space(self, setup: Setup) -> None:
        """Raises StorageError where a disk has no room for three times the parts of all processes that write there.

        All processes call it.
        """
        size = 0
        for x in jax.tree.leaves(setup.placed_shapes()):
            parts = set(map(str, x.sharding.addressable_devices_indices_map(x.shape).values()))
            size += len(parts) * safetensors.size(x.dtype, x.sharding.shard_shape(x.shape))
        need = (_KEPT + 1) * size - sum(file.stat().st_size for file in self._own.glob(f"*/{FILE}"))
        own_disk = hashlib.sha256(f"{socket.gethostname()} {self._own.stat().st_dev}".encode()).digest()
        row = np.frombuffer(own_disk + need.to_bytes(8, "little", signed=True), np.uint8)
        rows = [row.tobytes() for row in _gather(row)]
        beside = [n for n, row in enumerate(rows) if row[:-8] == own_disk]
        need = sum(int.from_bytes(rows[n][-8:], "little", signed=True) for n in beside)
        free = shutil.disk_usage(self._own).free  # after `_gather`: all have removed what was cut off
        if need > free:
            raise StorageError(
                f"checkpoint.local_dir: {self._run.parent}: needs {need / 1e9:.2f} GB for process "
                f"{', '.join(map(str, beside))}, {free / 1e9:.2f} GB are free"
            )

    def save(self, state: State, meta: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Copies this process's parts to host memory, and writes them in the background.

        The state may be donated as soon as this returns. An error of the disk is reported at the next call.

        Args:
          state: the state after its `step` updates.
          meta: JSON values kept beside it.
          metrics: not kept: checkpoints of the run_dir alone are ranked.
        """
        self.wait()
        for old in self._steps(self._own)[:-_KEPT]:
            shutil.rmtree(self._own / str(old), ignore_errors=True)
        shards = {
            name_of(array, shard.index, x.shape): shard.data
            for array, x in named_arrays(state).items()
            for shard in x.addressable_shards
        }
        for x in shards.values():
            x.copy_to_host_async()
        # A copy, also where the device's memory is the host's: the next step writes over it.
        arrays = {name: np.array(x) for name, x in shards.items()}
        arrays[META] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        self._pending = self._pool.submit(self._write, int(state.step), arrays)

    def _write(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        with disk.whole_directory(self._own / str(step)) as directory:
            with disk.writing(directory / FILE), (directory / FILE).open("wb") as file:
                file.write(safetensors.header({name: (x.dtype, x.shape) for name, x in arrays.items()}, {}))
                for x in arrays.values():
                    file.write(np.ascontiguousarray(x).view(np.uint8).data if x.size else b"")
            checksums.write(directory, {"run": self._run_id, "step": step})

    def wait(self) -> None:
        """Returns when the last save is whole, or has failed, which is reported."""
        pending, self._pending = self._pending, None
        try:
            if isinstance(pending, Future):
                pending.result()
        except OSError as error:
            self._report(f"checkpoint.local_dir: {self._own}: cannot save: {error.strerror}; the run goes on")

    def restore(self, setup_at: Callable[[int], Setup], after: int) -> tuple[State, dict[str, Any]] | None:
        """The newest state that the hosts together have; all processes call it, and get the same step.

        Args:
          setup_at: gives the setup of a step.
          after: the newest step of the run_dir; older ones are of no use.

        Returns:
          (state, meta); None where no newer one is whole.
        """
        newest = 4 * [-1] + sorted({step for directory in self._directories() for step in self._steps(directory)})
        steps = sorted(set(_gather(np.array(newest[-4:], np.int32)).ravel().tolist()), reverse=True)
        found, reached = None, after
        for step in steps:
            if step > after and (found := self._restore(setup_at(step), step)) is not None:
                reached = step
                break
        for directory in self._directories():  # steps of what was not gone on from must not mix with those to come
            is_gone = int(directory.name.rpartition("_")[2]) >= jax.process_count()
            for old in self._steps(directory):
                if old > reached or (is_gone and old < reached):
                    shutil.rmtree(directory / str(old), ignore_errors=True)
        return found

    def _restore(self, setup: Setup, step: int) -> tuple[State, dict[str, Any]] | None:
        """The state of a step; None, with a line, where it is not whole."""
        shapes, held = setup.placed_shapes(), self._held(step)
        parts = parts_of(shapes)
        parts[META] = frozenset(range(jax.process_count()))
        has = _gather(np.array([name in held for name in parts]))
        if lacking := [name for name, is_there in zip(parts, has.any(0)) if not is_there]:
            self._report(
                f"checkpoint.local_dir: step {step}: {len(lacking)} of {len(parts)} parts are on no host, or are cut "
                f"otherwise ({listed(lacking, 1)}); an older checkpoint is used"
            )
            return None
        process, contents = jax.process_index(), {}
        for (name, needing), holders in zip(parts.items(), has.T):
            source, is_sent = int(holders.argmax()), not holders[list(needing)].all()
            is_read = name in held and (process in needing or (is_sent and process == source))
            content = safetensors.tensor(*held[name]) if is_read else None
            if is_sent:
                content = _send(content, source)
            if process in needing:
                contents[name] = content
        meta = json.loads(contents[META].tobytes())

        def placed(array: str, x: Any) -> jax.Array:
            def part(index: tuple[slice, ...]) -> np.ndarray:
                content = contents[name_of(array, index, x.shape)]
                return content.view(x.dtype).reshape(x.sharding.shard_shape(x.shape))

            return jax.make_array_from_callback(x.shape, x.sharding, part)

        arrays = [placed(array, x) for array, x in named_arrays(shapes).items()]
        state = jax.tree.unflatten(jax.tree.structure(shapes), arrays)
        if altered := corruption.changed(meta.get("digests", {}), state):
            self._report(
                f"checkpoint.local_dir: step {step}: {listed(altered, 2)} are not what was saved: their digests "
                "differ; an older checkpoint is used"
            )
            return None
        return state, meta

    def _held(self, step: int) -> dict[str, tuple[Path, safetensors.Entry]]:
        """{name of a part: where it is} of what this host has of a step, whichever process wrote it."""
        held: dict[str, tuple[Path, safetensors.Entry]] = {}
        for directory in (parent / str(step) for parent in self._directories()):
            if not directory.is_dir():
                continue
            damage = checksums.damage(directory)
            if damage is None and checksums.owner(directory) != {"run": self._run_id, "step": step}:
                damage = f"{directory} is of another run or step"
            if damage is not None:
                self._report(f"{damage}; it is not used")
                continue
            _, entries = safetensors.read(directory / FILE)
            held |= {name: (directory / FILE, entry) for name, entry in entries.items()}
        return held

    def _directories(self) -> list[Path]:
        return sorted(self._run.glob("process_*"))

    @staticmethod
    def _steps(directory: Path) -> list[int]:
        return sorted(int(path.name) for path in directory.glob("*") if path.name.isdigit())

    def forget(self) -> None:
        """Removes this process's checkpoints: those of a run that goes back, or that is finished."""
        self.wait()
        shutil.rmtree(self._own, ignore_errors=True)
        with contextlib.suppress(OSError):  # others' are there still
            self._run.rmdir()

    def close(self) -> None:
        """Waits for the last save, and ends the thread that writes."""
        self.wait()
        self._pool.shutdown()


def open_for(
    config: CheckpointConfig, directory: Path, setup: Setup, report: Callable[[str], None]
) -> LocalCheckpoints | None:
    """The hosts' checkpoints of a run; None without `checkpoint.local_dir`.

    Args:
      config: of the run.
      directory: of its other checkpoints, with the run's id.
      setup: of its largest state.
      report: see `LocalCheckpoints`.

    Raises:
      UserError: nothing can be written in the directory.
      StorageError: it has not enough room.
    """
    if config.local_dir is None:
        return None
    run_id = checkpoint.run_id(directory).encode() if checkpoint.is_primary() else b""
    run_id = _send(np.frombuffer(run_id, np.uint8), 0).tobytes().decode()
    local = LocalCheckpoints(config, run_id, report)
    local.check_space(setup)
    return local


def _gather(x: np.ndarray) -> np.ndarray:
    """The values of all processes, [processes, *shape]."""
    return np.asarray(multihost_utils.process_allgather(x)).reshape(jax.process_count(), *x.shape)


def _send(content: np.ndarray | None, source: int) -> np.ndarray:
    """The bytes of an array of one process, on all of them.

    Args:
      content: of that process; the others' is not looked at.
      source: its number.
    """
    is_source = jax.process_index() == source
    raw = np.ascontiguousarray(content).reshape(-1).view(np.uint8) if is_source else np.zeros(0, np.uint8)
    size = int.from_bytes(_broadcast(np.frombuffer(raw.size.to_bytes(8, "little"), np.uint8), is_source), "little")
    chunks = []
    for start in range(0, size, _CHUNK):
        length = min(_CHUNK, size - start)
        chunk = np.zeros(1 << (length - 1).bit_length(), np.uint8)  # few sizes, each of which is a program
        chunk[: len(raw[start : start + length])] = raw[start : start + length]
        chunks.append(_broadcast(chunk, is_source)[:length])
    return np.concatenate([np.zeros(0, np.uint8), *chunks])


def _broadcast(x: np.ndarray, is_source: bool) -> np.ndarray:
    return np.asarray(multihost_utils.broadcast_one_to_all(x, is_source=is_source))
