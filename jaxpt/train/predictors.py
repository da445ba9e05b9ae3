"""What a fine-tuned model says of any number of examples: outputs of its head, generated text, or the likeliest label.

Examples go in batches by length; results have the order of the examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.generate.batching import bucket
from jaxpt.generate.engine import Engine, Prompt
from jaxpt.generate.options import Options
from jaxpt.generate.programs import Place
from jaxpt.objectives.text_to_text import TextToText
from jaxpt.parallel import compiler, distributed, rules
from jaxpt.train.state import Setup


def build(setup: Setup, tokenizer: Tokenizer) -> Predictor | TextPredictor:
    """The predictor of a run's objective.

    Args:
      setup: the run, for evaluation.
      tokenizer: its tokenizer.
    """
    if isinstance(setup.config.objective, TextToText):
        return TextPredictor(setup, tokenizer)
    return Predictor(setup, tokenizer.vocabulary)


Record = Mapping[str, np.ndarray]
_ROWS = 32
"""Examples in a batch, rounded up to what the mesh divides."""
_GENERATED = 64
"""Texts that are generated together."""


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


class TextPredictor:
    """Generates the answer to each example, or finds the likeliest label word."""

    def __init__(self, setup: Setup, tokenizer: Tokenizer) -> None:
        """For the network and the objective of a run.

        Args:
          setup: the run, for evaluation.
          tokenizer: its tokenizer.
        """
        self._setup, self._tokenizer, self._objective = setup, tokenizer, setup.config.objective
        self._engine: Engine | None = None

    def compile(self, records: Sequence[Record]) -> None:
        """Nothing: programs are compiled when parameters are there."""

    def __call__(
        self, params: Any, records: Sequence[Record], stop: Callable[[], bool] = lambda: False
    ) -> list[Any] | None:
        """The answer to each example.

        Args:
          params: the run's parameters.
          records: as the objective's encoder makes them; the same in all processes.
          stop: asked now and then, in all processes.

        Returns:
          For each record its text, or the index of a label; None if stopped.
        """
        if self._objective.decide_by == "likelihood":
            return self._likeliest(params, records)
        options = self._options()
        prompts = [self._prompt(record) for record in records]
        if self._engine is None:
            place = Place(self._setup.mesh, tuple(self._setup.table.items()))
            self._engine = Engine(self._setup.network, params, place, batch_size=_GENERATED)
        else:
            self._engine.load(params)
        found: list[Any] = [""] * len(records)
        for one in self._engine.generate(prompts, options):
            ids = one.tokens[:-1] if one.finish == "eos" else one.tokens
            found[one.index] = self._tokenizer.decode(ids)
            if stop():
                return None
        return found

    def _options(self) -> Options:
        given, vocabulary = self._objective.decoding, self._tokenizer.vocabulary
        own = given.model_dump() | {"max_new_tokens": given.max_new_tokens or self._objective.targets_length}
        if given.beams == 1:
            own = {name: value for name, value in own.items() if name not in ("length_penalty", "early_stopping")}
        return Options(**own, eos=(vocabulary.eos,))

    def _prompt(self, record: Record) -> Prompt:
        if "tokens" in record:
            return Prompt(record["tokens"][: record["prefix"]].tolist())
        before, _ = self._objective.ends(self._tokenizer.vocabulary)
        start = self._objective.batches.start(self._tokenizer.vocabulary)
        return Prompt([start, *before], record["inputs"].tolist())

    def _likeliest(self, params: Any, records: Sequence[Record]) -> list[int]:
        """The index of the label word with the highest log-probability."""
        raise NotImplementedError
