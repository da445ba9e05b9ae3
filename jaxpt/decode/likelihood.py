"""Log-likelihoods of continuations, by all three families.

decoder            Σ log p(continuation_t | context, continuation_<t), one pass
encoder-decoder    the same of the decoder's target, with the context in the encoder; or of a span:
                   context <extra_id_0>  →  <extra_id_0> continuation
XLNet              the same by the query stream with left-to-right ranks, exact in one pass
masked LM          pseudo-log-likelihood: Σ log p(token | all other tokens), each token masked in turn
                   (https://arxiv.org/abs/1910.14659); unit: word also masks the later tokens of the same word
                   (https://arxiv.org/abs/2305.10588)

Items are packed in rows, and what several have in common is computed once (`jaxpt.decode.packed`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxpt.config import ModelConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.decode import batching
from jaxpt.decode.packed import Row, score_rows
from jaxpt.errors import UserError
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective
from jaxpt.objectives.formats import Format, Languages
from jaxpt.objectives.seq2seq import mask_id

Ids = Sequence[int]


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


class Laid(NamedTuple):
    """Continuations as the model reads them."""

    rows: list[list[Row]]
    """Of each continuation."""
    layout: Format
    truncated: int
    """As of `Likelihoods`."""


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
    progress: Callable[[float], None] = lambda share: None,
    **keys: Any,
) -> Likelihoods:
    """Log-likelihoods of continuations given contexts.

    Args:
      network: backbone and heads.
      params: its parameters.
      objective: the objective that the network was trained with.
      vocabulary: vocabulary of the run.
      contexts: ids of each context, as of `lay`.
      continuations: ids of each continuation.
      progress: called after each batch with the share of the work that is done, from 0 to 1.
      **keys: form, unit, word_starts and languages, as of `lay`.

    Returns:
      One item per continuation, and the number of truncated contexts.

    Raises:
      UserError: as `lay`.
    """
    rows, layout, truncated = lay(network, objective, vocabulary, contexts, continuations, **keys)
    row_scores = score_rows(network, params, objective, layout, [row for of_item in rows for row in of_item], progress)
    each = iter(row_scores)
    joined = [[np.concatenate(x) for x in zip(*(next(each) for _ in of_item))] for of_item in rows]
    return Likelihoods([Likelihood(log_probs, bool(is_best.all())) for log_probs, is_best in joined], truncated)


def lay(
    network: Network,
    objective: Objective,
    vocabulary: Vocabulary,
    contexts: Sequence[Ids],
    continuations: Sequence[Ids],
    *,
    form: Literal["plain", "span"] | None = None,
    unit: Literal["piece", "word"] = "piece",
    word_starts: np.ndarray | None = None,
    languages: Languages | None = None,
) -> Laid:
    """Continuations and their contexts as the model reads them.

    Args:
      network: backbone and heads.
      objective: the objective that the network was trained with.
      vocabulary: vocabulary of the run.
      contexts: ids of each context, without special tokens that the format adds ([CLS], EOS of an encoder's input). A
        decoder's empty context becomes BOS, or EOS.
      continuations: ids of each continuation, at least one.
      form: of an encoder-decoder: `plain`, the continuation is the target; `span`, it is the missing span at the end of
        the context. Default: `span` if the objective fills sentinels.
      unit: of a masked LM: `piece`, one token is masked at a time; `word`, the later tokens of its word too.
      word_starts: bool [vocabulary], True at ids that begin a word; for unit: word.
      languages: those that are read and written (mBART).

    Returns:
      The rows of each continuation.

    Raises:
      UserError: an empty continuation, one that is longer than the model's positions, a form or unit that has no
        effect on the model, or a model that predicts no tokens. What is wrong with one text begins with "context" or
        "continuation" and its index.
    """
    if len(contexts) != len(continuations):
        raise UserError(f"{len(contexts)} contexts and {len(continuations)} continuations: there must be as many")
    for item, ids in enumerate(continuations):
        if not len(ids):
            raise UserError(f"continuation {item}: has no tokens, at least 1 is needed")
    batching.check_ids("context", contexts, network.config.vocab_size)
    batching.check_ids("continuation", continuations, network.config.vocab_size)
    check_settings(network.config, form, None if unit == "piece" else unit)
    layout = objective.text_format(network.config, vocabulary, mode="S2S", languages=languages)
    check_unit(network.config, unit, layout)
    pairs = _Pairs(network, vocabulary, layout, list(map(list, contexts)), list(map(list, continuations)))
    if network.config.family == "encoder_decoder":
        rows = pairs.of_encoder_decoder(objective, form)
    elif network.config.family == "decoder" or layout.permutes:
        rows = pairs.of_left_to_right()
    else:
        rows = pairs.of_masked(unit, word_starts)
    return Laid(rows, layout, len(pairs.truncated))


def check_settings(
    model: ModelConfig, form: Literal["plain", "span"] | None, unit: Literal["piece", "word"] | None
) -> None:
    """Checks that a form or a unit has an effect on models of this family.

    Args:
      model: of any family.
      form: of an encoder-decoder; None where none is given.
      unit: of an encoder; None where none is given.

    Raises:
      UserError: it has none; the message begins with "form" or "unit".
    """
    for name, value, family in (("form", form, "encoder_decoder"), ("unit", unit, "encoder")):
        if value is not None and model.family != family:
            reason = f"{model.kind} is an {model.family}".replace("an d", "a d").replace("_", "-")
            raise UserError(f"{name}: is for {family.replace('_', '-')}s, and {reason}; leave it out")


def check_unit(model: ModelConfig, unit: Literal["piece", "word"], layout: Format) -> None:
    """Raises UserError where words are wanted of an encoder that is scored left to right: XLNet."""
    if unit == "word" and layout.permutes:
        raise UserError(f"unit: word has no effect on {model.kind}, which is scored left to right; leave it out")


def resolve_form(form: Literal["plain", "span"] | None, layout: Format) -> Literal["plain", "span"]:
    """The form of an encoder-decoder's pairs: by default `span` if its objective fills sentinels."""
    return form or ("span" if layout.blank == "sentinels" else "plain")


def blank_ids(
    form: Literal["plain", "span"], layout: Format, objective: Objective, vocabulary: Vocabulary
) -> list[int]:
    """What stands for the continuation at the end of an encoder-decoder's input: of form span the sentinel or the mask.

    Args:
      form: of `resolve_form`.
      layout: format of the network's texts.
      objective: the objective that the network was trained with.
      vocabulary: vocabulary of the run.

    Raises:
      UserError: form span, and the objective fills no spans.
    """
    if form == "plain":
        return []
    if layout.blank is None:
        raise UserError(f"form: span needs an objective that fills spans; objective.kind: {objective.kind} does not")
    return [vocabulary.first_sentinel if layout.blank == "sentinels" else mask_id(vocabulary, objective.kind)]


@dataclasses.dataclass
class _Pairs:
    """Contexts and continuations; its methods make the rows of each item."""

    network: Network
    vocabulary: Vocabulary
    layout: Format
    contexts: list[list[int]]
    continuations: list[list[int]]
    truncated: set[int] = dataclasses.field(default_factory=set)
    """Items whose context was truncated."""

    def of_left_to_right(self) -> list[list[Row]]:
        """Of a decoder, or of XLNet, which reads the last target too."""
        v, reads_last = self.vocabulary, self.layout.permutes
        opening = next(([i] for i in (v.decoder_bos, v.eos, v.sep) if i is not None), [])
        if not opening and not all(self.contexts):
            item = self.contexts.index([])
            raise UserError(f"context {item}: is empty, which needs a vocabulary with BOS or EOS to begin the text")
        rows = []
        for item, targets in enumerate(self.continuations):
            read = len(targets) - (not reads_last)
            context = self._fitting(item, self.contexts[item] or opening, read, 1)
            rows.append([Row(tuple(context), tuple(targets))])
        return rows

    def of_encoder_decoder(self, objective: Objective, form: Literal["plain", "span"] | None) -> list[list[Row]]:
        """The prompt is what the decoder reads before the first target."""
        layout, form = self.layout, resolve_form(form, self.layout)
        blank = blank_ids(form, layout, objective, self.vocabulary)
        rows = []
        for item, targets in enumerate(self.continuations):
            context, sentinels = self._fitting(item, self.contexts[item], len(layout.wrap(blank))), []
            if form == "span" and layout.blank == "sentinels":
                sentinels = blank
            start = [*layout.decoder_start, *sentinels]
            if form == "span" and layout.blank == "mask":  # the target is the whole text
                context = self._fitting(item, context, len(start) + len(targets) - 1)
                start += context
            self._fitting(item, [], len(start) + len(targets) - 1)
            inputs = layout.wrap([*context, *blank])
            if not inputs:
                raise UserError(f"context {item}: has no tokens, which objective.kind: {objective.kind} needs")
            rows.append([Row(tuple(start), tuple(targets), tuple(inputs))])
        return rows

    def of_masked(self, unit: Literal["piece", "word"], word_starts: np.ndarray | None) -> list[list[Row]]:
        """A row for each token of a continuation, with that token masked."""
        layout, mask, rows = self.layout, self.vocabulary.mask, []
        if mask is None:
            raise UserError(f"model.kind: {self.network.config.kind} needs a vocabulary with [MASK]")
        if unit == "word" and word_starts is None:
            raise UserError("unit: word needs the ids that begin a word; use unit: piece")
        for item, targets in enumerate(self.continuations):
            context = self._fitting(item, self.contexts[item], len(layout.wrap(targets)))
            tokens, first = layout.wrap([*context, *targets]), len(layout.before) + len(context)
            rows.append([])
            for t, target in enumerate(targets):
                end = t + 1
                while unit == "word" and end < len(targets) and not word_starts[targets[end]]:
                    end += 1
                masked = (*tokens[: first + t], *[mask] * (end - t), *tokens[first + end :])
                rows[-1].append(Row(masked, (target,), at=first + t))
        return rows

    def _fitting(self, item: int, context: list[int], others: int, minimum: int = 0) -> list[int]:
        """The last tokens of a context that fit into the model's positions besides `others`, at least `minimum`."""
        limit = self.network.config.position_limit
        room = len(context) if limit is None else limit - others
        if room < minimum:
            count = len(self.continuations[item])
            raise UserError(
                f"continuation {item}: {count} tokens are too many for the model's {limit} positions; at most "
                f"{max(count - (minimum - room), 0)} fit"
            )
        if len(context) <= room:
            return context
        self.truncated.add(item)
        return context[len(context) - room :]
