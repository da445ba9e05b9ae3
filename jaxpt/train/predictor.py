"""Outputs of a task's head for any number of examples: batches by length, results in the order of the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.generate.batching import bucket
from jaxpt.parallel import compiler, distributed, rules
from jaxpt.train.state import Setup

Record = Mapping[str, np.ndarray]
_ROWS = 32
"""Examples in a batch, rounded up to what the mesh divides."""


class Predictor:
    """Applies a labelled objective's head. Each length is rounded up to a power of two, and compiled once."""

    def __init__(self, setup: Setup, vocabulary: Vocabulary) -> None:
        """For the network and the objective of a run.

        Args:
          setup: the run, for evaluation.
          vocabulary: gives the special tokens.
        """
        self._setup, self._batches = setup, setup.config.objective.batches
        self._rows = self._batches.rows_of(vocabulary)
        shards = setup.mesh.shape["data"] * setup.mesh.shape["fsdp"]
        self._size = -(-_ROWS // shards) * shards
        self._own = distributed.rows(setup.mesh, self._size)
        network, loss = setup.network, setup.config.objective.loss
        self._program = compiler.jit(
            lambda params, batch: loss.predict(network.bind(params), batch),
            in_shardings=(setup.shardings.params, rules.batch_sharding(setup.mesh)),
            out_shardings=rules.replicated(setup.mesh),
        )
        self._compiled: dict[int, Any] = {}

    def compile(self, records: Sequence[Record]) -> None:
        """Compiles what these examples need."""
        for length, chosen in self._chunks(records):
            if length not in self._compiled:
                self._compiled[length] = self._program.lower(
                    self._setup.placed_shapes().params, self._put(records, chosen, length)
                ).compile()

    def __call__(
        self, params: Any, records: Sequence[Record], stop: Callable[[], bool] = lambda: False
    ) -> list[np.ndarray] | None:
        """Outputs of the head.

        Args:
          params: the run's parameters.
          records: as the objective's encoder makes them; the same in all processes.
          stop: asked between batches, in all processes.

        Returns:
          For each record its outputs, float32; None if stopped.
        """
        found: list[Any] = [None] * len(records)
        with self._setup.use():
            self.compile(records)
            for length, chosen in self._chunks(records):
                outputs = self._compiled[length](params, self._put(records, chosen, length))
                for index, one in zip(chosen, self._batches.split(np.asarray(outputs), [records[i] for i in chosen])):
                    found[index] = one
                if stop():
                    return None
        return found

    def _chunks(self, records: Sequence[Record]) -> Iterator[tuple[int, list[int]]]:
        """(length, numbers of the records) of each batch, short ones first."""
        limit = self._batches.longest(self._setup.config.data.length)
        lengths = [bucket(len(record["tokens"]), limit) for record in records]
        for length in sorted(set(lengths)):
            same = [index for index, one in enumerate(lengths) if one == length]
            for first in range(0, len(same), self._size):
                yield length, same[first : first + self._size]

    def _put(self, records: Sequence[Record], chosen: Sequence[int], length: int) -> dict[str, jax.Array]:
        """This process's rows of a batch as global arrays; rows without an example are zeros."""
        made = self._rows([records[i] for i in chosen], length)
        padded = {name: np.pad(x, [(0, self._size - len(x))] + [(0, 0)] * (x.ndim - 1)) for name, x in made.items()}
        own = {name: x[self._own] for name, x in padded.items()}
        return distributed.put(own, self._setup.mesh, self._size)
