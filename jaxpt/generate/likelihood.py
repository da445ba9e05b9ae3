"""Log-likelihoods of continuations, by all three families.

decoder            Σ log p(continuation_t | context, continuation_<t), one pass
encoder-decoder    the same of the decoder's target, with the context in the encoder; or of a span:
                   context <extra_id_0>  →  <extra_id_0> continuation
XLNet              the same by the query stream with left-to-right ranks, exact in one pass
masked LM          pseudo-log-likelihood: Σ log p(token | all other tokens), each token masked in turn
                   (https://arxiv.org/abs/1910.14659); unit: word also masks the later tokens of the same word
                   (https://arxiv.org/abs/2305.10588)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.generate import batching, scores
from jaxpt.generate.formats import Format, predictor, text_format
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective
from jaxpt.objectives.seq2seq import mask_id

Ids = Sequence[int]
Row = tuple[int, tuple[list[int], ...]]
"""The item that a row of a batch belongs to, and the row of each array; the last one has an entry for each target."""


class Likelihood(NamedTuple):
    """The log-likelihood of a continuation."""

    log_probs: np.ndarray
    """Of each token in nats: float32 [tokens]."""
    is_greedy: bool
    """True if each token is the most likely one at its position."""

    @property
    def total(self) -> float:
        """Σ of the log-probabilities."""
        return float(self.log_probs.sum(dtype=np.float64))

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.log_probs)


class Likelihoods(NamedTuple):
    """Log-likelihoods in the given order."""

    items: list[Likelihood]
    truncated: int
    """Number of items whose context was truncated from the left to the model's positions."""


def loglikelihood(
    network: Network,
    params: object,
    objective: Objective,
    vocabulary: Vocabulary,
    contexts: Sequence[Ids],
    continuations: Sequence[Ids],
    *,
    form: Literal["plain", "span"] | None = None,
    unit: Literal["piece", "word"] = "piece",
    word_starts: np.ndarray | None = None,
    language: int | None = None,
    max_tokens: int = batching.MAX_TOKENS,
) -> Likelihoods:
    """Log-likelihoods of continuations given contexts.

    Args:
      network: backbone and heads.
      params: its parameters.
      objective: the objective that the network was trained with.
      vocabulary: vocabulary of the run.
      contexts: ids of each context, without special tokens that the format adds ([CLS], EOS of an encoder's input). A
        decoder's empty context becomes BOS, or EOS.
      continuations: ids of each continuation, at least one.
      form: of an encoder-decoder: `plain`, the continuation is the target; `span`, it is the missing span at the end of
        the context. Default: `span` if the objective fills sentinels.
      unit: of a masked LM: `piece`, one token is masked at a time; `word`, the later tokens of its word too.
      word_starts: bool [vocabulary], True at ids that begin a word; for unit: word.
      language: the language's token (mBART).
      max_tokens: tokens in a batch.

    Returns:
      One item per continuation, and the number of truncated contexts.

    Raises:
      UserError: an empty continuation, one that is longer than the model's positions, or a model that predicts no
        tokens.
    """
    if len(contexts) != len(continuations):
        raise UserError(f"{len(contexts)} contexts and {len(continuations)} continuations: there must be as many")
    for item, ids in enumerate(continuations):
        if not len(ids):
            raise UserError(f"continuation {item}: has no tokens, at least 1 is needed")
    batching.check_ids("context", contexts, network.config.vocab_size)
    batching.check_ids("continuation", continuations, network.config.vocab_size)
    layout = text_format(objective, network.config, vocabulary, mode="S2S", language=language)
    pairs = _Pairs(network, vocabulary, layout, list(map(list, contexts)), list(map(list, continuations)))
    if network.config.family == "encoder_decoder":
        rows = pairs.of_encoder_decoder(objective, form)
    elif network.config.family == "decoder" or layout.permutes:
        rows = pairs.of_left_to_right()
    else:
        rows = pairs.of_masked(unit, word_starts)
    static = (network, objective, layout, vocabulary.mask)
    return Likelihoods(_scored(static, params, rows, len(contexts), max_tokens), len(pairs.truncated))


@dataclasses.dataclass
class _Pairs:
    """Contexts and continuations; its methods make the rows of a batch."""

    network: Network
    vocabulary: Vocabulary
    layout: Format
    contexts: list[list[int]]
    continuations: list[list[int]]
    truncated: set[int] = dataclasses.field(default_factory=set)
    """Items whose context was truncated."""

    def of_left_to_right(self) -> list[Row]:
        """(inputs, targets) of a decoder; of XLNet, which also reads the last token, (tokens, targets)."""
        v, reads_last = self.vocabulary, self.layout.permutes
        opening = next(([i] for i in (v.bos, v.eos, v.sep) if i is not None), [])
        if not opening and not all(self.contexts):
            raise UserError("an empty context needs a vocabulary with BOS or EOS, which then begins the text")
        rows = []
        for item, targets in enumerate(self.continuations):
            read = targets if reads_last else targets[:-1]
            rows.append((item, ([*self._fitting(item, self.contexts[item] or opening, len(read), 1), *read], targets)))
        return rows

    def of_encoder_decoder(self, objective: Objective, form: Literal["plain", "span"] | None) -> list[Row]:
        """(encoder's inputs, decoder's inputs, targets)."""
        layout, blank = self.layout, []
        form = form or ("span" if layout.blank == "sentinels" else "plain")
        if form == "span" and layout.blank is None:
            raise UserError(
                f"form: span needs an objective that fills spans; objective.kind: {objective.kind} does not"
            )
        if form == "span":
            is_sentinel = layout.blank == "sentinels"
            blank = [self.vocabulary.first_sentinel if is_sentinel else mask_id(self.vocabulary, objective.kind)]
        rows = []
        for item, targets in enumerate(self.continuations):
            context, given = self._fitting(item, self.contexts[item], len(layout.wrap(blank))), []
            if form == "span" and layout.blank == "sentinels":
                given = blank
            start = [*layout.decoder_start, *given]
            if form == "span" and layout.blank == "mask":  # the target is the whole text
                context = self._fitting(item, context, len(start) + len(targets) - 1)
                start += context
            self._fitting(item, [], len(start) + len(targets) - 1)
            inputs = layout.wrap([*context, *blank])
            if not inputs:
                raise UserError(f"context {item}: has no tokens, which objective.kind: {objective.kind} needs")
            rows.append((item, (inputs, [*start, *targets[:-1]], targets)))
        return rows

    def of_masked(self, unit: Literal["piece", "word"], word_starts: np.ndarray | None) -> list[Row]:
        """(tokens, 1 where masked, position of the scored token): a row for each token of a continuation."""
        layout, rows = self.layout, []
        if self.vocabulary.mask is None:
            raise UserError(f"model.kind: {self.network.config.kind} needs a vocabulary with [MASK]")
        if unit == "word" and word_starts is None:
            raise UserError("unit: word needs the ids that begin a word; use unit: piece")
        for item, targets in enumerate(self.continuations):
            context = self._fitting(item, self.contexts[item], len(layout.wrap(targets)))
            tokens, first = layout.wrap([*context, *targets]), len(layout.before) + len(context)
            for t in range(len(targets)):
                end = t + 1
                while unit == "word" and end < len(targets) and not word_starts[targets[end]]:
                    end += 1
                masked = [int(first + t <= place < first + end) for place in range(len(tokens))]
                rows.append((item, (tokens, masked, [first + t])))
        return rows

    def _fitting(self, item: int, context: list[int], others: int, least: int = 0) -> list[int]:
        """The last tokens of a context that fit into the model's positions besides `others`, at least `least`."""
        limit = self.network.config.position_limit
        room = len(context) if limit is None else limit - others
        if room < least:
            count = len(self.continuations[item])
            raise UserError(
                f"continuation {item}: {count} tokens are too many for the model's {limit} positions; at most "
                f"{max(count - (least - room), 0)} fit"
            )
        if len(context) <= room:
            return context
        self.truncated.add(item)
        return context[len(context) - room :]


def _scored(static: tuple[Any, ...], params: Any, rows: Sequence[Row], items: int, max_tokens: int) -> list[Likelihood]:
    """The likelihood of each item: that of its rows, in their order."""
    config = static[0].config
    most = batching.bucket(max(len(arrays[-1]) for _, arrays in rows), least=1) if rows else 1
    # Few targets are padded to few: each is projected to the whole vocabulary.
    sizes = [
        (*(batching.bucket(len(x), config.position_limit) for x in arrays[:-1]),
         batching.bucket(len(arrays[-1]), least=min(most, 8)))
        for _, arrays in rows
    ]  # fmt: skip
    found: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(rows)
    for size, chosen, batch in batching.batches(sizes, sum, config.vocab_size, max_tokens):
        columns = list(zip(*(rows[i][1] for i in chosen)))
        arrays = [f for x, length in zip(columns, size) for f in batching.padded_with_lengths(x, batch, length)]
        log_probs, is_best = batching.run(_score, static, params, *arrays)
        for b, i in enumerate(chosen):
            count = len(rows[i][1][-1])
            found[i] = log_probs[b, :count], is_best[b, :count]
    of_items: list[list[Any]] = [[] for _ in range(items)]
    for (item, _), one in zip(rows, found):
        of_items[item].append(one)
    joined = [[np.concatenate(x) for x in zip(*one)] for one in of_items]
    return [Likelihood(log_probs, bool(is_best.all())) for log_probs, is_best in joined]


def _score(
    network: Network, objective: Objective, layout: Format, mask: int | None, params: Any, *arrays: jax.Array
) -> scores.Scores:
    """Scores of a batch: each array followed by the lengths of its rows."""
    bound = predictor(objective, network.bind(params))
    if network.config.family == "encoder_decoder":
        return scores.score_encoder_decoder(bound, *arrays)
    if network.config.family == "decoder":
        return scores.score_decoder(bound, *arrays, prefix_lm=layout.prefix_lm)
    if layout.permutes:
        return scores.score_permutation(bound, *arrays)
    tokens, lengths, masked, _, at, _ = arrays
    return scores.score_masked(bound, tokens, lengths, masked > 0, at, mask)
