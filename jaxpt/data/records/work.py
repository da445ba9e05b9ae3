"""How a store is made, shard by shard: in this process, in worker processes, or by Apache Beam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from jaxpt.data._tf import tf
from jaxpt.data.records.shard import write_shard


class Shard(Protocol):
    """A run of documents, small enough to be sent to a process."""

    size: int
    """Bytes of text, about; 0 where it is not known."""


class Work(Protocol):
    """A split that can be made shard by shard."""

    @property
    def failure(self) -> Exception | None:
        """The mistake that ended the last reading, inside tf.data, which would hide it."""

    @property
    def consumed(self) -> int:
        """Bytes of text read so far."""

    def shards(self) -> Sequence[Any]:
        """The shards, in the order of their records."""

    def dataset(self, number: int, shard: Any) -> tf.data.Dataset:
        """The records of a shard."""

    def counts(self) -> dict[str, Any]:
        """What was counted while the last data set was read; counts of all shards are added up."""

    def check(self, counts: dict[str, Any]) -> None:
        """Raises UserError where the sum of all counts cannot be right."""


class WorkSpec(Protocol):
    """Small and picklable: what a process needs to do the work."""

    name: str

    def open(self) -> Work:
        """Opens sources and vocabulary."""


def make_shard(
    work: Work, number: int, shard: Any, path: Path, report: Callable[[int], None] = lambda records: None
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
    last = 0

    def progress(records: int) -> None:
        nonlocal last
        last = records
        report(records)

    def counts() -> dict[str, Any]:
        if work.failure is not None:  # the data set ended there
            raise work.failure
        return work.counts()

    try:
        write_shard(work.dataset(number, shard), path, counts, progress)
    except tf.errors.OpError:
        if work.failure is not None:
            raise work.failure from None
        raise
    return last
