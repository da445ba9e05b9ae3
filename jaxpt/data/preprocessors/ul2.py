"""UL2's mixture: each record is corrupted by one of several denoisers, whose mode token begins its inputs.

Paper: https://arxiv.org/abs/2205.05131

Shapes: R records
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.batched import Batch, bits, fold_in, one_to_one
from jaxpt.data.preprocessors.span_corruption import corrupted


@one_to_one
def mix(
    batch: Batch,
    keys: tf.Tensor,
    denoisers: Sequence[tuple[float, float | None, int, float]],
    first_sentinel: int,
    eos: int,
) -> Batch:
    """Corrupts spans of each record, after the rule of a denoiser that is drawn for it.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      denoisers: (density, mean length of a span, id of the mode token, share) of each; without a mean the noise is one
        span at the end of the text. Shares are relative to their sum.
      first_sentinel: id of the first sentinel; the next ones count down from it.
      eos: id put after the inputs and after the targets.

    Returns:
      {"inputs": int32 [1 + length - noise + spans + 1], "targets": int32 [noise + spans + 1], "origin"}.

    Example:
      >>> denoisers = [(0.5, 2.0, 70, 1.0), (0.25, None, 80, 1.0)]  # mode tokens 70 and 80
      >>> for n in (0, 1):
      ...     ex = {"tokens": tf.range(11, 19)}
      ...     ex = mix.__wrapped__(ex, (0, n), denoisers=denoisers, first_sentinel=99, eos=1)
      ...     print({name: x.numpy().tolist() for name, x in ex.items()})
      {'inputs': [80, 11, 12, 13, 14, 15, 16, 99, 1], 'targets': [99, 17, 18, 1]}
      {'inputs': [70, 11, 12, 99, 15, 16, 98, 1], 'targets': [99, 13, 14, 98, 17, 18, 1]}
    """
    densities, means, modes, shares = (list(column) for column in zip(*denoisers))
    means = [math.inf if mean is None else mean for mean in means]
    bounds = np.round(np.cumsum(shares) / np.sum(shares) * 2**31).astype(np.int64)
    draw_R = tf.cast(bits(fold_in(keys, 3)), tf.int64)
    which_R = tf.searchsorted(tf.constant(bounds[:-1]), draw_R, side="right")
    density_R, mean_R = (tf.gather(tf.constant(x, tf.float64), which_R) for x in (densities, means))
    features = corrupted(batch, keys, density_R, mean_R, first_sentinel, eos)
    mode_R = tf.gather(tf.constant(modes, tf.int32), which_R)
    return features | {"inputs": tf.concat([mode_R[:, None], features["inputs"]], axis=1)}
