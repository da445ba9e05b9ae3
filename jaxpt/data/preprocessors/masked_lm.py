"""BERT's masking, one record to one example, in graph code. Paper: https://arxiv.org/abs/1810.04805."""

from __future__ import annotations

import seqio
import tensorflow as tf


@seqio.map_over_dataset(num_seeds=1)
def mask(
    ex: dict[str, tf.Tensor],
    seed: tf.Tensor,
    rate: float,
    max_predictions: int,
    mask: int,
    mask_probability: float,
    random_probability: float,
    vocab_size: int,
    cls: int,
    sep: int,
) -> dict[str, tf.Tensor]:
    """Chooses tokens to predict; most of them become [MASK].

    n = min(max_predictions, max(1, round(rate · length))), rounded half to even, the special tokens counted in the
    length; never more than there are tokens besides [CLS] and [SEP]. The n positions are uniform among those. Each
    becomes, by itself, [MASK], a random id of the whole vocabulary, or stays.

    Args:
      ex: a record with "tokens" int32 [length]; its other features are passed through.
      seed: int [2], stateless.
      rate: fraction of tokens chosen.
      max_predictions: most tokens chosen.
      mask: id of [MASK].
      mask_probability: share of the chosen tokens that become [MASK].
      random_probability: share that become a random id; the rest stay.
      vocab_size: random ids are below it.
      cls: id of [CLS], never chosen.
      sep: id of [SEP], never chosen.

    Returns:
      The record with masked "tokens", and "masked_positions" (ascending) and "masked_targets" (the original ids at all
      of these positions), both int32 [n].

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [101, 11, 12, 13, 14, 15, 16, 17, 18, 102]})
      >>> with seqio.map_seed_manager(1):
      ...     ds = mask(ds, rate=0.25, max_predictions=20, mask=103, mask_probability=1.0, random_probability=0.0,
      ...               vocab_size=200, cls=101, sep=102)
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'tokens': [101, 11, 103, 13, 14, 103, 16, 17, 18, 102], 'masked_positions': [2, 5], 'masked_targets': [12, 15]}
    """
    tokens = ex["tokens"]
    choose, change, replace = tf.unstack(tf.random.split(seed, 3))
    candidates = tf.where((tokens != cls) & (tokens != sep))[:, 0]
    n = tf.cast(tf.round(rate * tf.cast(tf.size(tokens), tf.float64)), tf.int32)
    n = tf.minimum(tf.minimum(tf.maximum(n, 1), max_predictions), tf.size(candidates))
    priority = tf.random.stateless_uniform([tf.size(candidates)], choose, minval=None, maxval=None, dtype=tf.int32)
    positions = tf.sort(tf.gather(candidates, tf.math.top_k(priority, n, sorted=False).indices))
    targets = tf.gather(tokens, positions)
    draw = tf.random.stateless_uniform([n], change)
    random_ids = tf.random.stateless_uniform([n], replace, maxval=vocab_size, dtype=tf.int32)
    shown = tf.where(draw < mask_probability + random_probability, random_ids, targets)
    shown = tf.where(draw < mask_probability, mask, shown)
    return {
        **ex,
        "tokens": tf.tensor_scatter_nd_update(tokens, positions[:, None], shown),
        "masked_positions": tf.cast(positions, tf.int32),
        "masked_targets": targets,
    }
