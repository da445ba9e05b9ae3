"""BERT's masking, one record to one example, in graph code. Paper: https://arxiv.org/abs/1810.04805.

Shapes: R records · N tokens of all records end to end · M chosen tokens of all records · P most that one record has
"""

from __future__ import annotations

import tensorflow as tf

from jaxpt.data.preprocessors.batched import Batch, bits, choose, derived, one_to_one, uniform


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
) -> Batch:
    """Chooses tokens to predict; most of them become [MASK].

    n = min(max_predictions, max(1, round(rate · length))), rounded half to even, the special tokens counted in the
    length; never more than there are tokens besides [CLS] and [SEP]. The n positions are uniform among those. Each
    becomes, by itself, [MASK], a random id of the whole vocabulary, or stays.

    Args:
      batch: records with "tokens" int32 [length]; their other features are passed through.
      keys: of the records' draws.
      rate: fraction of tokens chosen.
      max_predictions: most tokens chosen.
      mask: id of [MASK].
      mask_probability: share of the chosen tokens that become [MASK].
      random_probability: share that become a random id; the rest stay.
      vocab_size: random ids are below it.
      cls: id of [CLS], never chosen.
      sep: id of [SEP], never chosen.

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
    candidates = tf.where((tokens_N != cls) & (tokens_N != sep))[:, 0]
    first_R1 = tf.searchsorted(candidates, tokens.row_splits)
    sizes_R = first_R1[1:] - first_R1[:-1]
    n_R = tf.cast(tf.round(rate * tf.cast(tokens.row_lengths(), tf.float64)), tf.int32)
    n_R = tf.minimum(tf.minimum(tf.maximum(n_R, 1), max_predictions), sizes_R)
    place_RxP, real_RxP = choose(derived(keys, 1), sizes_R, n_R)
    place_M = tf.boolean_mask(first_R1[:-1, None] + tf.where(real_RxP, place_RxP, 0), real_RxP)
    at_M = tf.gather(candidates, place_M)
    targets_M = tf.gather(tokens_N, at_M)

    number = tf.range(tf.shape(place_RxP)[1])[None]
    draw_M = tf.boolean_mask(uniform(derived(keys, 2), number), real_RxP)
    random_M = _below(vocab_size, tf.boolean_mask(bits(derived(keys, 3), number), real_RxP))
    shown_M = tf.where(draw_M < mask_probability + random_probability, random_M, targets_M)
    shown_M = tf.where(draw_M < mask_probability, mask, shown_M)
    record_M = tf.where(real_RxP)[:, 0]
    positions_M = tf.cast(at_M - tf.gather(start_R, record_M), tf.int32)
    n_R = tf.cast(n_R, tf.int64)
    return {
        **batch,
        "tokens": tokens.with_values(tf.tensor_scatter_nd_update(tokens_N, at_M[:, None], shown_M)),
        "masked_positions": tf.RaggedTensor.from_row_lengths(positions_M, n_R, validate=False),
        "masked_targets": tf.RaggedTensor.from_row_lengths(targets_M, n_R, validate=False),
    }


def _below(n: int, x: tf.Tensor) -> tf.Tensor:
    """Bits (0 … 2^31 - 1) → 0 … n-1, by multiplication."""
    return tf.cast(tf.bitwise.right_shift(tf.cast(x, tf.int64) * n, tf.constant(31, tf.int64)), tf.int32)
