"""Log-likelihoods of continuations, by all three families.

decoder            Σ log p(continuation_t | context, continuation_<t), one pass
encoder-decoder    the same of the decoder's target, with the context in the encoder; or of a span:
                   context <extra_id_0>  →  <extra_id_0> continuation
XLNet              the same by the query stream with left-to-right ranks, exact in one pass
masked LM          pseudo-log-likelihood: Σ log p(token | all other tokens), each token masked in turn
                   (https://arxiv.org/abs/1910.14659); unit: word also masks the later tokens of the same word
                   (https://arxiv.org/abs/2305.10588)

What several items have in common is computed once: a context, an encoder's input, a masked text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.generate import batching, scores
from jaxpt.generate.decoding import has_cache
from jaxpt.generate.formats import Format, predictor, text_format
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective
from jaxpt.objectives.seq2seq import mask_id

Ids = Sequence[int]
Found = tuple[np.ndarray, np.ndarray]
"""log-probabilities of targets, and whether each is the most likely token."""
SHARED = 8
"""A prompt of so many tokens is read once for all of its continuations; of a shorter one each row has a copy."""
CONTINUATIONS = 16
"""Continuations of a prompt that are scored together at most."""


class Row(NamedTuple):
    """Targets, and what the model reads before them."""

    prompt: tuple[int, ...]
    """Before the first target: of a decoder, at least one id; of an encoder the text with [MASK]."""
    targets: tuple[int, ...]
    encoder: tuple[int, ...] = ()
    """The encoder's input, of an encoder-decoder."""
    at: int = 0
    """Position of the target, of an encoder."""


class Group(NamedTuple):
    """Rows that read the same."""

    rows: list[int]
    """Their numbers."""
    read: list[Sequence[int]]
    """What they read, for each array of the program but the targets."""
    has_prompt: bool
    """The last array is a prompt that several continuations follow; otherwise a row's targets are in it."""


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
    max_tokens: int | None = None,
    progress: Callable[[float], None] | None = None,
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
      max_tokens: tokens in a batch on each device; by default 16,384, on a CPU 2,048.
      progress: called after each batch with the share of the work that is done, from 0 to 1.

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
    found = score_rows(
        network, params, objective, layout, [row for of_item in rows for row in of_item], max_tokens, progress
    )
    each = iter(found)
    joined = [[np.concatenate(x) for x in zip(*(next(each) for _ in of_item))] for of_item in rows]
    items = [Likelihood(log_probs, bool(is_best.all())) for log_probs, is_best in joined]
    return Likelihoods(items, len(pairs.truncated))


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
        opening = next(([i] for i in (v.bos, v.eos, v.sep) if i is not None), [])
        if not opening and not all(self.contexts):
            raise UserError("an empty context needs a vocabulary with BOS or EOS, which then begins the text")
        rows = []
        for item, targets in enumerate(self.continuations):
            read = len(targets) - (not reads_last)
            context = self._fitting(item, self.contexts[item] or opening, read, 1)
            rows.append([Row(tuple(context), tuple(targets))])
        return rows

    def of_encoder_decoder(self, objective: Objective, form: Literal["plain", "span"] | None) -> list[list[Row]]:
        """The prompt is what the decoder reads before the first target."""
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
                shown = (*tokens[: first + t], *[mask] * (end - t), *tokens[first + end :])
                rows[-1].append(Row(shown, (target,), at=first + t))
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


def score_rows(
    network: Network, params: Any, objective: Objective, layout: Format, rows: Sequence[Row], max_tokens: int | None,
    progress: Callable[[float], None] | None = None,
) -> list[Found]:  # fmt: skip
    """The log-probabilities of each row's targets. Equal rows are scored once; rows that read the same share that.

    Args:
      network: backbone and heads.
      params: its parameters.
      objective: the objective that the network was trained with.
      layout: how its texts begin and end.
      rows: as `_Pairs` makes them for the network's family.
      max_tokens: tokens in a batch on each device.
      progress: called after each batch with the share of the rows that are scored.

    Returns:
      For each row (float32 [targets], bool [targets]).
    """
    config, numbers = network.config, {row: number for number, row in enumerate(dict.fromkeys(rows))}
    distinct = list(numbers)
    groups = _groups(network, layout, distinct)
    most = batching.power_of_two(max((len(row.targets) for row in distinct), default=1))

    def size(group: Group) -> batching.Size:
        """(rows, lengths of what they read, targets); targets first where they follow a prompt, in all rows."""
        lengths = [batching.bucket(len(x), config.position_limit, least=1) for x in group.read]
        targets = batching.bucket(max(len(distinct[i].targets) for i in group.rows), least=1, step=4)
        if group.has_prompt:
            return len(group.rows), targets, *lengths
        return len(group.rows), *lengths, max(targets, min(most, 8))  # few are padded to few: each is projected

    found: list[Found] = [(np.zeros(0, np.float32), np.zeros(0, bool))] * len(distinct)
    scored = 0
    for has_prompt in (True, False):
        chosen = [group for group in groups if group.has_prompt == has_prompt]
        made = batching.batches(
            [size(group) for group in chosen], lambda size: size[0] * sum(size[1:]), config.vocab_size, max_tokens,
            rows_of=lambda size: size[0],
        )  # fmt: skip
        for of_size, items, places in made:
            arrays = _arrays(distinct, [chosen[i] for i in items], of_size, places)
            log_probs, is_best = batching.run(_score, (network, objective, layout, has_prompt), params, *arrays)
            for b, item in enumerate(items):
                for k, i in enumerate(chosen[item].rows):
                    at = b * of_size[0] + k, slice(len(distinct[i].targets))
                    found[i] = log_probs[at], is_best[at]
                    scored += 1
            if progress is not None:
                progress(scored / len(distinct))
    return [found[numbers[row]] for row in rows]


def _arrays(rows: Sequence[Row], groups: Sequence[Group], size: batching.Size, places: int) -> list[np.ndarray]:
    """A batch of groups: each array followed by the lengths of its rows."""
    arrays: list[np.ndarray] = []
    has_prompt = groups[0].has_prompt
    most, lengths = (size[1], size[2:]) if has_prompt else (size[-1], size[1:-1])
    for column, length in enumerate(lengths):
        is_prompt = has_prompt and column == len(lengths) - 1
        arrays += batching.padded_with_lengths([group.read[column] for group in groups], places, length, is_prompt)
    targets: list[tuple[int, ...]] = []
    for group in groups:
        targets += [rows[i].targets for i in group.rows] + [()] * (size[0] - len(group.rows))
    return [*arrays, *batching.padded_with_lengths(targets, places * size[0], most)]


def _groups(network: Network, layout: Format, rows: Sequence[Row]) -> list[Group]:
    """The groups of rows, each row in one."""
    config, of_prompt = network.config, {}
    for number, row in enumerate(rows):
        of_prompt.setdefault((row.prompt, row.encoder, row.at), []).append(number)
    is_masked = config.family == "encoder" and not layout.permutes
    can_share = is_masked or (config.family != "encoder" and has_cache(network))
    groups = []
    for (prompt, encoder, at), numbers in of_prompt.items():
        before = [encoder] if config.family == "encoder_decoder" else []
        if not can_share or (not is_masked and len(prompt) + len(encoder) < SHARED):
            chunks = [[number] for number in numbers]
        else:  # those of similar length together
            numbers = sorted(numbers, key=lambda number: len(rows[number].targets))
            chunks = [numbers[i : i + CONTINUATIONS] for i in range(0, len(numbers), CONTINUATIONS)]
        for chunk in chunks:
            targets, has_prompt = rows[chunk[0]].targets, len(chunk) > 1 and not is_masked
            if is_masked:
                read = [prompt, (at,)]
            elif has_prompt:
                read = [*before, prompt]
            else:
                read = [*before, prompt + (targets if layout.permutes else targets[:-1])]
            groups.append(Group(chunk, read, has_prompt))
    return groups


def _score(
    network: Network, objective: Objective, layout: Format, has_prompt: bool, params: Any, *arrays: jax.Array
) -> scores.Scores:
    """Scores of a batch of `_arrays`."""
    bound = predictor(objective, network.bind(params))
    *read, targets, _ = arrays
    if has_prompt:
        *encoder, prompts, lengths = read
        return scores.score_shared(bound, prompts, lengths, targets, *encoder, prefix_lm=layout.prefix_lm)
    if network.config.family == "encoder_decoder":
        return scores.score_encoder_decoder(bound, *arrays)
    if network.config.family == "decoder":
        return scores.score_decoder(bound, *arrays, prefix_lm=layout.prefix_lm)
    if layout.permutes:
        return scores.score_permutation(bound, *arrays)
    tokens, lengths, at, _ = read
    return scores.score_masked(bound, tokens, lengths, at, targets)
