"""BERT's sentence pairs: [CLS] a [SEP] b [SEP], where b follows a, or is drawn from another document.

The rules are those of BERT's published data creation. It loops over sentences and tokens; here a text is a range in
one array of all tokens, and one step makes the next pair of every document of a group at a time.
Paper: https://arxiv.org/abs/1810.04805.

Memory: the documents (of one shard of the corpus, in a run) are held while the pairs are made, 4 bytes a token and 8 a
sentence, two to three times that for a moment at the start. This runs once; the pairs are stored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxpt.data._tf import numpy_call, tf
from jaxpt.data.preprocessors.documents import ragged

_BATCH = 1024  # documents read at a time
_GROUP = 128  # documents whose pairs are made at a time


class _Corpus(NamedTuple):
    """All documents: S sentences, D documents, N tokens."""

    tokens_N: tf.Tensor
    sentence_S1: tf.Tensor  # int64: where each sentence begins in tokens; N at the end
    document_D1: tf.Tensor  # int64: where each document begins in sentences; S at the end
    origin_Dx2: tf.Tensor


class _Rules(NamedTuple):
    most: int
    """Tokens of a pair without the special ones."""
    short_probability: float
    single: bool
    swap: bool
    random_share: float
    least: int


def make(
    ds: tf.data.Dataset,
    length: int,
    short_probability: float,
    dupe_factor: int,
    seed: int,
    cls: int,
    sep: int,
    single: bool = False,
    swap: bool = False,
    random_share: float = 0.5,
    least: int = 1,
    shard: int = 0,
) -> tf.data.Dataset:
    """Makes pairs of texts out of documents, in `dupe_factor` passes, each with other pairs.

    In each pass a document aims at pairs of length - 3 tokens, or with `short_probability` at a number drawn from
    2 … length - 3. Whole sentences are collected up to the aim; the first of them, a number drawn from 1 … n - 1, are
    text a. With probability `random_share`, and always if there is one sentence alone, text b is drawn: sentences from
    a random one on of a random document (another one, if 10 draws find it), up to the aim; the sentences not used are
    put back. Otherwise b is the rest. A pair that is too long loses tokens of its longer text (b if they are equal),
    each from the front or the back by the toss of a coin.

    With `swap`, b is always the rest, but a and b change places with this probability (ALBERT). As in its program a
    sentence that is left alone still gets a b drawn at random, under the label of a swap.

    Args:
      ds: {"tokens": int32 [any], "sentence_lengths": int32 [sentences], "origin": int64 [2]}.
      length: most tokens in a record, special tokens included; at least 5.
      short_probability: chance, once for each document and pass, of a shorter aim.
      dupe_factor: passes over the documents.
      seed: of all draws.
      cls: id of [CLS].
      sep: id of [SEP].
      single: texts of one sentence each (RoBERTa's SENTENCE-PAIR), whatever the aim.
      swap: pairs to be put in order, instead of random ones.
      random_share: probability of a drawn (or swapped) text b; 1/2 in BERT and ALBERT.
      least: fewest sentences that are collected, where the document has so many left; 2: fewer are left alone.
      shard: number of this run of documents in the corpus: others draw otherwise.

    Returns:
      {"tokens": int32 [at most length], "token_types": int32 (0 up to the first [SEP], 1 from there on),
      "is_random_next" (with `swap` "is_swapped"): int32 scalar, "origin": int64 [3] = (file, document, token offset) of
      text a}.

    Example:
      >>> docs = {"tokens": [[11, 12, 13, 14], [21, 22, 23, 24]], "sentence_lengths": [[2, 2], [2, 2]]}
      >>> ds = tf.data.Dataset.from_tensor_slices({**docs, "origin": tf.constant([[0, 0], [0, 1]])})
      >>> ds = make(ds, length=8, short_probability=0.0, dupe_factor=1, seed=0, cls=2, sep=3)
      >>> for ex in ds.as_numpy_iterator():
      ...     print(ex["tokens"].tolist(), ex["is_random_next"])
      [2, 11, 12, 3, 23, 24, 3] 1
      [2, 13, 14, 3, 23, 24, 3] 1
      [2, 21, 22, 3, 23, 24, 3] 0
    """

    def read(_: tf.Tensor) -> _Corpus:
        specs = ([None], tf.int32), ([None], tf.int64), ([None], tf.int64), ([None, 2], tf.int64)
        types = [tf.TensorSpec(*spec) for spec in specs]
        return _Corpus(*numpy_call(lambda: read_all(ds), [], types))

    def pairs(corpus: _Corpus) -> tf.data.Dataset:
        documents = tf.size(corpus.document_D1, tf.int64) - 1
        groups = (documents + _GROUP - 1) // _GROUP

        def of_group(n: tf.Tensor) -> tf.Tensor:
            first = n % groups * _GROUP
            docs_G = tf.range(first, tf.minimum(first + _GROUP, documents))
            return _pairs_of_group(corpus, docs_G, tf.stack([seed, shard << 32 | n]), rules)

        rows = tf.data.Dataset.range(dupe_factor * groups).map(of_group, num_parallel_calls=tf.data.AUTOTUNE)
        return rows.unbatch().map(lambda row: _record(corpus, row, cls, sep, swap), num_parallel_calls=tf.data.AUTOTUNE)

    rules = _Rules(length - 3, short_probability, single, swap, random_share, least)
    return tf.data.Dataset.range(1).map(read).flat_map(pairs)


def read_all(ds: tf.data.Dataset) -> tuple[np.ndarray, ...]:
    """The arrays of the corpus."""
    batches = list(ds.ragged_batch(_BATCH))
    tokens, lengths = [ragged(b["tokens"]) for b in batches], [ragged(b["sentence_lengths"]) for b in batches]
    return (
        np.concatenate([np.zeros(0, np.int32), *(x.values for x in tokens)]),
        _bounds(np.concatenate([np.zeros(0, np.int32), *(x.values for x in lengths)])),
        _bounds(np.concatenate([np.zeros(0, np.int64), *(x.row_lengths() for x in lengths)])),
        np.concatenate([np.zeros((0, 2), np.int64), *(b["origin"] for b in batches)]),
    )


def _bounds(sizes: np.ndarray) -> np.ndarray:
    """Where each of consecutive pieces begins, and the end of the last."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _record(corpus: _Corpus, pair: tf.Tensor, cls: int, sep: int, swap: bool) -> dict[str, tf.Tensor]:
    """The record of a row (document, a's first and end token, b's first and end token, label)."""
    doc, a_first, a_end, b_first, b_end, is_so = tf.unstack(pair)
    text_a = tf.concat([[cls], corpus.tokens_N[a_first:a_end], [sep]], 0)
    text_b = tf.concat([corpus.tokens_N[b_first:b_end], [sep]], 0)
    offset = a_first - corpus.sentence_S1[corpus.document_D1[doc]]
    return {
        "tokens": tf.concat([text_a, text_b], 0),
        "token_types": tf.concat([tf.zeros_like(text_a), tf.ones_like(text_b)], 0),
        "is_swapped" if swap else "is_random_next": tf.cast(is_so, tf.int32),
        "origin": tf.concat([corpus.origin_Dx2[doc], [offset]], 0),
    }


def _pairs_of_group(corpus: _Corpus, docs_G: tf.Tensor, seed: tf.Tensor, rules: _Rules) -> tf.Tensor:
    """All pairs of one pass over a group's documents, as rows of `_record`, in the documents' order."""
    aim_seed, short_seed, step_seed = tf.unstack(tf.random.split(seed, 3))
    short_G = 2 + _below(tf.fill(tf.shape(docs_G), tf.constant(rules.most - 1, tf.int64)), aim_seed)
    is_short_G = tf.random.stateless_uniform(tf.shape(docs_G), short_seed) < rules.short_probability
    aim_G = tf.where(is_short_G, short_G, rules.most)

    def step(
        n: tf.Tensor, docs_G: tf.Tensor, aim_G: tf.Tensor, next_G: tf.Tensor, pairs: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.TensorArray]:
        next_G, pairs_Gx6 = _next_pairs(corpus, docs_G, aim_G, next_G, tf.random.fold_in(step_seed, n), rules)
        going = next_G < tf.gather(corpus.document_D1, docs_G + 1)
        return n + 1, docs_G[going], aim_G[going], next_G[going], pairs.write(n, pairs_Gx6)

    pairs_array = tf.TensorArray(tf.int64, 0, dynamic_size=True, infer_shape=False, element_shape=[None, 6])
    state = (tf.constant(0), docs_G, aim_G, tf.gather(corpus.document_D1, docs_G), pairs_array)
    some = tf.TensorShape([None])
    shapes = (tf.TensorShape([]), some, some, some, tf.TensorShape(None))
    *_, pairs_array = tf.while_loop(lambda n, docs_G, *_: tf.size(docs_G) > 0, step, state, shape_invariants=shapes)
    pairs = pairs_array.concat()
    return tf.gather(pairs, tf.argsort(pairs[:, 0], stable=True))


def _next_pairs(
    corpus: _Corpus, docs_G: tf.Tensor, aim_G: tf.Tensor, next_G: tf.Tensor, seed: tf.Tensor, rules: _Rules
) -> tuple[tf.Tensor, tf.Tensor]:
    """The next pair of each document, from its sentence `next_G` on; and the sentence to go on from."""
    token, sentence = corpus.sentence_S1, corpus.document_D1
    a_seed, coin_seed, doc_seed, start_seed, cut_seed = tf.unstack(tf.random.split(seed, 5))
    last_G = tf.gather(sentence, docs_G + 1)
    end_G = tf.minimum(next_G + 2, last_G) if rules.single else _reach(token, next_G, aim_G, last_G)
    end_G = tf.maximum(end_G, tf.minimum(next_G + rules.least, last_G))
    count_G = end_G - next_G
    a_end_G = next_G + 1 + _below(tf.maximum(count_G - 1, 1), a_seed)
    coin_G = tf.random.stateless_uniform(tf.shape(docs_G), coin_seed) < rules.random_share
    is_random_G = (count_G == 1) | (coin_G & (not rules.swap))

    other_G = _other_document(docs_G, tf.size(sentence, tf.int64) - 1, doc_seed)
    other_end_G = tf.gather(sentence, other_G + 1)
    random_G = tf.gather(sentence, other_G)
    random_G += _below(other_end_G - random_G, start_seed)
    a_tokens_G = tf.gather(token, a_end_G) - tf.gather(token, next_G)
    random_end_G = _reach(token, random_G, tf.maximum(aim_G - a_tokens_G, 1), other_end_G)
    random_end_G = random_G + 1 if rules.single else random_end_G

    b_G, b_end_G = tf.where(is_random_G, random_G, a_end_G), tf.where(is_random_G, random_end_G, end_G)
    bounds = [tf.gather(token, x) for x in (next_G, a_end_G, b_G, b_end_G)]
    is_swapped_G = coin_G & ~is_random_G  # without `swap` the coin has made the random ones
    bounds = [tf.where(is_swapped_G, y, x) for x, y in zip(bounds, bounds[2:] + bounds[:2])]
    label_G = tf.cast(is_random_G | is_swapped_G, tf.int64)
    pairs_Gx6 = tf.stack([docs_G, *truncate(*bounds, rules.most, cut_seed), label_G], axis=1)
    return tf.where(is_random_G, a_end_G, end_G), pairs_Gx6


def _reach(token_S1: tf.Tensor, first_G: tf.Tensor, aim_G: tf.Tensor, last_G: tf.Tensor) -> tf.Tensor:
    """The end of the fewest sentences from `first_G` on that have `aim_G` tokens, `last_G` at the latest."""
    return tf.minimum(tf.searchsorted(token_S1, tf.gather(token_S1, first_G) + aim_G, out_type=tf.int64), last_G)


def _other_document(docs_G: tf.Tensor, documents: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A random document, drawn up to 10 times until it is another one."""
    tries_10xG = _below(tf.fill([10, tf.size(docs_G)], documents), seed)
    first_other_G = tf.argmax(tf.cast(tries_10xG != docs_G, tf.int32), axis=0)  # 0 where all are the same
    return tf.gather(tf.transpose(tries_10xG), first_other_G, batch_dims=1)


def truncate(
    a_G: tf.Tensor, a_end_G: tf.Tensor, b_G: tf.Tensor, b_end_G: tf.Tensor, most: int, seed: tf.Tensor
) -> list[tf.Tensor]:
    """Cuts a pair's token ranges to `most` tokens: one by one off the longer text, b where they are equal."""
    a_size_G, b_size_G = a_end_G - a_G, b_end_G - b_G
    excess_G = tf.maximum(a_size_G + b_size_G - most, 0)
    # First the longer text alone, until both are equal; from there on b, a, b, a, …
    alone_G = tf.minimum(excess_G, tf.abs(a_size_G - b_size_G))
    in_turn_G = excess_G - alone_G
    cut_a_G = tf.where(a_size_G > b_size_G, alone_G, 0) + in_turn_G // 2
    cut_b_G = tf.where(b_size_G > a_size_G, alone_G, 0) + (in_turn_G + 1) // 2
    cuts_2xG = tf.stack([cut_a_G, cut_b_G])
    tosses_2xG = tf.cast(cuts_2xG, tf.float64)
    half = tf.constant(0.5, tf.float64)
    front_2xG = tf.random.stateless_binomial(tf.shape(cuts_2xG), seed, tosses_2xG, half, output_dtype=tf.int64)
    back_2xG = cuts_2xG - front_2xG
    return [a_G + front_2xG[0], a_end_G - back_2xG[0], b_G + front_2xG[1], b_end_G - back_2xG[1]]


def _below(n: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Uniform draws from 0 … n - 1, one for each element of `n`."""
    return tf.random.stateless_uniform(tf.shape(n), seed, maxval=tf.int64.max, dtype=tf.int64) % n
