"""What Orbax writes a checkpoint with here: handlers that hash their files, and open the arrays once more before the
checkpoint counts. Nor does it log what it then raises."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from jaxpt.errors import UserError, printable
from jaxpt.runtime import disk
from jaxpt.train import checksums


def _keep_log_record(record: logging.LogRecord) -> bool:
    """Not what Orbax logs with a traceback and then raises (we say it, in a line), nor that a reader only reads, nor
    the bytes of a damaged file of its own that nothing depends on (`jaxpt verify` names it), nor that nothing was
    evaluated at the step of a checkpoint."""
    left_out = ("read only", "read_only", "Failed to json parse", "did not provide metrics")
    is_left_out = record.exc_info or any(words in str(record.msg) for words in left_out)
    return not (is_left_out and "orbax" in record.pathname)


def _is_not_of_the_disk(record: logging.LogRecord) -> bool:
    """Not what asyncio logs of writes of a save that failed, when it finds that nobody asked how they ended."""
    return not (record.exc_info and disk.error_number(record.exc_info[1] or Exception()) is not None)


def _ignore_late_writes(unraisable: Any, others: Callable[[Any], Any] = sys.unraisablehook) -> None:
    """What writes of a save that failed say when they end after it: the failure itself has been told."""
    if not (isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"):
        others(unraisable)


logging.getLogger("absl").addFilter(_keep_log_record)
logging.getLogger("asyncio").addFilter(_is_not_of_the_disk)
sys.unraisablehook = _ignore_late_writes


class _LiteralPath(type(epath.Path("/"))):  # type: ignore[misc]
    """A path in which `[`, `*` and `?` are characters of a name: etils' own `glob` takes those of the directory as a
    pattern, too, and Orbax, which merges what `glob` finds, then merges nothing and says nothing."""

    def glob(self, pattern: str) -> Iterator[Any]:
        return map(type(self), Path(self).glob(pattern))


class _Literal:
    """A handler that reads and writes in directories with any name."""

    def finalize(self, directory: Any) -> None:
        super().finalize(_LiteralPath(directory))  # type: ignore[misc]

    def metadata(self, directory: Any) -> Any:
        """What is saved there, without the values of arrays."""
        return super().metadata(_LiteralPath(directory))  # type: ignore[misc]

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """What is saved there."""
        return super().restore(_LiteralPath(directory), *args, **kwargs)  # type: ignore[misc]


class ArraysHandler(_Literal, ocp.PyTreeCheckpointHandler):
    """Of some arrays of a state."""


def unreadable(directory: Path) -> str | None:
    """Opens every array of a state as a restore will, and reads its shape, not its values.

    Args:
      directory: `state` of a checkpoint, also of one that is being written.

    Returns:
      What is wrong, None where all arrays open.

    Raises:
      OSError: the disk fails.
    """
    try:
        ArraysHandler().metadata(directory)
    except Exception as error:  # Orbax has many
        if disk.error_number(error) is not None:
            raise
        words = printable(str(error).partition(" [tensorstore_spec=")[0], 400) or type(error).__name__
        return f"{directory} has arrays that cannot be read: {words}"
    return None


class _Hashed(_Literal):
    """A handler that hashes its files when all are written, before Orbax commits the checkpoint."""

    of: dict[str, Any] | None = None
    """Run and step of the save under way; the primary process's, which writes the checksums."""

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        checksums.write(Path(directory), self.of)


class _Read(_Literal):
    """A handler of arrays that sees what is merged to be readable, before checksums vouch for it."""

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        if reason := unreadable(Path(directory)):
            raise UserError(f"{reason}; it is not kept as a checkpoint")


class StateHandler(_Hashed, _Read, ocp.StandardCheckpointHandler):
    """Of arrays."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Each process also hashes what it has written itself, when that is on the disk."""
        written = await super().async_save(directory, *args, **kwargs)
        return [ocp.future.ChainedFuture(written or [], lambda: _hash_own(Path(directory)))]


def _hash_own(directory: Path) -> None:
    process_dir = directory / f"ocdbt.process_{jax.process_index()}"  # where Orbax has each process write its parts
    if process_dir.is_dir():
        checksums.write(process_dir)


class MetaHandler(_Hashed, ocp.JsonCheckpointHandler):
    """Of JSON."""
