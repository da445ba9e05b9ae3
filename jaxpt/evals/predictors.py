"""What a fine-tuned model says of any number of examples: outputs of its head, generated text, or the likeliest label.

Examples go in batches by length; results have the order of the examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.decode import batching
from jaxpt.decode.engine import Prompt
from jaxpt.decode.options import Options
from jaxpt.decode.packed import Row, score_rows
from jaxpt.errors import UserError
from jaxpt.evals import generation
from jaxpt.models.heads import classes
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective
from jaxpt.objectives.formats import Format
from jaxpt.objectives.text_to_text import TextToText
from jaxpt.runtime import progress
from jaxpt.train.state import Setup


def build(setup: Setup, tokenizer: Tokenizer, others: Sequence[Any] = ()) -> Any:
    """The predictor of a run's objective.

    Args:
      setup: the run, for evaluation.
      tokenizer: its tokenizer.
      others: those of other tasks of the run: programs are shared where they are the same.

    Returns:
      A `Predictor` or a `TextPredictor`.
    """
    objective = setup.config.objective
    if isinstance(objective, TextToText):
        return TextPredictor(setup, tokenizer, next(iter(others), None))
    head = getattr(objective.task, "head", None)
    return Predictor(setup, tokenizer.vocabulary, next((other for other in others if other.head == head), None))


Record = Mapping[str, np.ndarray]
ROWS = 32
"""Examples in a batch, rounded up to what the mesh divides."""


class Predictor:
    """Applies a labelled objective's head; a program for each length, a power of two.

    Of a mixture the heads of all tasks with such a head are applied, in one program for all of these tasks.
    """

    def __init__(self, setup: Setup, vocabulary: Vocabulary, other: Predictor | None = None) -> None:
        """For the network and the objective of a run.

        Args:
          setup: the run, for evaluation.
          vocabulary: gives the special tokens.
          other: that of another task of the run with a head of the same name, which shares its programs.
        """
        objective = setup.config.objective
        self._setup, self._task_objective, self._objective = setup, objective, objective
        self._collate, self._own_outputs = objective.collate_fn(vocabulary), slice(None)
        self.head = getattr(objective.task, "head", None)
        if (part := getattr(objective, "part", None)) is not None:
            heads = setup.network.heads
            sizes = {name: heads[classes.called(self.head, name)].module.outputs
                     for name in classes.parts(heads, self.head)}  # fmt: skip
            first = sum(sizes[name] for name in list(sizes)[: list(sizes).index(part)])
            self._own_outputs = slice(first, first + sizes[part])
            self._objective = objective.model_copy(update={"part": classes.ALL})
        if other is not None:
            self._objective = other._objective

    def compile(self, records: Sequence[Record]) -> None:
        """Compiles what these examples need."""
        self(self._setup.placed_shapes().params, records)

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
        limit = self._task_objective.row_length(self._setup.config.data.length)
        lengths = [batching.power_of_two(len(record["tokens"]), limit, batching.LEAST) for record in records]
        all_outputs: list[Any] = [None] * len(records)
        with self._setup.use():
            shards = batching.row_multiple()
            rows = -(-ROWS // shards) * shards
            order = sorted(range(len(records)), key=lambda index: lengths[index])
            for length, of_length in itertools.groupby(order, key=lambda index: lengths[index]):
                while chosen := list(itertools.islice(of_length, rows)):
                    outputs = self._run(params, [records[index] for index in chosen], length, rows)
                    for index, record_outputs in zip(chosen, outputs):
                        all_outputs[index] = record_outputs
                    progress.advance(len(chosen), "rows")
                    if stop():
                        return None
        return all_outputs

    def _run(self, params: Any, records: Sequence[Record], length: int, rows: int) -> Any:
        """The outputs of a batch; rows without an example are zeros."""
        batch = self._collate(records, length)
        batch.pop("labels", None)  # of another type in each kind of task
        arrays = [np.pad(x, [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1)) for x in batch.values()]
        network, _ = batching.independent(self._setup.network)  # the rows of a batch have one length anyway
        static = network, self._objective, tuple(batch)
        outputs = batching.run(_outputs, static, params, *arrays)[..., self._own_outputs]
        return self._task_objective.split_outputs(outputs, records)

    def losses(
        self, params: Any, records: Sequence[Record], outputs: Sequence[Sequence[Any]], targets: Sequence[Any]
    ) -> list[float]:
        """The loss of each row.

        Args:
          params: the run's parameters.
          records: of all rows, with targets.
          outputs: what was computed of the records of each row.
          targets: of the rows.
        """
        task = self._setup.config.task
        return [task.loss(of_row, target) for of_row, target in zip(outputs, targets, strict=True)]


def _outputs(network: Network, objective: Objective, names: tuple[str, ...], params: Any, *arrays: jax.Array) -> Any:
    return objective.predict(network.bind(params), dict(zip(names, arrays)))


class TextPredictor:
    """Generates the answer to each example, or finds how likely each label word is."""

    def __init__(self, setup: Setup, tokenizer: Tokenizer, other: TextPredictor | None = None) -> None:
        """For the network and the objective of a run.

        Args:
          setup: the run, for evaluation.
          tokenizer: its tokenizer.
          other: that of another task of the run, which shares its programs.

        Raises:
          UserError: a label word is too long.
        """
        self._setup, self._tokenizer = setup, tokenizer
        self._objective: TextToText = setup.config.objective
        self._words = self._label_words() if self._objective.decide_by == "likelihood" else []
        self._texts = generation.Generation(setup) if other is None else other._texts

    def compile(self, records: Sequence[Record]) -> None:
        """Compiles what these examples need: for generation all but what depends on how long the answers are."""
        if self._words:
            self._likelihoods(self._setup.placed_shapes().params, records, lambda: False)
        else:
            self._texts.compile([self._prompt(record) for record in records], self._options())

    def __call__(
        self, params: Any, records: Sequence[Record], stop: Callable[[], bool] = lambda: False
    ) -> list[Any] | None:
        """The answer to each example.

        Args:
          params: the run's parameters.
          records: as the objective's encoder makes them; the same in all processes.
          stop: asked now and then, in all processes.

        Returns:
          For each record its text, or the log-likelihood of each label word, float64 [labels]; None if stopped.
        """
        if self._words:
            return self._likelihoods(params, records, stop)
        eos = self._tokenizer.vocabulary.eos
        answer_ids = self._texts(params, [self._prompt(record) for record in records], self._options(), stop)
        if answer_ids is None:
            return None
        return [self._tokenizer.decode(ids[:-1] if ids[-1:] == [eos] else ids) for ids in answer_ids]

    def losses(
        self, params: Any, records: Sequence[Record], outputs: Sequence[Sequence[Any]], targets: Sequence[Any]
    ) -> list[float]:
        """The loss of each row: −log p of its label among all labels, or the mean of −log p of its target's tokens.

        Args:
          params: the run's parameters.
          records: one for each row, with targets.
          outputs: as `__call__` gives them, for each row a list of one.
          targets: of the rows.
        """
        if self._words:
            task = self._setup.config.task
            return [task.loss([output[None]], target) for (output,), target in zip(outputs, targets, strict=True)]
        log_probs = target_log_probs(self._setup, params, [self._with_target(record) for record in records])
        return [-float(x.mean(dtype=np.float64)) for x in log_probs]

    def _likelihoods(self, params: Any, records: Sequence[Record], stop: Callable[[], bool]) -> list[np.ndarray] | None:
        """Σ log p of the tokens of each label word and its end; divided by their number with `normalize`."""
        rows = [row for record in records for row in self._rows(record)]
        log_probs = target_log_probs(self._setup, params, rows, stop)
        if log_probs is None:
            return None
        totals = np.array([x.sum(dtype=np.float64) for x in log_probs]).reshape(len(records), len(self._words))
        if self._objective.normalize:
            totals /= [len(word) for word in self._words]
        return list(totals)

    def _label_words(self) -> list[list[int]]:
        """The ids of each label word and its end."""
        before, after = self._objective.ends(self._tokenizer.vocabulary)
        room = self._objective.targets_length - (0 if self._objective.family == "decoder" else len(before))
        words = self._objective.task.candidates()
        ids = [[*word_ids, *after] for word_ids in self._tokenizer.encode_batch(list(words))]
        for word, word_ids in zip(words, ids):
            if len(word_ids) > room:
                raise UserError(
                    f"objective.targets_length: {self._objective.targets_length}: label word {word!r} has "
                    f"{len(word_ids)} tokens with its end, there is room for {room}"
                )
        return ids

    def _rows(self, record: Record) -> list[Row]:
        """The example with each label word."""
        prompt = self._prompt(record)
        return [row_of(prompt, word) for word in self._words]

    def _with_target(self, record: Record) -> Row:
        """The example with its own target."""
        prompt, before = self._prompt(record), self._objective.ends(self._tokenizer.vocabulary)[0]
        ids = record["tokens"][record["prefix"] :] if "tokens" in record else record["targets"][len(before) :]
        return row_of(prompt, ids.tolist())

    def _options(self) -> Options:
        decoding, eos = self._objective.decoding, self._tokenizer.vocabulary.eos
        return generation.search_options(decoding, decoding.max_new_tokens or self._objective.targets_length, eos)

    def _prompt(self, record: Record) -> Prompt:
        if "tokens" in record:
            return Prompt(record["tokens"][: record["prefix"]].tolist())
        start = self._objective.decoder_start(self._tokenizer.vocabulary)
        return Prompt(list(start), record["inputs"].tolist())


def row_of(prompt: Prompt, targets: Sequence[int]) -> Row:
    """What is scored: targets after a prompt."""
    return Row(tuple(prompt.tokens), tuple(targets), tuple(prompt.encoder or ()))


def target_log_probs(
    setup: Setup, params: Any, rows: Sequence[Row], stop: Callable[[], bool] = lambda: False
) -> list[np.ndarray] | None:
    """The log-probability of each target token, on a run's mesh.

    Args:
      setup: the run, for evaluation; of a decoder or an encoder-decoder.
      params: the run's parameters; where they are shapes, the programs are compiled.
      rows: the same in all processes.
      stop: asked between batches, in all processes.

    Returns:
      For each row float32 [targets], in nats; None if stopped.
    """
    network, objective = setup.network.with_model(remat="none"), setup.config.objective
    layout = Format(prefix_lm=generation.has_prefix(setup))
    with setup.use(), progress.track("scoring", len(rows), "rows") as work:

        def at(share: float) -> bool:
            work.at(share * len(rows))
            return stop()

        scores = score_rows(network, params, objective, layout, rows, progress=at)
    return None if scores is None else [log_probs for log_probs, _ in scores]
