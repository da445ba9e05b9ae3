"""word2vec's draws: which tokens stay in the text, and the noise that they are compared with.

Paper: https://arxiv.org/abs/1310.4546.

Shapes: R records · N tokens of all records end to end · K noise tokens of a record · V ids
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.data.layout import Layout
from jaxpt.data.preprocessors.batched import (
    Batch,
    Records,
    at_starts,
    fold_in,
    makes_rows,
    one_to_one,
    ragged_mask,
    uniform,
)


@one_to_one
def draw(
    batch: Batch,
    keys: tf.Tensor,
    subsample: float,
    noise: int,
    noise_exponent: float,
    token_counts: Callable[[], np.ndarray],
) -> Batch:
    """Leaves out many of the frequent tokens, and draws noise.

        a token stays with probability min(1, (√(f / t) + 1) · t / f)    f its share of the training text
        noise is drawn with weights f^e

    What is left moves together, so a window reaches further in the text, as in word2vec.

    Args:
      batch: records with "tokens" int32 [any].
      keys: of the records' draws.
      subsample: t; 0: all tokens stay.
      noise: K.
      noise_exponent: e.
      token_counts: how often ids are in the training records, [V].

    Returns:
      The records with fewer "tokens", at least one of each, and "noise" int32 [K].

    Example:
      >>> import seqio
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [1, 2, 1, 1, 3, 1, 1, 1]})
      >>> with seqio.map_seed_manager(0):
      ...     ds = draw(ds, subsample=0.01, noise=4, noise_exponent=0.75, token_counts=lambda: np.array([0, 90, 5, 5]))
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'tokens': [1, 3], 'noise': [1, 2, 3, 3]}
    """
    tokens = batch["tokens"]
    count_V = np.maximum(token_counts(), 1.0)
    if subsample:
        rare_V = subsample / (count_V / count_V.sum())
        keep_probability_V = (np.sqrt(rare_V) + rare_V).astype(np.float32)
        is_kept_N = uniform(fold_in(keys, 1), tokens) < tf.gather(keep_probability_V, tokens.values)
        tokens = ragged_mask(tokens, at_starts(is_kept_N, tokens, True))
    ends_V = np.cumsum(count_V**noise_exponent)
    drawn_RxK = tf.cast(uniform(fold_in(keys, 2), tf.range(noise)[None]), tf.float64) * ends_V[-1]
    ids = tf.searchsorted(tf.constant(ends_V), tf.reshape(drawn_RxK, [-1]), side="right")
    noise_RxK = tf.RaggedTensor.from_uniform_row_length(tf.cast(ids, tf.int32), tf.cast(noise, tf.int64))
    return {**batch, "tokens": tokens, "noise": noise_RxK}


@makes_rows
def features(batch: Records, length: int, noise: int, packs: None = None) -> dict[str, np.ndarray]:
    """Features of skip-gram: a row for each record.

    Args:
      batch: records with "tokens" int32 [at most length] and "noise" int32 [K].
      length: length of the features of the text.
      noise: K.
      packs: None: a row has noise of its own, so records do not share one.

    Returns:
      encoder_{input_tokens,segment_ids,positions} [length], noise_tokens [K].

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [7, 8], "noise": [5, 6, 5]})
      >>> ex = next(features(ds, length=3, noise=3).as_numpy_iterator())
      >>> [ex[name].tolist() for name in ("encoder_input_tokens", "encoder_segment_ids", "noise_tokens")]
      [[7, 8, 0], [1, 1, 0], [5, 6, 5]]
    """
    layout = Layout(batch["tokens"].lengths, length, None, "tokens")
    return {
        "encoder_input_tokens": layout.rows(batch["tokens"].values),
        **layout.features("encoder"),
        "noise_tokens": Layout(batch["noise"].lengths, noise, None, "noise").rows(batch["noise"].values),
    }
