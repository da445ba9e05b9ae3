"""T5's span corruption, one record to one example, in graph code.

    tokens   a b c d e f g h
    inputs   a b <X> e f <Y> </s>
    targets  <X> c d <Y> g h </s>

Paper: https://arxiv.org/abs/1910.10683. The published code draws the counts in float64 but the mask in float32, so its
targets are one token short of its own length rule for some lengths; here both are the one rule of
`jaxpt.objectives.span_corruption.noise_counts`.

Shapes: R records · N tokens of all records end to end, each record's EOS with them · S spans
"""

from __future__ import annotations

import tensorflow as tf

from jaxpt.data.preprocessors.batched import Batch, choose, derived, one_to_one


@one_to_one
def corrupt(batch: Batch, keys: tf.Tensor, density: float, mean_span: float, first_sentinel: int, eos: int) -> Batch:
    """Replaces random spans by sentinels; the targets say what stood there.

    The counts are `noise_counts`'; non-noise and noise spans alternate, non-noise first. The lengths of either kind
    are a composition drawn uniformly from all of them. A sequence of one token stays whole.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      density: fraction of tokens that are noise.
      mean_span: mean length of a noise span, in tokens.
      first_sentinel: id of the first sentinel; the next ones count down from it.
      eos: id put after the inputs and after the targets.

    Returns:
      {"inputs": int32 [length - noise + spans + 1], "targets": int32 [noise + spans + 1], "origin"}.

    Example:
      Eight tokens at density 0.5 and mean span 2 are always 4 noise tokens in 2 spans.

      >>> import seqio
      >>> ds = tf.data.Dataset.from_tensors({"tokens": tf.range(11, 19)})
      >>> with seqio.map_seed_manager(1):
      ...     ds = corrupt(ds, density=0.5, mean_span=2.0, first_sentinel=99, eos=1)
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'inputs': [11, 12, 13, 99, 16, 98, 1], 'targets': [99, 14, 15, 98, 17, 18, 1]}
    """
    length_R = tf.cast(batch["tokens"].row_lengths(), tf.int32)
    noise_R, spans_R = _noise_counts(length_R, density, mean_span)
    tokens_N, is_eos_N, start_R = _with_eos(batch["tokens"], eos)
    is_first_N = _first_tokens(keys, length_R - noise_R, noise_R, spans_R, start_R, tf.size(tokens_N))

    # Of all spans, from 1, the odd ones are kept and the even ones noise. Kept span 2i+1 and noise span 2i+2 share a
    # sentinel: it stands for the noise in the inputs, for the kept in the targets. Records of no span are marked.
    first_R = first_sentinel + tf.cumsum(spans_R, exclusive=True)
    first_N = tf.repeat(tf.where(spans_R > 0, first_R, -1), length_R + 1)
    span_N = tf.cumsum(is_first_N)
    sentinel_N = first_N - (span_N - 1) // 2
    is_first_N = is_first_N > 0
    is_noise_N = (span_N % 2 == 0) & (first_N >= 0) & ~is_eos_N
    in_targets_N = is_noise_N | is_eos_N
    inputs_N = tf.boolean_mask(tf.where(is_noise_N, sentinel_N, tokens_N), ~is_noise_N | is_first_N)
    targets_N = tf.boolean_mask(tf.where(in_targets_N, tokens_N, sentinel_N), in_targets_N | is_first_N)
    origin = {"origin": batch["origin"]} if "origin" in batch else {}
    return {
        "inputs": tf.RaggedTensor.from_row_lengths(inputs_N, _int64(length_R - noise_R + spans_R + 1), validate=False),
        "targets": tf.RaggedTensor.from_row_lengths(targets_N, _int64(noise_R + spans_R + 1), validate=False),
        **origin,
    }


def _noise_counts(length: tf.Tensor, density: float, mean_span: float) -> tuple[tf.Tensor, tf.Tensor]:
    """`objectives.span_corruption.noise_counts` in graph code: float64, and `tf.round` rounds half to even."""
    noise = tf.cast(tf.round(tf.cast(length, tf.float64) * density), tf.int32)
    noise = tf.minimum(tf.maximum(noise, 1), tf.maximum(length - 1, 0))
    spans = tf.cast(tf.round(tf.cast(noise, tf.float64) / mean_span), tf.int32)
    return noise, tf.minimum(tf.maximum(spans, 1), tf.minimum(noise, length - noise))


def _with_eos(tokens: tf.RaggedTensor, eos: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The tokens of all records end to end with EOS after each, where these EOS are, where each record starts."""
    records = tf.range(tokens.nrows())
    size = tf.size(tokens.values, tf.int64) + tokens.nrows()
    eos_R = tokens.row_limits() + records
    is_eos_N = tf.scatter_nd(eos_R[:, None], tf.ones_like(eos_R, tf.int32), [size])
    place_N = tf.cumsum(1 - is_eos_N) - 1  # of a record's EOS that of its last token, or -1 at the very start
    tokens_N = tf.where(is_eos_N > 0, eos, tf.gather(tokens.values, tf.maximum(place_N, 0)))
    return tokens_N, is_eos_N > 0, tf.cast(tokens.row_starts() + records, tf.int32)


def _first_tokens(
    keys: tf.Tensor, kept_R: tf.Tensor, noise_R: tf.Tensor, spans_R: tf.Tensor, start_R: tf.Tensor, size: tf.Tensor
) -> tf.Tensor:
    """1 on the first token of each span, 0 elsewhere: int32 [N]."""
    kept_RxS1 = _composition(derived(keys, 1), kept_R, spans_R)
    noise_RxS1 = _composition(derived(keys, 2), noise_R, spans_R)
    # A kept span begins where as many kept and noise spans have ended; a noise span one kept span later.
    starts_2xRxS = start_R[:, None] + noise_RxS1[:, :-1] + tf.stack([kept_RxS1[:, :-1], kept_RxS1[:, 1:]])
    is_span_RxS = tf.range(tf.shape(starts_2xRxS)[2])[None] < spans_R[:, None]
    at = tf.reshape(tf.where(is_span_RxS, starts_2xRxS, size), [-1, 1])
    return tf.scatter_nd(at, tf.ones_like(at[:, 0]), [size + 1])[:-1]


def _composition(keys: tf.Tensor, total_R: tf.Tensor, parts_R: tf.Tensor) -> tf.Tensor:
    """Bounds [R, parts + 1] = 0, …, total of `parts` positive lengths, uniform; bounds after the last are total.

    parts - 1 of the total - 1 places between two tokens are cut.
    """
    cuts, _ = choose(keys, tf.maximum(total_R - 1, 0), tf.maximum(parts_R - 1, 0))
    bounds = tf.pad(tf.minimum(cuts, total_R[:, None] - 1) + 1, [[0, 0], [1, 0]])
    return tf.concat([bounds, total_R[:, None]], 1)


def _int64(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.int64)
