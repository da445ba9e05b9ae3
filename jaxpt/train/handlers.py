"""What Orbax writes a checkpoint with here: handlers that hash their files. Nor does it log what it then raises."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxpt import disk
from jaxpt.train import checksums


def _is_news(record: logging.LogRecord) -> bool:
    """Not what Orbax logs with a traceback and then raises (we say it, in a line), nor that a reader only reads, nor
    the bytes of a damaged file of its own that nothing depends on (`jaxpt verify` names it)."""
    left_out = ("read only", "read_only", "Failed to json parse")
    said_twice = record.exc_info or any(words in str(record.msg) for words in left_out)
    return not (said_twice and "orbax" in record.pathname)


def _is_not_of_the_disk(record: logging.LogRecord) -> bool:
    """Not what asyncio logs of writes of a save that failed, when it finds that nobody asked how they ended."""
    return not (record.exc_info and disk.error_number(record.exc_info[1] or Exception()) is not None)


def _ignore_late_writes(found: Any, others: Callable[[Any], Any] = sys.unraisablehook) -> None:
    """What writes of a save that failed say when they end after it: the failure itself has been told."""
    if not (isinstance(found.exc_value, RuntimeError) and str(found.exc_value) == "Event loop is closed"):
        others(found)


logging.getLogger("absl").addFilter(_is_news)
logging.getLogger("asyncio").addFilter(_is_not_of_the_disk)
sys.unraisablehook = _ignore_late_writes


class _Hashed:
    """A handler that hashes its files when all are written, before Orbax commits the checkpoint."""

    of: dict[str, Any] | None = None
    """Run and step of the save under way; the primary process's, which writes the checksums."""

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)  # type: ignore[misc]
        checksums.write(Path(directory), self.of)


class StateHandler(_Hashed, ocp.StandardCheckpointHandler):
    """Of arrays."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Each process also hashes what it has written itself, when that is on the disk."""
        written = await super().async_save(directory, *args, **kwargs)
        return [ocp.future.ChainedFuture(written or [], lambda: _hash_own(Path(directory)))]


def _hash_own(directory: Path) -> None:
    own = directory / f"ocdbt.process_{jax.process_index()}"  # where Orbax has each process write its parts
    if own.is_dir():
        checksums.write(own)


class MetaHandler(_Hashed, ocp.JsonCheckpointHandler):
    """Of JSON."""
