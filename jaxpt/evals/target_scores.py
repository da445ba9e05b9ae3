"""Log-probabilities of given targets, on a run's mesh: rows of similar length together, a program for each length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpt.decode import batching, scores
from jaxpt.models.network import Network
from jaxpt.parallel import compiler, distributed, rules
from jaxpt.train.state import Setup

ROWS = 32
"""Rows of a batch, rounded up to what the mesh divides."""
_TARGETS = 8  # rows with fewer targets share their programs
Sizes = tuple[int, ...]


class Scored(NamedTuple):
    """Targets, and what the model reads before them."""

    prompt: Sequence[int]
    """What the decoder reads before the first target, at least one id."""
    targets: Sequence[int]
    """At least one."""
    encoder: Sequence[int] | None = None
    """Of an encoder-decoder."""


class TargetScores:
    """Scores any number of targets by a decoder or an encoder-decoder."""

    def __init__(self, setup: Setup) -> None:
        """For the network of a run.

        Args:
          setup: the run, for evaluation.
        """
        self._setup = setup
        shards = setup.mesh.shape["data"] * setup.mesh.shape["fsdp"]
        self._size = -(-ROWS // shards) * shards
        self._own = distributed.rows(setup.mesh, self._size)
        network = setup.network.with_model(remat="none")
        self._program = compiler.jit(
            lambda params, batch: _score(network, params, batch),
            in_shardings=(setup.shardings.params, rules.batch_sharding(setup.mesh)),
            out_shardings=rules.replicated(setup.mesh),
        )
        self._compiled: dict[Sizes, Any] = {}

    def compile(self, rows: Sequence[Scored]) -> None:
        """Compiles what these rows need."""
        with self._setup.use():
            for sizes, chosen in self._chunks(rows):
                if sizes not in self._compiled:
                    params, batch = self._setup.placed_shapes().params, self._put([rows[i] for i in chosen], sizes)
                    self._compiled[sizes] = self._program.lower(params, batch).compile()

    def __call__(
        self, params: Any, rows: Sequence[Scored], stop: Callable[[], bool] = lambda: False
    ) -> list[np.ndarray] | None:
        """The log-probability of each target token.

        Args:
          params: the run's parameters.
          rows: the same in all processes.
          stop: asked between batches, in all processes.

        Returns:
          For each row float32 [targets], in nats; None if stopped.
        """
        self.compile(rows)
        all_log_probs: list[Any] = [None] * len(rows)
        with self._setup.use():
            for sizes, chosen in self._chunks(rows):
                log_probs = np.asarray(self._compiled[sizes](params, self._put([rows[i] for i in chosen], sizes)))
                for index, of_row in zip(chosen, log_probs):
                    all_log_probs[index] = of_row[: len(rows[index].targets)]
                if stop():
                    return None
        return all_log_probs

    def _chunks(self, rows: Sequence[Scored]) -> Iterator[tuple[Sizes, list[int]]]:
        """(lengths of encoder, decoder and targets, numbers of the rows) of each batch, short ones first."""
        limit = self._setup.network.config.position_limit
        max_targets = batching.power_of_two(max((len(row.targets) for row in rows), default=1))
        sizes = [
            (
                0 if row.encoder is None else batching.power_of_two(len(row.encoder), limit, batching.LEAST),
                batching.power_of_two(len(row.prompt) + len(row.targets) - 1, limit, batching.LEAST),
                batching.power_of_two(len(row.targets), least=min(max_targets, _TARGETS)),
            )
            for row in rows
        ]
        for of_batch in sorted(set(sizes)):
            same = [index for index, row_sizes in enumerate(sizes) if row_sizes == of_batch]
            for first in range(0, len(same), self._size):
                yield of_batch, same[first : first + self._size]

    def _put(self, chosen: Sequence[Scored], sizes: Sizes) -> dict[str, jax.Array]:
        """This process's rows of a batch as global arrays; the first row fills what is left."""
        rows = [*chosen, *[chosen[0]] * (self._size - len(chosen))]
        columns = {
            "inputs": ([[*row.prompt, *row.targets[:-1]] for row in rows], sizes[1]),
            "targets": ([row.targets for row in rows], sizes[2]),
        }
        if sizes[0]:
            columns["encoder"] = ([row.encoder for row in rows], sizes[0])
        local_arrays: dict[str, np.ndarray] = {}
        for name, (ids, length) in columns.items():
            tokens, lengths = batching.padded_with_lengths(ids, self._size, length)
            local_arrays |= {name: tokens[self._own], f"{name}_lengths": lengths[self._own]}
        return distributed.put(local_arrays, self._setup.mesh, self._size)


def _score(network: Network, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """Log-probabilities of the targets of a batch: float32 [B, T]."""
    arrays = [batch[name] for name in ("inputs", "inputs_lengths", "targets", "targets_lengths")]
    if "encoder" in batch:
        encoder = batch["encoder"], batch["encoder_lengths"]
        return scores.score_encoder_decoder(network.bind(params), *encoder, *arrays)[0]
    return scores.score_decoder(network.bind(params), *arrays)[0]
