"""T5's span corruption, one record to one example, in graph code.

    tokens   a b c d e f g h
    inputs   a b <X> e f <Y> </s>
    targets  <X> c d <Y> g h </s>

Paper: https://arxiv.org/abs/1910.10683. The published code draws the counts in float64 but the mask in float32, so its
targets are one token short of its own length rule for some lengths; here both are the one rule of
`jaxpt.objectives.span_corruption.noise_counts`.
"""

from __future__ import annotations

import seqio
import tensorflow as tf


@seqio.map_over_dataset(num_seeds=1)
def corrupt(
    ex: dict[str, tf.Tensor], seed: tf.Tensor, density: float, mean_span: float, first_sentinel: int, eos: int
) -> dict[str, tf.Tensor]:
    """Replaces random spans by sentinels; the targets say what stood there.

    The counts are `noise_counts`'; non-noise and noise spans alternate, non-noise first. The lengths of either kind
    are a composition drawn uniformly from all of them. A sequence of one token stays whole.

    Args:
      ex: a record with "tokens" int32 [length]; "origin" is passed through where there is one.
      seed: int [2], stateless.
      density: fraction of tokens that are noise.
      mean_span: mean length of a noise span, in tokens.
      first_sentinel: id of the first sentinel; the next ones count down from it.
      eos: id put after the inputs and after the targets.

    Returns:
      {"inputs": int32 [length - noise + spans + 1], "targets": int32 [noise + spans + 1], "origin"}.

    Example:
      Eight tokens at density 0.5 and mean span 2 are always 4 noise tokens in 2 spans.

      >>> ds = tf.data.Dataset.from_tensors({"tokens": tf.range(11, 19)})
      >>> with seqio.map_seed_manager(1):
      ...     ds = corrupt(ds, density=0.5, mean_span=2.0, first_sentinel=99, eos=1)
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'inputs': [11, 12, 99, 15, 16, 98, 1], 'targets': [99, 13, 14, 98, 17, 18, 1]}
    """
    tokens = ex["tokens"]
    length = tf.size(tokens)
    noise, spans = _noise_counts(length, density, mean_span)
    priority = tf.random.stateless_uniform([length], seed, minval=None, maxval=None, dtype=tf.int32)
    lost = _composition(noise, spans, priority[:noise])
    kept = _composition(length - noise, spans, priority[noise:])
    # A kept span begins where as many kept and noise spans have ended; a noise span one kept span later.
    starts = tf.concat([kept[:-1] + lost[:-1], kept[1:] + lost[:-1]], 0)[: 2 * spans]
    is_first = tf.scatter_nd(starts[:, None], tf.ones_like(starts), [length])
    span = tf.cumsum(is_first)  # 1, 3, … are kept, 2, 4, … are noise; 0 throughout a text of one token
    is_noise, is_first = (span > 0) & (span % 2 == 0), is_first > 0
    # Kept span 2i+1 and noise span 2i+2 share a sentinel: it stands for the noise in the inputs, for the kept in the
    # targets.
    sentinel = first_sentinel - (span - 1) // 2
    inputs = tf.gather_nd(tf.where(is_noise, sentinel, tokens), tf.where(~is_noise | is_first))
    targets = tf.gather_nd(tf.where(is_noise, tokens, sentinel), tf.where(is_noise | is_first))
    origin = {"origin": ex["origin"]} if "origin" in ex else {}
    return {"inputs": tf.concat([inputs, [eos]], 0), "targets": tf.concat([targets, [eos]], 0)} | origin


def _noise_counts(length: tf.Tensor, density: float, mean_span: float) -> tuple[tf.Tensor, tf.Tensor]:
    """`objectives.span_corruption.noise_counts` in graph code: float64, and `tf.round` rounds half to even."""
    noise = tf.cast(tf.round(tf.cast(length, tf.float64) * density), tf.int32)
    noise = tf.minimum(tf.maximum(noise, 1), tf.maximum(length - 1, 0))
    spans = tf.cast(tf.round(tf.cast(noise, tf.float64) / mean_span), tf.int32)
    return noise, tf.minimum(tf.maximum(spans, 1), tf.minimum(noise, length - noise))


def _composition(total: tf.Tensor, parts: tf.Tensor, priority: tf.Tensor) -> tf.Tensor:
    """Bounds [0, …, total] of `parts` positive lengths, uniform: parts-1 of the total-1 places between are cut."""
    cuts = tf.math.top_k(priority[1:], tf.maximum(parts - 1, 0), sorted=False).indices
    return tf.concat([[0], 1 + tf.sort(cuts), [total]], 0)
