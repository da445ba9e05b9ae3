"""Log-probabilities of given tokens, with several items in a row: what some of them read is computed once.

decoder            a context, and each continuation after it as a branch, which sees the context and itself
encoder-decoder    the context in the encoder's row; each continuation after the start token is a branch that sees it
XLNet              a text with left-to-right ranks; the query stream predicts
masked LM          a masked text

Items are segments of a row, as in packed pretraining. Only the scored positions are projected to the vocabulary. Where
experts have a capacity, which all tokens of a row share and which may depend on the row's length, each continuation is
a row alone, in a batch of rows as long as its own: so no score depends on the others.

Shapes: B rows · L length · T targets
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.decode import batching
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective
from jaxpt.objectives.formats import Format
from jaxpt.objectives.losses import token_log_probs

Found = tuple[np.ndarray, np.ndarray]
"""log-probabilities of targets, and whether each is the most likely token."""
CONTINUATIONS = 16
"""Continuations of a context in one item at most."""


class Row(NamedTuple):
    """Targets, and what the model reads before them."""

    prompt: tuple[int, ...]
    """Before the first target: of a decoder, at least one id; of an encoder the text with [MASK]."""
    targets: tuple[int, ...]
    encoder: tuple[int, ...] = ()
    """The encoder's input, of an encoder-decoder."""
    at: int = 0
    """Position of the target, of an encoder."""


class Item(NamedTuple):
    """What is computed together: rows that read the same."""

    rows: list[int]
    """Their numbers."""
    columns: dict[str, list[int]]
    """Arrays of the model by name; those of the encoder of an encoder-decoder begin with `encoder_`."""
    at: list[int]
    """Where each target of all rows is predicted, counted from the item's first token."""

    @property
    def size(self) -> batching.Size:
        """Number of tokens, and of the encoder's."""
        lengths = {name.startswith("encoder_"): len(ids) for name, ids in self.columns.items()}
        return tuple(lengths.values())


def score_rows(
    network: Network, params: Any, objective: Objective, layout: Format, rows: Sequence[Row],
    progress: Callable[[float], Any] = lambda share: None,
) -> list[Found] | None:  # fmt: skip
    """The log-probabilities of each row's targets. Equal rows are scored once; rows that read the same share that.

    Args:
      network: backbone and heads.
      params: its parameters.
      objective: the objective that the network was trained with.
      layout: how its texts begin and end.
      rows: as `loglikelihood` makes them for the network's family.
      progress: called after each batch with the share of the rows that are scored; True stops.

    Returns:
      For each row (float32 [targets], bool [targets]); None if stopped.
    """
    numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
    distinct = list(numbers)
    items = items_of(network, layout, distinct)
    network, joins_sizes = batching.independent(network)
    packed = batching.pack([item.size for item in items]) if joins_sizes else [[i] for i in range(len(items))]

    def size(row: list[int]) -> batching.Size:
        lengths = zip(*(items[i].size for i in row))
        return *(batching.bucket(sum(x)) for x in lengths), batching.bucket(sum(len(items[i].at) for i in row), least=8)

    scores: list[Found] = [(np.zeros(0, np.float32), np.zeros(0, bool))] * len(distinct)
    scored = 0
    sizes, vocab_size = [size(row) for row in packed], network.config.vocab_size
    batches = batching.batches(sizes, lambda size: sum(size[:-1]), vocab_size, joins_sizes=joins_sizes)
    for of_size, chosen, places in batches:
        filled = [[items[i] for i in packed[row]] for row in chosen]
        arrays = _arrays(distinct, filled, of_size, places)
        static = network, objective, layout, tuple(arrays)
        log_probs, is_best = batching.run(_score, static, params, *arrays.values())
        for b, of_row in enumerate(filled):
            first = 0
            for number in (number for item in of_row for number in item.rows):
                at = b, slice(first, first := first + len(distinct[number].targets))
                scores[number] = log_probs[at], is_best[at]
                scored += 1
        if progress(scored / len(distinct)):
            return None
    return [scores[numbers[row]] for row in rows]


def items_of(network: Network, layout: Format, rows: Sequence[Row]) -> list[Item]:
    """The items of a network's rows, each row in one.

    Args:
      network: backbone and heads.
      layout: how its texts begin and end.
      rows: distinct rows.

    Returns:
      Items with what `Network`'s model takes: `positions`, `branches`, `ranks`, `prefix`.
    """
    config = network.config
    of_text: dict[Any, list[int]] = {}
    for number, row in enumerate(rows):
        length, switch = len(row.prompt) + len(row.targets) - 1, config.position_switch
        is_long = switch is not None and length > switch  # branches of one segment have the same rotary positions
        of_text.setdefault((row.prompt, row.encoder, row.at, is_long), []).append(number)
    if layout.permutes:
        return [_permuted(number, row) for number, row in enumerate(rows)]
    if config.family == "encoder":
        return [_masked(numbers, rows) for numbers in of_text.values()]
    has_branches = "branches" in inspect.signature(type(network.model).decode).parameters
    if config.counts_in_row or config.has_capacity:
        has_branches = False  # a branch is not beside its context in the row, or takes the places of another branch
    max_rows = CONTINUATIONS if has_branches else 1
    chunks = [numbers[i : i + max_rows] for numbers in of_text.values() for i in range(0, len(numbers), max_rows)]
    items, has_encoder = [], config.family == "encoder_decoder"
    for chunk in chunks:
        prompt, encoder = rows[chunk[0]].prompt, list(rows[chunk[0]].encoder)
        item = _branched(chunk, rows, () if has_encoder else prompt, has_branches)
        if has_encoder:
            item.columns.update(encoder_tokens=encoder, encoder_positions=[*range(len(encoder))])
        elif layout.prefix_lm:
            item.columns["prefix"] = [int(i < len(prompt)) for i in range(len(item.columns["tokens"]))]
        items.append(item)
    return items


def _masked(numbers: list[int], rows: Sequence[Row]) -> Item:
    """A masked text, and the tokens that are asked for at its position."""
    tokens, at = list(rows[numbers[0]].prompt), rows[numbers[0]].at
    return Item(numbers, {"tokens": tokens, "positions": [*range(len(tokens))]}, [at] * len(numbers))


def _permuted(number: int, row: Row) -> Item:
    """A text from left to right; the context is visible to all tokens."""
    before, targets = len(row.prompt), [*range(len(row.targets))]
    columns = {"tokens": [*row.prompt, *row.targets], "ranks": [-1] * before + targets}
    return Item([number], columns, [before + t for t in targets])


def _branched(numbers: list[int], rows: Sequence[Row], shared: tuple[int, ...], has_branches: bool) -> Item:
    """The tokens that rows share, then the others of each row as a branch, without its last target."""
    tokens, positions, branches, at = list(shared), [*range(len(shared))], [0] * len(shared), []
    for branch, number in enumerate(numbers, 1):
        start, first = rows[number].prompt[len(shared) :], len(tokens)
        read = (*start, *rows[number].targets[:-1])
        at += [first + len(start) - 1 if start else len(shared) - 1, *range(first + len(start), first + len(read))]
        tokens += read
        positions += range(len(shared), len(shared) + len(read))
        branches += [branch] * len(read)
    columns = {"tokens": tokens, "positions": positions}
    return Item(numbers, columns | {"branches": branches} if has_branches else columns, at)


def _arrays(
    rows: Sequence[Row], packed: Sequence[Sequence[Item]], size: batching.Size, places: int
) -> dict[str, np.ndarray]:
    """A batch of rows of items: the columns, segments of the tokens from 1, positions of the targets and targets."""
    names = tuple(packed[0][0].columns)
    lengths = {False: size[0], True: size[-2]}  # of the encoder: the second one, or the only one
    arrays = {name: np.zeros((places, lengths[name.startswith("encoder_")]), np.int32) for name in names}
    segments = {name: np.zeros_like(arrays[name]) for name in names if name.endswith("tokens")}
    at, targets = (np.zeros((places, size[-1]), np.int32) for _ in range(2))
    for b, items in enumerate(packed):
        first, filled = dict.fromkeys(names, 0), 0
        for segment, item in enumerate(items, 1):
            target_slice = slice(filled, filled := filled + len(item.at))
            at[b, target_slice] = np.array(item.at) + first["tokens"]
            targets[b, target_slice] = [target for number in item.rows for target in rows[number].targets]
            for name, ids in item.columns.items():
                place = slice(first[name], first[name] + len(ids))
                arrays[name][b, place], first[name] = ids, place.stop
                if name in segments:
                    segments[name][b, place] = segment
    arrays |= {name.replace("tokens", "segment_ids"): x for name, x in segments.items()}
    return arrays | {"at": at, "targets": targets}


def _score(
    network: Network, objective: Objective, layout: Format, names: tuple[str, ...], params: Any, *arrays: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Scores of a batch of `_arrays`: float32 and bool [B, T]."""
    bound = objective.lm_network(network.bind(params))
    inputs = dict(zip(names, arrays))
    at_BxT, targets_BxT, tokens_BxL = inputs.pop("at"), inputs.pop("targets"), inputs.pop("tokens")
    if layout.permutes:
        # Without token types: types that are all equal add the same to all scores of a query.
        chosen = bound.streams(tokens_BxL, **inputs, targets=at_BxT).hidden.query_BxPxD
        return token_log_probs(bound.lm_states(chosen), bound.output_projection(), targets_BxT)
    at: dict[str, jax.Array] = {}
    if network.config.family == "encoder":
        if "at_BxT" in inspect.signature(type(network.model).encode).parameters:
            at = {"at_BxT": at_BxT}
        hidden = bound.encode(tokens_BxL, token_types=jnp.zeros_like(tokens_BxL), **inputs, **at).hidden
    elif network.config.family == "decoder":
        prefix = {"prefix": inputs.pop("prefix") > 0} if "prefix" in inputs else {}
        hidden = bound.decode(tokens_BxL, **inputs, **prefix).hidden
    else:
        segments, encoder = inputs.pop("encoder_segment_ids"), inputs.pop("encoder_tokens")
        encoded = bound.encode(encoder, segment_ids=segments, positions=inputs.pop("encoder_positions")).hidden
        hidden = bound.decode(tokens_BxL, encoded, encoder_segment_ids=segments, **inputs).hidden
    chosen = hidden if at else jnp.take_along_axis(hidden, at_BxT[..., None], axis=1)
    return token_log_probs(bound.lm_states(chosen), bound.output_projection(), targets_BxT)
