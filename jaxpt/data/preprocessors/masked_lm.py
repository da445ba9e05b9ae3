"""BERT's masking and its kin, one record to one example. Paper: https://arxiv.org/abs/1810.04805.

Shapes: R records · N tokens of all records end to end · M chosen tokens of all records · P most that one record has ·
C most tokens of a record that may be chosen · V ids
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from jaxpt.data._tf import numpy_call, seqio, tf
from jaxpt.data.preprocessors import units
from jaxpt.data.preprocessors.batched import Batch, bits, choose, fold_in, one_to_one, places, randint, uniform
from jaxpt.data.preprocessors.words import WordRule, word_starts

Rounding = Literal["nearest", "random", "up"]
Counts = Callable[[], np.ndarray]
"""How often each id is in the training records: [V], computed when it is called."""


@one_to_one
def mask(
    batch: Batch,
    keys: tf.Tensor,
    rate: float,
    max_predictions: int,
    mask: int,
    mask_probability: float,
    random_probability: float,
    vocab_size: int,
    cls: int,
    sep: int,
    unit: units.Unit = "piece",
    word_rule: WordRule = "spaces",
    shares: Sequence[float] = (),
    rounding: Rounding = "nearest",
    never: Sequence[int] = (),
    random_ids: Literal["uniform", "corpus"] = "uniform",
    frequency_exponent: float = 0.0,
    skip: Sequence[int] = (),
    mask_specials: bool = False,
    token_counts: Counts | None = None,
    vocabulary: seqio.Vocabulary | None = None,
) -> Batch:
    """Chooses tokens to predict; most of them become [MASK].

    At most n = min(max_predictions, how many `rounding` makes of the rate, how many there are besides [CLS] and [SEP]):

        nearest  max(1, round(rate · length)), half to even, the special tokens counted in the length (BERT)
        random   floor(rate · length + u), u uniform on [0, 1) (RoBERTa)
        up       ceil(rate · length), the special tokens not counted (SpanBERT)

    Single pieces are exactly n; `units.choose` says how words, n-grams, spans and runs are chosen. Each piece, or of
    spans each unbroken run of chosen pieces as one, becomes [MASK], random ids, or stays.

        piece    every set of n is equally likely; with an exponent e, drawn one by one with weights max(count, 1)^e
        draw     n draws with replacement: a position may be there several times, and is masked if one draw says so
        window   one of every int(1 / rate) pieces, and of the rest; after n of them nothing is chosen

    Args:
      batch: records with "tokens" int32 [length], and possibly "end_is_text", an int32 scalar: where it is 1, the last
        token is like any other, though it be [SEP]; their other features are passed through.
      keys: of the records' draws.
      rate: fraction of tokens chosen.
      max_predictions: most tokens chosen.
      mask: id of [MASK].
      mask_probability: share of the chosen tokens that become [MASK].
      random_probability: share that become a random id; the rest stay.
      vocab_size: random ids are below it.
      cls: id of [CLS], not chosen.
      sep: id of [SEP], not chosen.
      unit: what is chosen as a whole, and how.
      word_rule: what starts a word (`word_starts`).
      shares: of units of 1, 2, … words (of a run: pieces); sums to 1. Not for pieces.
      rounding: of the number chosen.
      never: ids that are no random ids, ascending.
      random_ids: random ids are uniform, or those of random tokens of the training records, [CLS] and [SEP] left out.
      frequency_exponent: e, of single pieces.
      skip: more ids that are never chosen.
      mask_specials: [CLS] and [SEP] are chosen like any other token.
      token_counts: how often ids are in the training records, where `random_ids` or e want it.
      vocabulary: says where words start (`word_starts`). Not for pieces.

    Returns:
      The records with masked "tokens", and "masked_positions" (ascending) and "masked_targets" (the original ids at
      all of these positions), both int32 [n].

    Example:
      >>> import seqio
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [101, 11, 12, 13, 14, 15, 16, 17, 18, 102]})
      >>> with seqio.map_seed_manager(1):
      ...     ds = mask(ds, rate=0.25, max_predictions=20, mask=103, mask_probability=1.0, random_probability=0.0,
      ...               vocab_size=200, cls=101, sep=102)
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'tokens': [101, 11, 12, 13, 14, 15, 103, 17, 103, 102], 'masked_positions': [6, 8], 'masked_targets': [16, 18]}
    """
    tokens = batch["tokens"]
    tokens_N, start_R = tokens.values, tokens.row_starts()
    candidates = tf.where(_is_text(batch, () if mask_specials else (cls, sep, *skip)))[:, 0]
    first_R1 = tf.searchsorted(candidates, tokens.row_splits)
    sizes_R = first_R1[1:] - first_R1[:-1]
    n_R = _count(rounding, rate, tokens.row_lengths(), sizes_R, keys)
    n_R = tf.minimum(tf.minimum(n_R, max_predictions), sizes_R)
    if unit == "piece" and frequency_exponent:
        weight_V = np.maximum(token_counts(), 1.0) ** frequency_exponent
        place_RxP, real_RxP = _choose_by_weight(fold_in(keys, 1), tokens_N, candidates, first_R1, n_R, weight_V)
    elif unit in _PIECES:
        place_RxP, real_RxP = _PIECES[unit](fold_in(keys, 1), sizes_R, n_R, int(1 / rate))
    else:
        starts_V = np.ones(vocab_size, bool) if unit == "run" else word_starts(vocabulary, word_rule)
        place_RxP = _choose_units(fold_in(keys, 1), tokens_N, candidates, first_R1, n_R, starts_V, unit, shares)
        real_RxP = place_RxP < tf.int32.max
    place_M = tf.boolean_mask(first_R1[:-1, None] + tf.where(real_RxP, place_RxP, 0), real_RxP)
    at_M = tf.gather(candidates, place_M)
    targets_M = tf.gather(tokens_N, at_M)
    record_M = tf.where(real_RxP)[:, 0]
    positions_M = tf.cast(at_M - tf.gather(start_R, record_M), tf.int32)

    number = tf.range(tf.shape(place_RxP)[1])[None]
    draw_M = tf.boolean_mask(uniform(fold_in(keys, 2), number), real_RxP)
    if unit == "span":
        draw_M = _one_for_each_run(draw_M, at_M, record_M)
    random_M = tf.boolean_mask(bits(fold_in(keys, 3), number), real_RxP)
    if random_ids == "corpus":
        random_M = _corpus_ids(token_counts(), {cls, sep, *never}, random_M)
    else:
        random_M = _random_ids(vocab_size, never, random_M)
    if unit == "draw":
        draw_M, random_M = _one_for_each_position(draw_M, random_M, at_M)
    corrupted_M = tf.where(draw_M < mask_probability + random_probability, random_M, targets_M)
    corrupted_M = tf.where(draw_M < mask_probability, mask, corrupted_M)
    chosen_R = tf.reduce_sum(tf.cast(real_RxP, tf.int64), axis=1)
    return {
        **batch,
        "tokens": tokens.with_values(tf.tensor_scatter_nd_update(tokens_N, at_M[:, None], corrupted_M)),
        "masked_positions": tf.RaggedTensor.from_row_lengths(positions_M, chosen_R, validate=False),
        "masked_targets": tf.RaggedTensor.from_row_lengths(targets_M, chosen_R, validate=False),
    }


def _is_text(batch: Batch, never: Sequence[int]) -> tf.Tensor:
    """Which tokens may be chosen: bool [N]."""
    tokens = batch["tokens"]
    is_text_N = tf.ones_like(tokens.values, tf.bool)
    for i in never:
        is_text_N &= tokens.values != i
    if "end_is_text" in batch:
        last_R = tf.where(batch["end_is_text"] > 0, tf.cast(tokens.row_lengths(), tf.int32) - 1, -1)
        is_text_N |= places(tokens) == tf.repeat(last_R, tokens.row_lengths())
    return is_text_N


def _count(rounding: Rounding, rate: float, lengths_R: tf.Tensor, sizes_R: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """How many tokens the rate asks for: int32 [R]. Lengths count special tokens, sizes do not."""
    if rounding == "up":
        return tf.cast(tf.math.ceil(rate * tf.cast(sizes_R, tf.float64)), tf.int32)
    exact_R = rate * tf.cast(lengths_R, tf.float64)
    if rounding == "nearest":
        return tf.maximum(tf.cast(tf.round(exact_R), tf.int32), 1)
    return tf.cast(tf.floor(exact_R + tf.cast(uniform(fold_in(keys, 4)), tf.float64)), tf.int32)


def _with_replacement(keys: tf.Tensor, sizes_R: tf.Tensor, n_R: tf.Tensor, _: int) -> tuple[tf.Tensor, tf.Tensor]:
    """As `choose`, drawn with replacement (ELECTRA): places ascending, some of them several times."""
    number = tf.range(tf.reduce_max(tf.concat([n_R, [0]], 0)))[None]
    is_real = number < n_R[:, None]
    drawn = randint(keys, sizes_R[:, None], number)
    return tf.sort(tf.where(is_real, drawn, tf.int32.max)), is_real


def _one_a_window(keys: tf.Tensor, sizes_R: tf.Tensor, n_R: tf.Tensor, window: int) -> tuple[tf.Tensor, tf.Tensor]:
    """As `choose`, one place of each window, up to the n-th window (DeBERTa)."""
    n_R = tf.minimum(n_R, (sizes_R + window - 1) // window)
    number = tf.range(tf.reduce_max(tf.concat([n_R, [0]], 0)))[None]
    is_real = number < n_R[:, None]
    first = number * window
    drawn = first + randint(keys, tf.minimum(window, sizes_R[:, None] - first), number)
    return tf.where(is_real, drawn, tf.int32.max), is_real


_PIECES = {"piece": lambda keys, sizes_R, n_R, _: choose(keys, sizes_R, n_R), "draw": _with_replacement,
           "window": _one_a_window}  # fmt: skip


def _choose_by_weight(
    keys: tf.Tensor, tokens_N: tf.Tensor, candidates: tf.Tensor, first_R1: tf.Tensor, n_R: tf.Tensor,
    weight_V: np.ndarray,
) -> tuple[tf.Tensor, tf.Tensor]:  # fmt: skip
    """As `choose`, without replacement, by the weights of the ids: the first n by -ln(1 - u) / weight."""
    sizes_R = first_R1[1:] - first_R1[:-1]
    place_C = tf.range(tf.reduce_max(tf.concat([sizes_R, [0]], 0)), dtype=tf.int64)[None]
    is_place_RxC = place_C < tf.cast(sizes_R, tf.int64)[:, None]
    at_RxC = tf.where(is_place_RxC, tf.cast(first_R1[:-1, None], tf.int64) + place_C, 0)
    ids_RxC = tf.gather(tokens_N, tf.gather(tf.concat([candidates, [0]], 0), at_RxC))
    clock_RxC = -tf.math.log1p(-uniform(keys, place_C)) / tf.gather(tf.constant(weight_V, tf.float32), ids_RxC)
    max_count = tf.reduce_max(tf.concat([n_R, [0]], 0))
    best = tf.math.top_k(tf.where(is_place_RxC, -clock_RxC, -np.inf), max_count).indices
    is_real = tf.range(max_count)[None] < n_R[:, None]
    return tf.sort(tf.where(is_real, best, tf.int32.max)), is_real


def _choose_units(
    keys: tf.Tensor, tokens_N: tf.Tensor, candidates: tf.Tensor, first_R1: tf.Tensor, n_R: tf.Tensor,
    starts_V: np.ndarray, unit: units.Unit, shares: Sequence[float],
) -> tf.Tensor:  # fmt: skip
    """Places among each record's candidates that words, n-grams, spans or runs take: int32 [R, P], filled up."""

    def chosen(keys_R: np.ndarray, *text: np.ndarray) -> np.ndarray:
        *text, n_R = text
        return units.choose(keys_R, units.words(*text, starts_V), n_R, unit, shares)

    text = [keys, tokens_N, candidates, first_R1, n_R]
    return numpy_call(chosen, text, [tf.TensorSpec([None, None], tf.int32)])[0]


def _one_for_each_run(draw_M: tf.Tensor, at_M: tf.Tensor, record_M: tf.Tensor) -> tf.Tensor:
    """Each unbroken run of chosen pieces has the draw of its first piece."""
    goes_on_M = (at_M[1:] == at_M[:-1] + 1) & (record_M[1:] == record_M[:-1])
    first_M = tf.concat([[True], ~goes_on_M], 0)[: tf.size(at_M)]
    return tf.gather(tf.boolean_mask(draw_M, first_M), tf.cumsum(tf.cast(first_M, tf.int32)) - 1)


def _one_for_each_position(draw_M: tf.Tensor, random_M: tf.Tensor, at_M: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each position has the least of its draws, and the random id of the first."""
    first_M = tf.concat([[True], at_M[1:] != at_M[:-1]], 0)[: tf.size(at_M)]
    position_M = tf.cumsum(tf.cast(first_M, tf.int32)) - 1
    min_draw = tf.math.segment_min(draw_M, position_M)
    return tf.gather(min_draw, position_M), tf.gather(tf.boolean_mask(random_M, first_M), position_M)


def _corpus_ids(counts_V: np.ndarray, never: set[int], x: tf.Tensor) -> tf.Tensor:
    """Bits (0 … 2^31 - 1) → ids in the shares of their counts."""
    counts_V = np.where(np.isin(np.arange(len(counts_V)), list(never)), 0, counts_V)
    ends_V = np.cumsum(counts_V if counts_V.any() else np.ones_like(counts_V)).astype(np.float64)
    drawn = tf.cast(x, tf.float64) * (ends_V[-1] / 2.0**31)
    return tf.cast(tf.searchsorted(tf.constant(ends_V), drawn, side="right"), tf.int32)


def _random_ids(vocab_size: int, never: Sequence[int], x: tf.Tensor) -> tf.Tensor:
    """Bits (0 … 2^31 - 1) → ids of the vocabulary but for those of `never`, which ascend."""
    ids = tf.bitwise.right_shift(tf.cast(x, tf.int64) * (vocab_size - len(never)), tf.constant(31, tf.int64))
    for i in never:
        ids += tf.cast(ids >= i, tf.int64)
    return tf.cast(ids, tf.int32)
