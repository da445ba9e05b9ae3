"""Running text for two language models, one of which reads each document from its end.

    document    a b c
    forward     inputs <S> a b c     targets a b c </S>
    backward    inputs </S> c b a    targets c b a <S>

A model reads the token that opens a document and predicts the one that closes it, never the other way round, as in the
published code. Records hold the inputs: where the next document opens, the target is the closing token. The last
document of all has none after it, and its closing token is no target.

Both directions have the same length, so both are laid end to end and cut into windows together: token after token, one
of each. So both models go on, from window to window, from the state that the last one left.
Paper: https://arxiv.org/abs/1802.05365

Shapes: R records · L length of a row
"""

from __future__ import annotations

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.batched import Records, makes_rows


def both_directions(
    ds: tf.data.Dataset, bos: int, eos: int, unk: int, spelled_from: int | None = None
) -> tf.data.Dataset:
    """Documents as both models read them: after the token that opens them, from either side.

    Args:
      ds: {"tokens": int32 [n], …}.
      bos: id before a document, which the forward model reads first.
      eos: id after it, which the backward model reads first.
      unk: id of a word that is spelled: it is one token here.
      spelled_from: the first of the ids that spell words; None: there are none.

    Returns:
      The documents with "tokens" int32 [2 · (m + 1)], m words: token 2i is the forward model's, 2i + 1 the other's.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [5, 6, 7]})
      >>> ex = next(both_directions(ds, bos=1, eos=0, unk=2).as_numpy_iterator())
      >>> ex["tokens"][::2].tolist(), ex["tokens"][1::2].tolist()
      ([1, 5, 6, 7], [0, 7, 6, 5])
    """

    def one(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens = ex["tokens"]
        if spelled_from is not None:
            tokens = tf.boolean_mask(tokens, tokens < spelled_from + 256)
            tokens = tf.where(tokens < spelled_from, tokens, unk)
        both = tf.stack([tf.concat([[bos], tokens], 0), tf.concat([[eos], tokens[::-1]], 0)], axis=1)
        return {**ex, "tokens": tf.reshape(both, [-1])}

    return ds.map(one, num_parallel_calls=tf.data.AUTOTUNE)


@makes_rows
def features(
    batch: Records, length: int, bos: int, eos: int, reset_at_documents: bool, packs: None = None
) -> dict[str, np.ndarray]:
    """Features of both models: the target of a token is the one after it, at a document's end the closing token.

    Args:
      batch: records with "tokens" int32 [2 · (length + 1)].
      length: length of the features.
      bos: id before a document: it opens one of the forward model and closes one of the other.
      eos: id after a document: it closes one of the forward model and opens one of the other.
      reset_at_documents: a document is a segment by itself. Segment 1 is what goes on from the record before.
      packs: None: a record fills its row.

    Returns:
      encoder_input_tokens, encoder_segment_ids, forward_target_tokens of the forward model and backward_{input_tokens,
      segment_ids,target_tokens} of the other, int32 [length], in the order in which they are read; target_weights
      float32 [length].

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [5, 6, 6, 5, 1, 0, 7, 8]})
      >>> ex = next(features(ds, length=3, bos=1, eos=0, reset_at_documents=True).as_numpy_iterator())
      >>> [ex[f"encoder_{name}"].tolist() for name in ("input_tokens", "segment_ids")]
      [[5, 6, 1], [1, 1, 2]]
      >>> ex["forward_target_tokens"].tolist(), ex["backward_target_tokens"].tolist()
      ([6, 0, 7], [5, 1, 8])
    """
    both_RxLx2 = batch["tokens"].values.reshape(-1, length + 1, 2)
    rows: dict[str, np.ndarray] = {}
    for direction, (inputs, targets, opening, closing) in enumerate(
        (("encoder", "forward", bos, eos), ("backward", "backward", eos, bos))
    ):
        tokens_RxL = both_RxLx2[..., direction].astype(np.int32)
        opens_RxL = (tokens_RxL[:, :-1] == opening) & reset_at_documents
        rows[f"{inputs}_input_tokens"] = tokens_RxL[:, :-1]
        rows[f"{inputs}_segment_ids"] = 1 + np.cumsum(opens_RxL, axis=1, dtype=np.int32)
        rows[f"{targets}_target_tokens"] = np.where(tokens_RxL[:, 1:] == opening, closing, tokens_RxL[:, 1:])
    return rows | {"target_weights": np.ones((len(both_RxLx2), length), np.float32)}
