"""BART's five noises in the order of the released code: permute sentences, mask, insert, rotate.

Paper: https://arxiv.org/abs/1910.13461

Shapes: R records · N tokens of all records end to end · S sentences · W words · K spans that a record draws at most
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from jaxpt.data._tf import seqio, tf
from jaxpt.data.preprocessors.batched import (
    Batch,
    at_starts,
    bits,
    choose,
    chosen,
    fold_in,
    one_to_one,
    origin,
    places,
    ragged_mask,
    randint,
    uniform,
)
from jaxpt.data.preprocessors.words import sentence_ends, word_starts


@one_to_one
def noise(
    batch: Batch,
    keys: tf.Tensor,
    vocabulary: seqio.Vocabulary,
    permute_sentences: float,
    mask_rate: float,
    mask_length: str,
    poisson_lambda: float,
    replace: str,
    random_probability: float,
    insert_rate: float,
    rotate: float,
    mask: int,
    vocab_size: int,
    bos: int | None,
    eos: int,
) -> Batch:
    """Noise on the inputs; the targets are the whole text.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      vocabulary: says which ids begin a word and which end a sentence.
      permute_sentences: share of a text's sentences that are permuted among themselves, rounded up. A sentence ends
        after a full stop that follows another token (`words.sentence_ends`).
      mask_rate: share of the word starts that spans are made of, rounded up.
      mask_length: "span" draws each span's length in words from a Poisson distribution, trims the last one so that the
        sum is the share, and inserts a mask for each span of no words, unless the text became longer by it; "word"
        and "subword" are spans of one.
      poisson_lambda: mean of that distribution.
      replace: what a span becomes: one mask ("span"), a mask for each token ("token"), or "nothing". Spans that touch
        stay two; a span that begins inside another is part of it.
      random_probability: share of the masks that become a random id.
      insert_rate: masks inserted, as a share of the length.
      rotate: share of the texts that begin at a random token.
      mask: id of the mask.
      vocab_size: random ids are 1 … vocab_size - 1.
      bos: id put before inputs and targets; None: nothing.
      eos: id put after inputs and targets.

    Returns:
      {"inputs": int32 [at most length + ceil((length + 2) · insert_rate) + 1 or 2], "targets": int32 [length + 1 or 2],
      "origin"}.

    Example:
      "A b. Cd e." as bytes: two sentences, of whose three word starts (the spaces) one is masked, to the word's end.

      >>> ex = {"tokens": tf.constant([ord(c) + 3 for c in "A b. Cd e."])}
      >>> settings = {"permute_sentences": 1.0, "mask_rate": 0.3, "mask_length": "word", "poisson_lambda": 3.0,
      ...             "replace": "span", "random_probability": 0.0, "insert_rate": 0.0, "rotate": 0.0}
      >>> ids = {"mask": ord("_") + 3, "vocab_size": 259, "bos": None, "eos": 1}
      >>> ex = noise.__wrapped__(ex, (0, 6), vocabulary=seqio.ByteVocabulary(), **settings, **ids)
      >>> ["".join(chr(i - 3) for i in ex[side].numpy()[:-1]) for side in ("inputs", "targets")]
      [' Cd_ b.', 'A b. Cd e.']
    """
    tokens = text = batch["tokens"]
    fill = Fill(mask, random_probability, vocab_size)
    if permute_sentences > 0:
        tokens = _permute(tokens, fold_in(keys, 1), sentence_ends(vocabulary), permute_sentences)
    if mask_rate > 0:
        starts = word_starts(vocabulary) if mask_length != "subword" else np.ones(vocab_size, bool)
        starts_N = tf.gather(tf.constant(starts), tokens.values)
        budget_R = _share(_count(starts_N, tokens), mask_rate)
        mean = poisson_lambda if mask_length == "span" else None
        tokens, empty_R = _mask(tokens, fold_in(keys, 2), starts_N, budget_R, mean, replace, fill)
        saved_R = _lengths(text) - _lengths(tokens)
        tokens = _insert(tokens, fold_in(keys, 3), tf.minimum(empty_R, saved_R), fill)
    if insert_rate > 0:
        count_R = _share(_lengths(tokens) + 2, insert_rate)  # the special tokens at both ends are counted
        tokens = _insert(tokens, fold_in(keys, 4), count_R, fill)
    if rotate > 0:
        tokens = _rotate(tokens, fold_in(keys, 5), rotate)
    return {"inputs": _enclosed(tokens, bos, eos), "targets": _enclosed(text, bos, eos)} | origin(batch)


class Fill(NamedTuple):
    """What stands for text that is gone: the mask, or a random id of 1 … vocab_size - 1."""

    mask: int
    random_probability: float
    vocab_size: int

    def ids(self, keys: tf.Tensor, x: tf.RaggedTensor, is_random_N: tf.Tensor) -> tf.Tensor:
        """An id for each place of `x`: int32 [N]."""
        if not self.random_probability:
            return tf.fill(tf.shape(is_random_N), self.mask)
        random_N = 1 + randint(keys, self.vocab_size - 1, x)
        return tf.where(is_random_N, random_N, self.mask)


def _permute(
    tokens: tf.RaggedTensor, keys: tf.Tensor, ends: tuple[np.ndarray, np.ndarray, np.ndarray], share: float
) -> tf.RaggedTensor:
    """Some sentences of each record change places with each other; tokens after the last end stay there."""
    is_stop_N, is_mark_N, is_unspaced_N = (tf.gather(tf.constant(x), tokens.values) for x in ends)
    is_stop_N |= is_mark_N & at_starts(tf.roll(is_unspaced_N, 1, 0), tokens, False)
    is_last_N = at_starts(tf.zeros_like(is_stop_N), tokens, True)
    is_last_N = tf.roll(is_last_N, -1, 0)  # a record's last token is before the next one's first
    ends_N = (is_stop_N | is_last_N) & ~at_starts(tf.roll(is_stop_N, 1, 0), tokens, False)
    sentences_R = _count(ends_N, tokens)

    place_RxS, real_RxS = choose(fold_in(keys, 1), sentences_R, _share(sentences_R, share))
    priority_RxS = tf.where(real_RxS, bits(fold_in(keys, 2), tf.range(tf.shape(place_RxS)[1])[None]), tf.int32.max)
    moved_RxS = tf.gather(place_RxS, tf.argsort(priority_RxS), batch_dims=1)
    # Which part of the text stands in each place: the sentences, and what follows the last one.
    parts_R = _count(ends_N | is_last_N, tokens)
    nth_RxS = tf.tile(tf.range(tf.reduce_max(tf.concat([parts_R, [0]], 0)))[None], [tf.size(parts_R), 1])
    at = tf.stack([tf.where(real_RxS)[:, 0], tf.cast(tf.boolean_mask(place_RxS, real_RxS), tf.int64)], 1)
    order_RxS = tf.tensor_scatter_nd_update(nth_RxS, at, tf.boolean_mask(moved_RxS, real_RxS))
    part_S = tf.boolean_mask(tf.cumsum(parts_R, exclusive=True)[:, None] + order_RxS, nth_RxS < parts_R[:, None])

    ends_S = tf.cast(tf.where(ends_N | is_last_N)[:, 0], tf.int32) + 1
    starts_S = tf.concat([[0], ends_S], 0)[: tf.size(ends_S)]
    sizes_S, starts_S = tf.gather(ends_S - starts_S, part_S), tf.gather(starts_S, part_S)
    from_N = tf.range(tf.size(ends_N)) + tf.repeat(starts_S - tf.cumsum(sizes_S, exclusive=True), sizes_S)
    return tokens.with_values(tf.gather(tokens.values, from_N))


def _mask(
    tokens: tf.RaggedTensor,
    keys: tf.Tensor,
    starts_N: tf.Tensor,
    budget_R: tf.Tensor,
    mean: float | None,
    replace: str,
    fill: Fill,
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Spans of so many words in all become masks; how many spans had no word: int32 [R]."""
    words_R = _count(starts_N, tokens)
    lengths_RxK, empty_R = span_lengths(fold_in(keys, 1), budget_R, mean)
    is_span_RxK = lengths_RxK > 0
    place_RxW = tf.range(tf.reduce_max(tf.concat([words_R, [0]], 0)))[None]
    priority_RxW = tf.where(place_RxW < words_R[:, None], bits(fold_in(keys, 2), place_RxW), -1)
    spans = tf.reduce_max(tf.concat([tf.reduce_sum(tf.cast(is_span_RxK, tf.int32), 1), [0]], 0))
    first_RxK, is_span_RxK, lengths_RxK = (
        tf.math.top_k(priority_RxW, spans).indices, is_span_RxK[:, :spans], lengths_RxK[:, :spans],
    )  # fmt: skip

    # How many spans cover each word: one more where a span begins, one fewer where it ends. Each record has a place
    # before its first word, which none covers: that of the tokens before that word.
    base_R = tf.cumsum(words_R + 1, exclusive=True) + 1
    size = tf.reduce_sum(words_R + 1) + 1
    end_RxK = tf.minimum(first_RxK + lengths_RxK, words_R[:, None])
    begins_W, finishes_W = (
        _tally(tf.boolean_mask(base_R[:, None] + place_RxK, is_span_RxK), size) for place_RxK in (first_RxK, end_RxK)
    )
    depth_W = tf.cumsum(begins_W - finishes_W)
    starts_R = tf.cast(tokens.row_starts(), tf.int32)
    opens_N = tf.scatter_nd(starts_R[:, None], tf.ones_like(starts_R), [tf.size(starts_N) + 1])[:-1]
    at_N = tf.cumsum(tf.cast(starts_N, tf.int32) + opens_N) - 1
    covered_N = tf.gather(depth_W, at_N) > 0
    head_N = starts_N & tf.gather((begins_W > 0) & (depth_W == 1), at_N)

    is_random_N = head_N & (uniform(fold_in(keys, 3), tokens) < fill.random_probability)
    if replace == "token":  # all of a span is as its head
        of_heads = tf.concat([[False], tf.boolean_mask(is_random_N, head_N)], 0)
        is_random_N = covered_N & tf.gather(of_heads, tf.cumsum(tf.cast(head_N, tf.int32)))
    masked = tokens.with_values(tf.where(covered_N, fill.ids(fold_in(keys, 4), tokens, is_random_N), tokens.values))
    stays_N = {"span": ~covered_N | head_N, "token": tf.ones_like(covered_N), "nothing": ~covered_N}[replace]
    return ragged_mask(masked, stays_N), empty_R


def span_lengths(keys: tf.Tensor, budget_R: tf.Tensor, mean: float | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Lengths in words of each record's spans, their sum the budget, and how many more were drawn as 0.

    Returns:
      (int32 [R, K], zeros after a record's spans; int32 [R]).
    """
    if mean is None:
        max_budget = tf.reduce_max(tf.concat([budget_R, [0]], 0))
        return tf.cast(tf.range(max_budget)[None] < budget_R[:, None], tf.int32), tf.zeros_like(budget_R)
    # Of a mean of at least 1 so many draws fall short of the budget in less than one record of 10^9.
    draws = 2 * tf.reduce_max(tf.concat([budget_R, [0]], 0)) + 32
    lengths_RxK = tf.searchsorted(_poisson(mean), tf.reshape(bits(keys, tf.range(draws)[None]), [-1]), side="right")
    lengths_RxK = tf.reshape(lengths_RxK, [-1, draws])
    sum_RxK = tf.minimum(tf.cumsum(lengths_RxK, axis=1), budget_R[:, None])
    before_RxK = tf.pad(sum_RxK[:, :-1], [[0, 0], [1, 0]])
    empty_R = tf.reduce_sum(tf.cast((lengths_RxK == 0) & (before_RxK < budget_R[:, None]), tf.int32), 1)
    lengths_RxK = sum_RxK - before_RxK
    order = tf.argsort(tf.cast(lengths_RxK == 0, tf.int32), stable=True)
    return tf.gather(lengths_RxK, order, batch_dims=1), empty_R


def _poisson(mean: float) -> tf.Tensor:
    """Bounds between the numbers 0, 1, … of a Poisson distribution, of 31 random bits: int32."""
    p, total, bounds = math.exp(-mean), 0.0, []
    for k in range(128):
        total += p
        bounds.append(min(round(total * 2**31), 2**31 - 1))
        p *= mean / (k + 1)
    return tf.constant(bounds, tf.int32)


def _insert(tokens: tf.RaggedTensor, keys: tf.Tensor, count_R: tf.Tensor, fill: Fill) -> tf.RaggedTensor:
    """Puts so many masks at random places of each record."""
    sizes_R = _lengths(tokens) + count_R
    is_new = chosen(fold_in(keys, 1), sizes_R, count_R)
    new = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(is_new, is_new), tf.cast(count_R, tf.int64), validate=False)
    # Rounded up, as in the released code: of a single insertion all.
    is_random = chosen(fold_in(keys, 2), count_R, _share(count_R, fill.random_probability))
    new_N, old_N = fill.ids(fold_in(keys, 3), new, is_random), tokens.values
    count = tf.cumsum(tf.cast(is_new, tf.int32))
    place = tf.range(tf.size(is_new))
    both = tf.concat([new_N, old_N], 0)
    values = tf.gather(both, tf.where(is_new, count - 1, tf.size(new_N) + place - count))
    return tf.RaggedTensor.from_row_lengths(values, tf.cast(sizes_R, tf.int64), validate=False)


def _rotate(tokens: tf.RaggedTensor, keys: tf.Tensor, share: float) -> tf.RaggedTensor:
    """Some records begin at a token drawn uniformly, what stood before it follows at the end."""
    lengths_R = _lengths(tokens)
    # The released code draws from one number more, of which the last turns nothing, as the first.
    turn_R = randint(fold_in(keys, 1), lengths_R + 1)
    turn_R = tf.where(uniform(fold_in(keys, 2)) < share, turn_R, 0)
    turn_N, length_N = tf.repeat(turn_R, lengths_R), tf.repeat(lengths_R, lengths_R)
    place_N = places(tokens)
    from_N = tf.range(tf.size(place_N)) - place_N + (place_N + turn_N) % length_N
    return tokens.with_values(tf.gather(tokens.values, from_N))


def _enclosed(tokens: tf.RaggedTensor, bos: int | None, eos: int) -> tf.RaggedTensor:
    """BOS, if there is one, the tokens, and EOS."""
    ends = [tf.fill([tokens.nrows(), 1], end) for end in (bos, eos) if end is not None]
    return tf.concat([*ends[:-1], tokens, ends[-1]], axis=1)


def _share(count_R: tf.Tensor, share: float) -> tf.Tensor:
    """So much of a count, rounded up."""
    return tf.cast(tf.math.ceil(tf.cast(count_R, tf.float64) * share), tf.int32)


def _lengths(tokens: tf.RaggedTensor) -> tf.Tensor:
    return tf.cast(tokens.row_lengths(), tf.int32)


def _count(selected_N: tf.Tensor, tokens: tf.RaggedTensor) -> tf.Tensor:
    """How many tokens of each record are selected: int32 [R]."""
    before = tf.gather(tf.pad(tf.cumsum(tf.cast(selected_N, tf.int32)), [[1, 0]]), tokens.row_splits)
    return before[1:] - before[:-1]


def _tally(at: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """How often each of 0 … size - 1 stands in `at`: int32 [size]."""
    return tf.scatter_nd(at[:, None], tf.ones_like(at), [size])
