"""Running text for two language models, one of which reads each document from its end.

    document    a b c
    forward     <S> a b c </S>
    backward    </S> c b a <S>

Both have the same length, so both are laid end to end and cut into windows together: token after token, one of each. So
both models go on, from window to window, from the state that the last one left. Paper: https://arxiv.org/abs/1802.05365

Shapes: R records · L length of a row
"""

from __future__ import annotations

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.batched import Records, makes_rows


def both_directions(
    ds: tf.data.Dataset, bos: int, eos: int, unk: int, spelled_from: int | None = None
) -> tf.data.Dataset:
    """Documents with both ends, and read from both sides.

    Args:
      ds: {"tokens": int32 [n], …}.
      bos: id before a document.
      eos: id after it.
      unk: id of a word that is spelled: it is one token here.
      spelled_from: the first of the ids that spell words; None: there are none.

    Returns:
      The documents with "tokens" int32 [2 · (m + 2)], m words: token 2i is the forward model's, 2i + 1 the other's.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [5, 6, 7]})
      >>> ex = next(both_directions(ds, bos=1, eos=0, unk=2).as_numpy_iterator())
      >>> ex["tokens"][::2].tolist(), ex["tokens"][1::2].tolist()
      ([1, 5, 6, 7, 0], [0, 7, 6, 5, 1])
    """

    def one(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens = ex["tokens"]
        if spelled_from is not None:
            tokens = tf.boolean_mask(tokens, tokens < spelled_from + 256)
            tokens = tf.where(tokens < spelled_from, tokens, unk)
        forward, backward = ([bos], tokens, [eos]), ([eos], tokens[::-1], [bos])
        both = tf.stack([tf.concat(forward, 0), tf.concat(backward, 0)], axis=1)
        return {**ex, "tokens": tf.reshape(both, [-1])}

    return ds.map(one, num_parallel_calls=tf.data.AUTOTUNE)


@makes_rows
def features(
    batch: Records, length: int, bos: int, eos: int, reset_at_documents: bool, packs: None = None
) -> dict[str, np.ndarray]:
    """Features of both models: every token but the first is a target.

    Args:
      batch: records with "tokens" int32 [2 · (length + 1)].
      length: length of the features.
      bos: id before a document, which the forward model reads first.
      eos: id after it, which the backward model reads first.
      reset_at_documents: a document is a segment by itself. Segment 1 is what goes on from the record before.
      packs: None: a record fills its row.

    Returns:
      encoder_input_tokens, encoder_segment_ids, forward_target_tokens of the forward model and backward_{input_tokens,
      segment_ids,target_tokens} of the other, int32 [length], in the order in which they are read; target_weights
      float32 [length].

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [5, 6, 0, 1, 1, 0, 7, 8]})
      >>> ex = next(features(ds, length=3, bos=1, eos=0, reset_at_documents=True).as_numpy_iterator())
      >>> [ex[f"encoder_{name}"].tolist() for name in ("input_tokens", "segment_ids")]
      [[5, 0, 1], [1, 1, 2]]
      >>> ex["forward_target_tokens"].tolist(), ex["backward_target_tokens"].tolist()
      ([0, 1, 7], [1, 0, 8])
    """
    both_RxLx2 = batch["tokens"].values.reshape(-1, length + 1, 2)
    rows: dict[str, np.ndarray] = {}
    for direction, (inputs, targets, opening) in enumerate(
        (("encoder", "forward", bos), ("backward", "backward", eos))
    ):
        tokens_RxL = both_RxLx2[..., direction].astype(np.int32)
        opens_RxL = (tokens_RxL[:, :-1] == opening) & reset_at_documents
        rows[f"{inputs}_input_tokens"] = tokens_RxL[:, :-1]
        rows[f"{inputs}_segment_ids"] = 1 + np.cumsum(opens_RxL, axis=1, dtype=np.int32)
        rows[f"{targets}_target_tokens"] = tokens_RxL[:, 1:]
    return rows | {"target_weights": np.ones((len(both_RxLx2), length), np.float32)}
