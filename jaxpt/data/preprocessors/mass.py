"""MASS: a fragment of a text is masked in the encoder, and what the decoder says, one record to one example.

Paper: https://arxiv.org/abs/1905.02450

Shapes: R records · N tokens of all records end to end
"""

from __future__ import annotations

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.batched import Batch, fold_in, one_to_one, origin, places, ragged_mask, randint, uniform


@one_to_one
def fragment(
    batch: Batch,
    keys: tf.Tensor,
    share: float,
    start_probability: float,
    end_probability: float,
    mask_probability: float,
    random_probability: float,
    mask: int,
    vocab_size: int,
    start: int,
    eos: int | None = None,
) -> Batch:
    """Chooses a fragment of max(1, round(share · length)) tokens, rounded half to even.

    With `eos`, the text begins and ends with it, and counts as that long; the fragment begins after the first EOS and
    may end with the last, as in the published code.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      share: of a text that is its fragment.
      start_probability: share of the fragments that begin the text.
      end_probability: share of those that end it; the others begin at a place drawn uniformly.
      mask_probability: share of the fragment's tokens that become the mask in the inputs.
      random_probability: share that become a random id; the rest stay.
      mask: id of the mask.
      vocab_size: random ids are below it.
      start: id that the decoder reads before a text's first token, where there is no EOS.
      eos: id put before and after the text; by default none.

    Returns:
      {"inputs": int32 [length], "targets": int32 [fragment], "decoder_inputs": int32 [fragment], the token before each
      target, "offset": int32 scalar, where the fragment begins in the text without EOS, "origin"}.

    Example:
      >>> settings = {"share": 0.5, "start_probability": 0.2, "end_probability": 0.2, "mask_probability": 1.0,
      ...             "random_probability": 0.0, "mask": 99, "vocab_size": 100, "start": 0}
      >>> ex = fragment.__wrapped__({"tokens": tf.range(11, 17)}, (0, 8), **settings)
      >>> {name: x.numpy().tolist() for name, x in ex.items()}
      {'inputs': [99, 99, 99, 14, 15, 16], 'targets': [11, 12, 13], 'decoder_inputs': [0, 11, 12], 'offset': 0}
      >>> ex = fragment.__wrapped__({"tokens": tf.range(11, 15)}, (0, 8), **settings, eos=1)
      >>> {name: x.numpy().tolist() for name, x in ex.items()}
      {'inputs': [1, 99, 99, 99, 14, 1], 'targets': [11, 12, 13], 'decoder_inputs': [1, 11, 12], 'offset': 0}
    """
    tokens, head = batch["tokens"], 0
    if eos is not None:
        end_Rx1 = tf.fill([tokens.nrows(), 1], eos)
        tokens, head = tf.concat([end_Rx1, tokens, end_Rx1], axis=1), 1
    lengths_R = tf.cast(tokens.row_lengths(), tf.int32)
    size_R = tf.maximum(tf.cast(tf.round(tf.cast(lengths_R, tf.float64) * share), tf.int32), 1)
    where_R = uniform(fold_in(keys, 1))
    size_R = tf.minimum(size_R, lengths_R - head)
    free_R = lengths_R - head - size_R
    first_R = randint(fold_in(keys, 2), free_R + 1)
    first_R = tf.where(where_R < start_probability + end_probability, free_R, first_R)
    first_R = head + tf.where(where_R < start_probability, 0, first_R)

    place_N = places(tokens)
    first_N, end_N = (tf.repeat(x, lengths_R) for x in (first_R, first_R + size_R))
    in_fragment_N = (place_N >= first_N) & (place_N < end_N)
    draw_N = uniform(fold_in(keys, 3), tokens)
    random_N = randint(fold_in(keys, 4), vocab_size, tokens)
    corrupted_N = tf.where(draw_N < mask_probability + random_probability, random_N, tokens.values)
    corrupted_N = tf.where(draw_N < mask_probability, mask, corrupted_N)
    before_N = tf.where(place_N == 0, start, tf.roll(tokens.values, 1, 0))
    return {
        "inputs": tokens.with_values(tf.where(in_fragment_N, corrupted_N, tokens.values)),
        "targets": ragged_mask(tokens, in_fragment_N),
        "decoder_inputs": ragged_mask(tokens.with_values(before_N), in_fragment_N),
        "offset": first_R - head,
    } | origin(batch)
