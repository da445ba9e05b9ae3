"""UniLM's attention masks: under which of four a pair of texts is read. Paper: https://arxiv.org/abs/1905.03197"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.batched import Batch, one_to_one, places, uniform


@one_to_one
def draw_mask(
    batch: Batch, keys: tf.Tensor, shares: Sequence[float], types_of_masks: bool, next_sentence: bool
) -> Batch:
    """Draws the attention mask of a pair of texts, [CLS] a [SEP] b [SEP].

        kind                    ranks of [CLS] a [SEP]   of b [SEP]     token types
        0 bidirectional         0                        0              0 1
        1 sequence to sequence  0                        1, 2, …        4 5
        2 left to right         0, 1, …                  and so on      2
        3 right to left         0, -1, …                 and so on      3

    A pair whose b was drawn from another document is bidirectional: it is there for next-sentence prediction alone.

    Args:
      batch: pairs as `sentence_pairs.make` gives them.
      keys: of the records' draws.
      shares: probability of each kind for a pair whose b follows a; sums to 1.
      types_of_masks: give each kind token types of its own; false: leave 0 and 1.
      next_sentence: keep the label "is_random_next", -1 unless the pair is bidirectional; false: leave it out.

    Returns:
      The records with "ranks" int32 [length], "mask_kind" and "end_is_text" (1 for sequence to sequence: the end of b
      may be masked), both int32 scalars.

    Example:
      >>> pair = {"tokens": [2, 7, 3, 8, 9, 3], "token_types": [0, 0, 0, 1, 1, 1], "is_random_next": tf.constant(0)}
      >>> pair |= {name: tf.constant(pair[name]) for name in ("tokens", "token_types")}
      >>> for kind in range(4):
      ...     ex = draw_mask.__wrapped__(pair, (0, 0), np.eye(4)[kind], types_of_masks=True, next_sentence=True)
      ...     print(*(ex[name].numpy().tolist() for name in ("ranks", "token_types", "is_random_next")))
      [0, 0, 0, 0, 0, 0] [0, 0, 0, 1, 1, 1] 0
      [0, 0, 0, 3, 4, 5] [4, 4, 4, 5, 5, 5] -1
      [0, 1, 2, 3, 4, 5] [2, 2, 2, 2, 2, 2] -1
      [0, -1, -2, -3, -4, -5] [3, 3, 3, 3, 3, 3] -1
    """
    types, is_random_R = batch["token_types"], batch["is_random_next"]
    bounds = tf.constant(np.cumsum(shares)[:-1], tf.float32)
    drawn_R = tf.searchsorted(bounds, uniform(keys), side="right")
    kind_R = tf.where(is_random_R > 0, 0, drawn_R)
    kind_N, place_N = tf.repeat(kind_R, types.row_lengths()), places(types)
    ranks_N = tf.where(
        kind_N == 3, -place_N, tf.where(kind_N == 2, place_N, tf.where(kind_N == 1, types.values * place_N, 0))
    )
    if types_of_masks:
        first_N = tf.gather(tf.constant([0, 4, 2, 3]), kind_N)
        types = types.with_values(first_N + tf.where(kind_N < 2, types.values, 0))
    labels = {"is_random_next": tf.where(kind_R == 0, is_random_R, -1)} if next_sentence else {}
    return {
        **{name: x for name, x in batch.items() if name != "is_random_next"},
        **labels,
        "token_types": types,
        "ranks": types.with_values(ranks_N),
        "mask_kind": kind_R,
        "end_is_text": tf.cast(kind_R == 1, tf.int32),
    }
