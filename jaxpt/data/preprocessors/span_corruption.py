"""T5's span corruption, one record to one example, in graph code.

    tokens   a b c d e f g h
    inputs   a b <X> e f <Y> </s>
    targets  <X> c d <Y> g h </s>

Paper: https://arxiv.org/abs/1910.10683. The published code draws the counts in float64 but the mask in float32, so its
targets are one token short of its own length rule for some lengths; here both are the one rule of
`jaxpt.objectives.span_corruption.noise_counts`.

Shapes: R records · N tokens of all records end to end · S spans
"""

from __future__ import annotations

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.batched import Batch, at_starts, choose, fold_in, one_to_one, origin, ragged_mask


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
    return corrupted(batch, keys, density, mean_span, first_sentinel, eos)


def corrupted(
    batch: Batch,
    keys: tf.Tensor,
    density: float | tf.Tensor,
    mean_span: float | tf.Tensor,
    first_sentinel: int,
    eos: int,
) -> Batch:
    """`corrupt`, each record possibly under a density and a mean of its own, float64 [R]."""
    length_R = tf.cast(batch["tokens"].row_lengths(), tf.int32)
    noise_R, spans_R = noise_counts(length_R, density, mean_span)
    is_noise_N = _noise(keys, batch["tokens"], noise_R, spans_R)
    return with_sentinels(batch, is_noise_N, first_sentinel, eos, whole_R=spans_R == 0)


def with_sentinels(
    batch: Batch, is_noise_N: tf.Tensor, first_sentinel: int, eos: int, whole_R: tf.Tensor | None = None
) -> Batch:
    """Inputs with a sentinel for each run of noise, targets with one for each run of what is kept.

    The sentinels of either side count down from the first, by themselves.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      is_noise_N: which tokens are noise, bool.
      first_sentinel: id of the first sentinel.
      eos: id put after the inputs and after the targets.
      whole_R: records whose targets are EOS alone, bool; none by default.

    Returns:
      {"inputs": int32 [kept + runs of noise + 1], "targets": int32 [noise + runs of kept tokens + 1], "origin"}.
    """
    tokens = batch["tokens"]
    starts_N = at_starts(is_noise_N ^ tf.roll(is_noise_N, 1, 0), tokens, True)
    runs_N = tf.cumsum(tf.cast(starts_N, tf.int32))
    before_R = tf.gather(tf.pad(runs_N, [[1, 0]]), tokens.row_starts())
    # Runs of noise and of kept tokens alternate: each kind has every second one.
    sentinel_N = first_sentinel - (runs_N - 1 - tf.repeat(before_R, tokens.row_lengths())) // 2
    inputs = ragged_mask(tokens.with_values(tf.where(is_noise_N, sentinel_N, tokens.values)), starts_N | ~is_noise_N)
    if whole_R is not None:
        starts_N &= ~tf.repeat(whole_R, tokens.row_lengths())
    targets = ragged_mask(tokens.with_values(tf.where(is_noise_N, tokens.values, sentinel_N)), starts_N | is_noise_N)
    return {"inputs": ended(inputs, eos), "targets": ended(targets, eos)} | origin(batch)


def ended(tokens: tf.RaggedTensor, eos: int) -> tf.RaggedTensor:
    """The tokens of each record, and EOS."""
    return tf.concat([tokens, tf.fill([tokens.nrows(), 1], eos)], axis=1)


def noise_counts(
    length: tf.Tensor, density: float | tf.Tensor, mean_span: float | tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """`objectives.span_corruption.noise_counts` in graph code: float64, and `tf.round` rounds half to even."""
    noise = tf.cast(tf.round(tf.cast(length, tf.float64) * density), tf.int32)
    noise = tf.minimum(tf.maximum(noise, 1), tf.maximum(length - 1, 0))
    spans = tf.cast(tf.round(tf.cast(noise, tf.float64) / mean_span), tf.int32)
    return noise, tf.minimum(tf.maximum(spans, 1), tf.minimum(noise, length - noise))


def _noise(keys: tf.Tensor, tokens: tf.RaggedTensor, noise_R: tf.Tensor, spans_R: tf.Tensor) -> tf.Tensor:
    """Which tokens are noise: bool [N]. Kept and noise spans alternate, so that of all spans every second is noise."""
    length_R, start_R = tf.cast(tokens.row_lengths(), tf.int32), tf.cast(tokens.row_starts(), tf.int32)
    size = tf.size(tokens.values)
    nonnoise_RxS1 = _composition(fold_in(keys, 1), length_R - noise_R, spans_R)
    noise_RxS1 = _composition(fold_in(keys, 2), noise_R, spans_R)
    # A kept span begins where as many kept and noise spans have ended; a noise span one kept span later.
    starts_2xRxS = start_R[:, None] + noise_RxS1[:, :-1] + tf.stack([nonnoise_RxS1[:, :-1], nonnoise_RxS1[:, 1:]])
    is_span_RxS = tf.range(tf.shape(starts_2xRxS)[2])[None] < spans_R[:, None]
    at = tf.reshape(tf.where(is_span_RxS, starts_2xRxS, size), [-1, 1])
    is_first_N = tf.scatter_nd(at, tf.ones_like(at[:, 0]), [size + 1])[:-1]
    spanless_N = tf.repeat(spans_R == 0, length_R)
    return (tf.cumsum(is_first_N) % 2 == 0) & ~spanless_N


def _composition(keys: tf.Tensor, total_R: tf.Tensor, parts_R: tf.Tensor) -> tf.Tensor:
    """Bounds [R, parts + 1] = 0, …, total of `parts` positive lengths, uniform; bounds after the last are total.

    parts - 1 of the total - 1 places between two tokens are cut.
    """
    cuts, _ = choose(keys, tf.maximum(total_R - 1, 0), tf.maximum(parts_R - 1, 0))
    bounds = tf.pad(tf.minimum(cuts, total_R[:, None] - 1) + 1, [[0, 0], [1, 0]])
    return tf.concat([bounds, total_R[:, None]], 1)
