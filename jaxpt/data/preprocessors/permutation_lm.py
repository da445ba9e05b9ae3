"""XLNet's permutation language modelling: records of running text and a pair, then targets and an order for each.

The rules are those of XLNet's published data creation (`_split_a_and_b`, `_sample_mask`, `_local_perm`), which loops
over tokens of one record; here one turn of the loop draws an n-gram of every record, in NumPy: as a TensorFlow graph
the same took three times as long. Paper: https://arxiv.org/abs/1906.08237

Shapes: R records · N tokens of all records end to end · Z zones (two of each record) · W most tokens of a zone
V n-grams that a zone draws at most · S starts of words
"""

from __future__ import annotations

import string

import numpy as np

from jaxpt.data._tf import numpy_call, seqio, tf
from jaxpt.data.preprocessors.batched import Batch, bits, fold_in, one_to_one, places, ragged_mask, randint, uniform
from jaxpt.data.preprocessors.sentence_pairs import read_all
from jaxpt.data.preprocessors.words import word_starts
from jaxpt.data.vocabularies import pieces


def segments(
    ds: tf.data.Dataset,
    length: int,
    reuse: int,
    seed: int,
    cls: int,
    sep: int,
    separator: int | None = None,
    shard: int = 0,
) -> tf.data.Dataset:
    """Cuts running text into records `text A SEP B SEP CLS`, each `reuse` tokens further on than the one before it.

    All documents are laid end to end. A record has the next `reuse` tokens, then text A, which goes on from there and
    ends with a sentence drawn from those that end within the `length - reuse - 3` tokens left. With probability 1/2 B
    goes on from A; otherwise, and where no sentence ends in time, B begins with a sentence drawn from the whole text.
    Tokens are taken off the right of the longer one (B where both are equal) until the record has exactly `length`. So
    the first `reuse` tokens of consecutive records are the text itself, and each A is read again as the next record's
    text. A rest that fills no record is left out.

    Args:
      ds: {"tokens": int32 [any], "sentence_lengths": int32 [sentences], "origin": int64 [2]}.
      length: tokens in a record, special tokens included.
      reuse: tokens of running text at its beginning, at most length - 5.
      seed: of all draws.
      cls: id of CLS.
      sep: id of SEP.
      separator: id put after every document, a sentence of its own (XLNet's `<eod>`).
      shard: number of this run of documents in the corpus: others draw otherwise.

    Returns:
      {"tokens": int32 [length], "token_types": int32 [length] (0 up to the first SEP, 1 up to the second, 2 at CLS),
      "is_random": int32 scalar, "origin": int64 [3] = (file, document, offset in it) of the first token}.

    Example:
      >>> docs = {"tokens": [list(range(10, 22)), list(range(30, 36))], "sentence_lengths": [[3] * 4, [3] * 2]}
      >>> docs = {name: tf.ragged.constant(x, tf.int32) for name, x in docs.items()}
      >>> ds = tf.data.Dataset.from_tensor_slices({**docs, "origin": tf.constant([[0, 0], [0, 1]], tf.int64)})
      >>> for ex in segments(ds, length=11, reuse=4, seed=0, cls=1, sep=2).as_numpy_iterator():
      ...     print(ex["tokens"].tolist(), ex["is_random"])
      [10, 11, 12, 13, 14, 15, 2, 16, 17, 2, 1] 0
      [14, 15, 16, 17, 18, 2, 19, 20, 21, 2, 1] 0
      [18, 19, 20, 21, 30, 31, 2, 30, 31, 2, 1] 1
    """
    ds = ds if separator is None else _ended(ds, separator)

    def read(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        specs = ([None], tf.int32), ([None, 5], tf.int64), ([None, 3], tf.int64)
        types = [tf.TensorSpec(*spec) for spec in specs]
        return tuple(numpy_call(lambda: _bounds(*read_all(ds), length, reuse, seed, shard), [], types))

    def records(tokens_N: tf.Tensor, bounds: tf.Tensor, origins: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((bounds, origins)).map(
            lambda bounds, origin: _record(tokens_N, bounds, origin, cls, sep), num_parallel_calls=tf.data.AUTOTUNE
        )

    return tf.data.Dataset.range(1).map(read).flat_map(records)


def _ended(ds: tf.data.Dataset, separator: int) -> tf.data.Dataset:
    """Documents with the separator at their end."""

    def ended(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        more = {"tokens": separator, "sentence_lengths": 1}
        return {**ex, **{name: tf.concat([ex[name], [last]], 0) for name, last in more.items()}}

    return ds.map(ended, num_parallel_calls=tf.data.AUTOTUNE)


def _record(tokens_N: tf.Tensor, bounds: tf.Tensor, origin: tf.Tensor, cls: int, sep: int) -> dict[str, tf.Tensor]:
    """The record of a row of `_bounds`."""
    first, a_end, b, b_end, is_random = tf.unstack(bounds)
    of_a = tf.concat([tokens_N[first:a_end], [sep]], 0)
    of_b = tf.concat([tokens_N[b:b_end], [sep]], 0)
    return {
        "tokens": tf.concat([of_a, of_b, [cls]], 0),
        "token_types": tf.concat([tf.zeros_like(of_a), tf.ones_like(of_b), [2]], 0),
        "is_random": tf.cast(is_random, tf.int32),
        "origin": origin,
    }


def _bounds(
    tokens_N: np.ndarray, sentence_S1: np.ndarray, document_D1: np.ndarray, origin_Dx2: np.ndarray,
    length: int, reuse: int, seed: int, shard: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """All tokens, and each record's (first token, end of A, B's first, B's end, whether B is random) and origin."""
    total, room = sentence_S1[-1], length - reuse - 3
    first_R = np.arange(0, max(total - reuse - room, 0), reuse)
    number = np.arange(len(first_R), dtype=np.uint64) + np.uint64(shard << 32)
    keys = fold_in(np.full(len(first_R), seed, np.uint64), number)
    coin, cut, where = ((fold_in(keys, n) >> np.uint64(11)) * 2.0**-53 for n in (1, 2, 3))

    begin_R, ends = first_R + reuse, sentence_S1[1:]
    before, after = np.searchsorted(ends, begin_R, side="right"), np.searchsorted(ends, begin_R + room)
    is_random = (before == after) | (coin < 0.5)
    end_R = ends[after]
    a_end = np.where(before == after, end_R, ends[before + (cut * (after - before)).astype(np.int64)])
    b_room = np.maximum(room - (a_end - begin_R), 1)
    place = (where * (total - b_room)).astype(np.int64)
    random_b = sentence_S1[np.searchsorted(sentence_S1, place, side="right") - 1]
    random_end = ends[np.searchsorted(ends, place + b_room)]
    b, b_end = np.where(is_random, random_b, a_end), np.where(is_random, random_end, end_R)

    # First the longer text alone, until both are equal; from there on B, A, B, …
    a_size, b_size = a_end - begin_R, b_end - b
    excess = a_size + b_size - room
    alone = np.minimum(excess, np.abs(a_size - b_size))
    in_turn = excess - alone
    a_end -= np.where(a_size > b_size, alone, 0) + in_turn // 2
    b_end -= np.where(b_size > a_size, alone, 0) + (in_turn + 1) // 2

    document = np.searchsorted(starts := sentence_S1[document_D1], first_R, side="right") - 1
    origin = np.concatenate([origin_Dx2[document], (first_R - starts[document])[:, None]], axis=1)
    return tokens_N, np.stack([first_R, a_end, b, b_end, is_random], axis=1), origin


def close(ds: tf.data.Dataset, cls: int, sep: int) -> tf.data.Dataset:
    """Puts SEP and CLS after the tokens of a window; types are 0, and 2 at CLS.

    Args:
      ds: {"tokens": int32 [any], …}.
      cls: id of CLS.
      sep: id of SEP.

    Returns:
      The records with "tokens" and "token_types" int32 [any + 2].

    Example:
      >>> ds = close(tf.data.Dataset.from_tensors({"tokens": [7, 8]}), cls=1, sep=2)
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'tokens': [7, 8, 2, 1], 'token_types': [0, 0, 0, 2]}
    """

    def closed(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        types = tf.concat([tf.zeros_like(ex["tokens"]), [0, 2]], 0)
        return {**ex, "tokens": tf.concat([ex["tokens"], [sep, cls]], 0), "token_types": types}

    return ds.map(closed, num_parallel_calls=tf.data.AUTOTUNE)


@one_to_one
def permute(
    batch: Batch,
    keys: tf.Tensor,
    reuse: int,
    predictions: int,
    permutation_size: int,
    max_ngram: int,
    context: int,
    cls: int,
    sep: int,
    vocabulary: seqio.Vocabulary | None = None,
) -> Batch:
    """Chooses the tokens to predict, and the order in which a record's tokens are predicted.

    A record has two zones, its first `reuse` tokens and the rest; in each by itself, and in shares of its length:

      1. From the left, n ∈ 1 … max_ngram is drawn with p ∝ 1/n, and a context of n · context tokens around the n-gram,
         so many of them before it as drawn uniformly. The n tokens from the next start of a word on are chosen; it goes
         on after the context. The n-gram that would reach the zone's end is not taken, and ends this.
      2. Places drawn uniformly are chosen besides, up to the zone's part of `predictions` exactly.
      3. Chosen tokens are targets, but for SEP and CLS.
      4. Every run of `permutation_size` places is permuted. The rank of a target, SEP or CLS is its place in that
         order; all others share one rank before the first of their zone. A token sees lower ranks, and in the content
         stream its own: no target sees itself or a later one, all see the tokens that are not predicted, and the second
         zone sees the first as a whole, which sees nothing of the second.

    The program means n words but stops after n pieces (it looks at one piece again and again): so does this, and so
    says the paper. It permutes all runs of a zone alike; here each is drawn for itself (at its sizes they are one).

    Args:
      batch: records with "tokens" int32 [any]; their other features are passed through.
      keys: of the records' draws.
      reuse: tokens of the first zone.
      predictions: chosen tokens of a record.
      permutation_size: tokens that are permuted together.
      max_ngram: most tokens of an n-gram.
      context: tokens of context for each token chosen.
      cls: id of CLS.
      sep: id of SEP.
      vocabulary: says where words start; every special token and mark of punctuation starts one too.

    Returns:
      The records with "order" int32 [any], the ranks, and "masked_positions" (ascending) and "masked_targets", both
      int32 [targets].

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [35, 100, 35, 102, 35, 104, 35, 106, 35, 108, 2, 1]})
      >>> with seqio.map_seed_manager(1):
      ...     ds = permute(ds, reuse=6, predictions=4, permutation_size=6, max_ngram=1, context=2, cls=1, sep=2,
      ...                  vocabulary=seqio.ByteVocabulary())
      >>> ex = next(ds.as_numpy_iterator())
      >>> ex["order"].tolist(), ex["masked_positions"].tolist(), ex["masked_targets"].tolist()
      ([-1, -1, 3, -1, 4, -1, 9, 6, 8, 6, 12, 7], [2, 4, 6, 8], [35, 35, 35, 35])
    """
    tokens = batch["tokens"]
    special_N = (tokens.values == cls) | (tokens.values == sep)
    begins_N = tf.gather(tf.constant(word_begins(vocabulary, (cls, sep))), tokens.values)

    def drawn(
        keys_R: np.ndarray, lengths_R: np.ndarray, begins_N: np.ndarray, special_N: np.ndarray
    ) -> list[np.ndarray]:
        zones = Zones(keys_R, lengths_R, reuse, predictions)
        target_N = _filled(zones, ngrams(zones, begins_N, max_ngram, context)) & ~special_N
        ranks_N = np.where(target_N | special_N, _shuffled(zones, permutation_size), -1)
        # Zone z of a record has the ranks from its first place + z on; the one before them is its context's.
        first_Z = np.tile([0, reuse + 1], len(keys_R))
        return [(ranks_N + np.repeat(first_Z, zones.sizes_Z)).astype(np.int32), target_N]

    drawn_from = [keys, tokens.row_lengths(), begins_N, special_N]
    ranks_N, target_N = numpy_call(drawn, drawn_from, [tf.TensorSpec([None], dtype) for dtype in (tf.int32, tf.bool)])
    return {
        **batch,
        "order": tokens.with_values(ranks_N),
        "masked_positions": ragged_mask(tokens.with_values(places(tokens)), target_N),
        "masked_targets": ragged_mask(tokens, target_N),
    }


def word_begins(vocabulary: seqio.Vocabulary, special: tuple[int, ...]) -> np.ndarray:
    """Whether an id starts a word: bool [ids]."""
    marks = [len(name) == 1 and name in string.punctuation for name in pieces(vocabulary)]
    begins = word_starts(vocabulary) | np.array(marks)
    begins[list(special)] = True
    return begins


class Zones:
    """The two zones of each record, one after the other."""

    def __init__(self, keys_R: np.ndarray, lengths_R: np.ndarray, reuse: int, predictions: int) -> None:
        first_R = np.minimum(lengths_R, reuse)
        second_R = predictions * (lengths_R - first_R) // np.maximum(lengths_R, 1)
        self.keys_Z = np.stack([fold_in(keys_R, 1), fold_in(keys_R, 2)], axis=1).ravel()
        self.sizes_Z = np.stack([first_R, lengths_R - first_R], axis=1).ravel()
        self.goals_Z = np.stack([predictions - second_R, second_R], axis=1).ravel()
        """Places to be chosen."""
        self.number_W = np.arange(self.sizes_Z.max(initial=0))
        self.real_ZxW = self.number_W < self.sizes_Z[:, None]


def ngrams(zones: Zones, begins_N: np.ndarray, max_ngram: int, context: int) -> np.ndarray:
    """Draws n-grams of each zone from its left to its right: bool [N], true where one is."""
    keys_Z, end_Z = fold_in(zones.keys_Z, 1), np.cumsum(zones.sizes_Z)
    draw_V = np.arange(zones.goals_Z.max(initial=0))[None]  # each takes a token at least
    shares = 1 / np.arange(1, max_ngram + 1)
    steps = (np.cumsum(shares)[:-1] / shares.sum()).astype(np.float32)
    n_ZxV = 1 + np.searchsorted(steps, uniform(fold_in(keys_Z, 1), draw_V), side="right")
    n_ZxV = np.diff(np.minimum(np.cumsum(n_ZxV, axis=1), zones.goals_Z[:, None]), prepend=0)
    before_ZxV = randint(fold_in(keys_Z, 2), n_ZxV * context, draw_V)

    start_S = np.append(np.flatnonzero(begins_N), len(begins_N))
    edges_N1 = np.zeros(len(begins_N) + 1, np.int8)  # 1 where an n-gram begins, -1 after its end; no two touch
    at_Z = end_Z - zones.sizes_Z
    for n_Z, before_Z in zip(n_ZxV.T, before_ZxV.T):
        start_Z = start_S[np.searchsorted(start_S[:-1], at_Z + before_Z)]
        is_taken_Z = (n_Z > 0) & (start_Z + n_Z < end_Z)
        if not is_taken_Z.any():
            break
        edges_N1[start_Z[is_taken_Z]] = 1
        edges_N1[(start_Z + n_Z)[is_taken_Z]] = -1
        at_Z = np.where(is_taken_Z, start_Z + n_Z + n_Z * context - before_Z, end_Z)
    return np.cumsum(edges_N1[:-1], dtype=np.int8) > 0


def _filled(zones: Zones, ngrams_N: np.ndarray) -> np.ndarray:
    """The n-grams, and places drawn besides up to the goals: bool [N]."""
    real_ZxW, width = zones.real_ZxW, len(zones.number_W)
    priority_ZxW = bits(fold_in(zones.keys_Z, 2), zones.number_W[None]).astype(np.int64) << 31 | zones.number_W
    priority_ZxW[~real_ZxW] = -1
    priority_ZxW[real_ZxW] = np.where(ngrams_N, np.iinfo(np.int64).max, priority_ZxW[real_ZxW])
    nth_Z = width - np.clip(zones.goals_Z, 1, max(width, 1))
    threshold_Zx1 = np.take_along_axis(np.sort(priority_ZxW, axis=1), nth_Z[:, None], axis=1)
    return ((priority_ZxW >= threshold_Zx1) & (zones.goals_Z > 0)[:, None])[real_ZxW]


def _shuffled(zones: Zones, size: int) -> np.ndarray:
    """The place of each token in its zone, every `size` of them permuted: int [N]."""
    run_W, number_W = np.divmod(zones.number_W, size)
    clock_ZxW = bits(fold_in(zones.keys_Z, 3), zones.number_W[None]).astype(np.int64)
    clock_ZxW[~zones.real_ZxW] = 2**31 - 1
    # Sorting by (run, clock, number in the run) in one number is several times as fast as an argsort.
    wide = size.bit_length()
    order_ZxW = np.sort(run_W << (31 + wide) | clock_ZxW << wide | number_W, axis=1) & (1 << wide) - 1
    place_ZxW = np.empty_like(order_ZxW)
    np.put_along_axis(place_ZxW, order_ZxW + run_W * size, zones.number_W[None], axis=1)
    return place_ZxW[zones.real_ZxW]
