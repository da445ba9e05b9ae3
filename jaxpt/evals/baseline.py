"""Trivial predictors that a model must beat, evaluated on the run's validation split."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from jaxpt.config import Config, PositiveInt, execution
from jaxpt.evals.heldout import batches
from jaxpt.evals.kneser_ney import KneserNey, count_codes
from jaxpt.objectives import base
from jaxpt.train.evaluators import Evaluate, Evaluator, Result
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.base import Data

Batch = dict[str, np.ndarray]
COUNTED, COUNTED_BATCHES = 500_000, 500
"""Targets of the training split that are counted for a unigram baseline: those of its first batches, up to these."""
COUNTED_TEXT = 50_000_000
"""Tokens of text that are counted for a bigram or trigram baseline: those of the first training batches. A training
split that has no more is counted whole, each row once."""


class Baseline(Evaluator):
    """Compares the model's loss with the objective's trivial baseline on the validation split."""

    kind: Literal["baseline"] = "baseline"
    every: PositiveInt | Literal["end"] | None = execution("end")
    """Steps between evaluations; by default only at the end, because the baseline is constant."""
    of: str = "validation"
    """Name of an earlier evaluator in the list, whose loss is compared."""

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        config, expected = setup.config, setup.config.objective.baseline

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            if not any(batch["eval_mask"].any() for batch in batches(config, data)):
                return Result({}, (f"{expected.name} baseline: the validation split has no {expected.target_name}",))
            # Only process 0 counts: among several it cannot ask to stop, which all of them do at the same batch.
            should_stop = stop if jax.process_count() == 1 else lambda: False
            try:
                trivial = baseline(config, data, should_stop) if jax.process_index() == 0 else float("nan")
            except _StoppedError:
                return None
            prefix = f"{self.of}/"
            means = {name.removeprefix(prefix): x for name, x in earlier.items() if name.startswith(prefix)}
            steps = counted_steps(config, data)
            note = f"; counted in {steps:,} training batches, about {COUNTED_TEXT:,} tokens of text" if steps else ""
            if "target_loss" not in means:
                lacking = f"no {prefix}target_loss to compare: the loss returns this metric where a batch has eval_mask"
                line = f"{expected.name} baseline {trivial:.3f} {expected.unit}{note}; {lacking}"
                return Result(trivial, (line,) if means else ())
            line = verdict(expected, means["target_loss"], trivial) + note
            return Result(trivial, (line, *expected.report_lines(means)))

        return evaluate


class _StoppedError(Exception):
    """`stop` returned True."""


def baseline(config: Config, data: Data, stop: Callable[[], bool] = lambda: False) -> float:
    """Loss per target of the objective's trivial baseline on the validation split.

    Args:
      config: the run's configuration in its current phase.
      data: training examples, for counts, and validation examples.
      stop: asked before each batch of a bigram or trigram; True ends it by `_StoppedError`.

    Returns:
      The baseline's loss at the positions that `Baseline.target_name` names.
    """
    expected = config.objective.baseline
    if expected.loss is not None:
        return expected.loss(batches(config, data))
    if data.baseline_loss is not None:
        return data.baseline_loss
    size = data.vocabulary.size
    if expected.name == "unigram":
        of_family = "masked_targets" if config.objective.family == "encoder" else "decoder_target_tokens"
        name = expected.feature or of_family
        held_out = np.concatenate([batch[name][batch["eval_mask"] > 0] for batch in batches(config, data)])
        with contextlib.closing(data.train.batches()) as train:
            first = itertools.islice(train, COUNTED_BATCHES)
            counted = (batch[name][expected.eval_mask(batch, data.vocabulary) > 0] for batch in first)
            return unigram(size, counted, held_out)

    def until_stop(read: Iterable[Batch]) -> Iterator[Batch]:
        for batch in read:
            if stop():
                raise _StoppedError
            yield batch

    steps = counted_steps(config, data)
    with contextlib.closing(data.train.batches() if steps else data.train.epoch(config.data.batch_size)) as train:
        counted, held_out = until_stop(itertools.islice(train, steps)), until_stop(batches(config, data))
        if expected.name == "bigram":
            return bigram(size, counted, held_out)
        return trigram(size, counted, held_out, config.objective.carries)


def counted_steps(config: Config, data: Data) -> int | None:
    """Training batches that a bigram or trigram baseline is counted in; None if it is counted in the whole split.

    Args:
      config: the run's configuration in its current phase.
      data: training examples.
    """
    expected = config.objective.baseline
    if expected.loss is not None or data.baseline_loss is not None or expected.name == "unigram":
        return None
    rows = COUNTED_TEXT / max(data.text_per_row, 1)
    return math.ceil(rows / config.data.batch_size) if rows < len(data.train) else None


def verdict(expected: base.Baseline, target_loss: float, trivial: float) -> str:
    """A report line that compares the model with the baseline."""
    side = "below" if target_loss < trivial else "ABOVE"
    return (
        f"validation, {expected.target_name}: model {target_loss:.3f} {expected.unit}, {expected.name} baseline "
        f"{trivial:.3f}: {abs(trivial - target_loss):.3f} {expected.unit} {side} it"
    )


def unigram(vocab_size: int, train: Iterable[np.ndarray], held_out: np.ndarray) -> float:
    """Held-out loss of a model that ignores its input: the frequencies of the training split's targets.

        −mean ln p(v),  p(v) = (c(v) + 1) / (N + V)

    The entropy of the held-out targets themselves would be far lower where they are few: of 1,000 it is below ln 1,000,
    whatever the vocabulary.

    Args:
      vocab_size: V.
      train: ids of targets, in pieces; no more are read when there are `COUNTED` of them.
      held_out: ids of targets.

    Returns:
      Nats per token.

    Example:
      >>> round(unigram(4, [np.array([1, 1, 1]), np.array([2])], np.array([1, 2])), 4)  # −ln 4/8, −ln 2/8
      1.0397
    """
    counts = np.ones(vocab_size)
    for piece in train:
        counts += np.bincount(piece, minlength=vocab_size)
        if counts.sum() >= COUNTED + vocab_size:
            break
    return float(-np.log(counts / counts.sum())[held_out].sum() / max(held_out.size, 1))


class Bigram:
    """A bigram model with back-off to unigrams by interpolated absolute discounting.

    p(b | a) = max(c(ab) − d, 0) / c(a) + d · n(a) / c(a) · p(b), where n(a) is the number of different successors of a,
    d = 0.75, and p(b) = (c(b) + 1) / (N + V).
    """

    def __init__(self, vocab_size: int, pairs: Iterable[tuple[np.ndarray, np.ndarray]], discount: float = 0.75) -> None:
        self.vocab_size, self.discount = vocab_size, discount
        codes, counts = count_codes(left.astype(np.int64) * vocab_size + right for left, right in pairs)
        self.codes, self.counts = codes, counts
        left, right = codes // vocab_size, codes % vocab_size
        self.left_counts = np.bincount(left, counts, vocab_size)
        self.successors = np.bincount(left, minlength=vocab_size)
        unigrams = np.bincount(right, counts, vocab_size) + 1.0
        self.unigram = unigrams / unigrams.sum()

    def loss(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """−ln p(right | left) for each pair, in nats."""
        codes = left.astype(np.int64) * self.vocab_size + right
        at = np.minimum(np.searchsorted(self.codes, codes), max(len(self.codes) - 1, 0))
        pair_counts = self.counts[at] * (self.codes[at] == codes)
        total = np.maximum(self.left_counts[left], 1)
        is_known = self.left_counts[left] > 0
        backoff = np.where(is_known, self.discount * self.successors[left] / total, 1.0)
        p = np.maximum(pair_counts - self.discount, 0) / total + backoff * self.unigram[right]
        return -np.log(p)


def bigram(vocab_size: int, train: Iterable[Batch], validation: Iterable[Batch]) -> float:
    """Validation loss of a bigram model that is counted on the training split.

    Args:
      vocab_size: number of ids.
      train: batches with decoder_input_tokens, decoder_target_tokens, decoder_loss_weights.
      validation: same features.

    Returns:
      Nats per token.
    """
    model = Bigram(vocab_size, (tokens[1:] for tokens in triples(train, False)))
    total = weight = 0.0
    for _, left, right in triples(validation, False):
        total += model.loss(left, right).sum()
        weight += left.size
    return float(total / max(weight, 1))


def trigram(vocab_size: int, train: Iterable[Batch], validation: Iterable[Batch], continues: bool) -> float:
    """Validation loss of a Kneser-Ney trigram model that is counted on the training split.

    Args:
      vocab_size: number of ids.
      train: batches with decoder_input_tokens, decoder_target_tokens, decoder_loss_weights.
      validation: same features.
      continues: each row of a batch continues the text of the same row of the batch before.

    Returns:
      Nats per token.
    """
    model = KneserNey(vocab_size, triples(train, continues))
    losses = [model.loss(*chunk) for chunk in triples(validation, continues)]
    return float(np.concatenate(losses).mean())


def triples(
    batches: Iterable[Batch], continues: bool, size: int = 1_000_000
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(token before the last, last token, target) in large chunks; the first is -1 where a text begins.

    Args:
      batches: with decoder_input_tokens, decoder_target_tokens, decoder_loss_weights; padding is at the end of rows.
      continues: each row of a batch continues the text of the same row of the batch before.
      size: of a chunk, about.
    """
    chunk: list[np.ndarray] = []
    last_B: np.ndarray | None = None
    for batch in batches:
        inputs_BxL, real_BxL = batch["decoder_input_tokens"].astype(np.int64), batch["decoder_loss_weights"] > 0
        last_B = np.full(len(inputs_BxL), -1) if last_B is None or not continues else last_B
        first_BxL = np.concatenate([last_B[:, None], inputs_BxL[:, :-1]], axis=1)
        chunk.append(np.stack([x[real_BxL] for x in (first_BxL, inputs_BxL, batch["decoder_target_tokens"])]))
        final = np.maximum(real_BxL.sum(1) - 1, 0)
        last_B = np.where(real_BxL.any(1), inputs_BxL[np.arange(len(final)), final], last_B)
        if sum(x.shape[1] for x in chunk) >= size:
            yield tuple(np.concatenate(chunk, axis=1))
            chunk = []
    if chunk:
        yield tuple(np.concatenate(chunk, axis=1))
