"""Records that are made of all records of a split together, such as counts of a corpus: `Transforms.corpus`."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxpt.data.calls import Call
from jaxpt.data.records.shard import Batches
from jaxpt.data.records.store import Store
from jaxpt.data.seqio_tasks import code, resolve
from jaxpt.data.sources.base import Pieces


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The work of `Transforms.corpus`, as `jaxpt.data.records.cache` does it: one shard, in this process."""

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

    def check(self, counts: dict[str, Any]) -> None:
        """The store's records were checked."""
