"""Fill-in-the-middle: a text's middle is moved to its end, one record to one record, in graph code.

    PSM   <PRE> prefix <SUF> suffix <MID> middle EOS
    SPM   <PRE> <SUF> suffix <MID> prefix middle EOS

Paper: https://arxiv.org/abs/2207.14255

Shapes: R records · N tokens of all records end to end
"""

from __future__ import annotations

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.batched import Batch, fold_in, one_to_one, origin, places, ragged_mask, randint, uniform


@one_to_one
def rearrange(
    batch: Batch, keys: tf.Tensor, rate: float, spm_rate: float, prefix: int, suffix: int, middle: int, eos: int
) -> Batch:
    """Moves the middle of some texts to their end.

    Both cuts are uniform on the length + 1 places around the tokens, so that any of the three parts may be empty. An
    EOS at the end of a text is no part of them; what is rearranged always ends in EOS, what is not stays as it is.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      rate: share of the texts that are rearranged.
      spm_rate: share of these in the order suffix, prefix, middle; the others are prefix, suffix, middle.
      prefix: id of <PRE>.
      suffix: id of <SUF>.
      middle: id of <MID>.
      eos: id put after the middle.

    Returns:
      {"tokens": int32 [at most length + 4], "origin"}.

    Example:
      >>> marks = {"prefix": 99, "suffix": 98, "middle": 97, "eos": 1}
      >>> for spm_rate in (0.0, 1.0):
      ...     ex = rearrange.__wrapped__({"tokens": tf.range(11, 19)}, (0, 7), rate=1.0, spm_rate=spm_rate, **marks)
      ...     print(ex["tokens"].numpy().tolist())
      [99, 11, 12, 98, 17, 18, 97, 13, 14, 15, 16, 1]
      [99, 98, 17, 18, 97, 11, 12, 13, 14, 15, 16, 1]
    """
    tokens = batch["tokens"]
    lengths_R, place_N = tf.cast(tokens.row_lengths(), tf.int32), places(tokens)
    last_N = tf.repeat(lengths_R - 1, lengths_R)
    text = ragged_mask(tokens, ~((place_N == last_N) & (tokens.values == eos)))
    draws_Rx2 = uniform(fold_in(keys, 1), tf.range(2)[None])
    moved_R, spm_R = draws_Rx2[:, 0] < rate, draws_Rx2[:, 1] < spm_rate
    sizes_R = tf.cast(text.row_lengths(), tf.int32)
    cuts_Rx2 = tf.sort(randint(fold_in(keys, 2), sizes_R[:, None] + 1, tf.range(2)[None]))

    place_N, moved_N = places(text), tf.repeat(moved_R, sizes_R)
    first_N, second_N = (tf.repeat(cuts_Rx2[:, n], sizes_R) for n in (0, 1))
    before_N, after_N, spm_N = place_N < first_N, place_N >= second_N, tf.repeat(spm_R, sizes_R)
    parts = [
        _mark(prefix, moved_R),
        ragged_mask(text, moved_N & before_N & ~spm_N),
        _mark(suffix, moved_R),
        ragged_mask(text, moved_N & after_N),
        _mark(middle, moved_R),
        ragged_mask(text, moved_N & ~after_N & (spm_N | ~before_N)),
        _mark(eos, moved_R),
        ragged_mask(tokens, ~tf.repeat(moved_R, lengths_R)),
    ]
    return {"tokens": tf.concat(parts, axis=1)} | origin(batch)


def _mark(token: int, moved_R: tf.Tensor) -> tf.RaggedTensor:
    """The token in each record that wants it."""
    marks = tf.fill([tf.math.count_nonzero(moved_R)], token)
    return tf.RaggedTensor.from_row_lengths(marks, tf.cast(moved_R, tf.int64), validate=False)
