"""From examples of any length to the features of a batch: padded, of static shape, with SeqIO's names.

What is real is known from lengths alone: an id 0 inside a text is a token like any other. An example longer than its
feature is an error, never trimmed.
"""

from __future__ import annotations

import numpy as np
import seqio
import tensorflow as tf


@seqio.map_over_dataset
def encoder_decoder(
    ex: dict[str, tf.Tensor], inputs_length: int, targets_length: int, start: int
) -> dict[str, tf.Tensor]:
    """Features of an encoder-decoder; the decoder reads the targets shifted right.

    Args:
      ex: an example with "inputs" and "targets", int32 [any].
      inputs_length: length of the encoder's features.
      targets_length: length of the decoder's features.
      start: id that the decoder starts from.

    Returns:
      encoder_{input_tokens,segment_ids,positions} [inputs_length],
      decoder_{input_tokens,target_tokens,segment_ids,positions} and decoder_loss_weights [targets_length].

    Raises:
      tf.errors.InvalidArgumentError: inputs or targets are longer than their features.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"inputs": [7, 8, 1], "targets": [9, 1]})
      >>> ex = next(encoder_decoder(ds, inputs_length=4, targets_length=3, start=0).as_numpy_iterator())
      >>> [ex["decoder_" + name].tolist() for name in ("input_tokens", "target_tokens", "loss_weights")]
      [[0, 9, 0], [9, 1, 0], [1.0, 1.0, 0.0]]
    """
    inputs, targets = ex["inputs"], ex["targets"]
    return {
        "encoder_input_tokens": _pad(inputs, inputs_length, "inputs"),
        **_layout("encoder", tf.size(inputs), inputs_length),
        **_decoder(tf.concat([[start], targets[:-1]], 0), targets, targets_length),
    }


@seqio.map_over_dataset
def decoder(ex: dict[str, tf.Tensor], length: int) -> dict[str, tf.Tensor]:
    """Features of a decoder: every token but the first is a target, its inputs are those before it.

    Args:
      ex: a record with "tokens" int32 [at most length + 1].
      length: length of the features.

    Returns:
      decoder_{input_tokens,target_tokens,segment_ids,positions} and decoder_loss_weights [length].

    Raises:
      tf.errors.InvalidArgumentError: more than length + 1 tokens.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [5, 6, 7]})
      >>> ex = next(decoder(ds, length=3).as_numpy_iterator())
      >>> [ex["decoder_" + name].tolist() for name in ("input_tokens", "target_tokens", "loss_weights")]
      [[5, 6, 0], [6, 7, 0], [1.0, 1.0, 0.0]]
    """
    return _decoder(ex["tokens"][:-1], ex["tokens"][1:], length)


@seqio.map_over_dataset
def encoder(ex: dict[str, tf.Tensor], length: int, max_predictions: int) -> dict[str, tf.Tensor]:
    """Features of an encoder with masked positions, and the next-sentence label where the record has one.

    Args:
      ex: an example with "tokens" and "token_types" int32 [any], "masked_positions" and "masked_targets" int32 [any],
        and possibly "is_random_next", an int32 scalar.
      length: length of the encoder's features.
      max_predictions: length of the masked features.

    Returns:
      encoder_{input_tokens,token_types,segment_ids,positions} [length], masked_{positions,targets,weights}
      [max_predictions], and next_sentence_{labels,weights} [] if the record has "is_random_next".

    Raises:
      tf.errors.InvalidArgumentError: more tokens or masked positions than fit.

    Example:
      >>> ex = {"tokens": [2, 4, 9, 3], "token_types": [0] * 4, "masked_positions": [1], "masked_targets": [8]}
      >>> ex = next(encoder(tf.data.Dataset.from_tensors(ex), length=5, max_predictions=2).as_numpy_iterator())
      >>> [ex[name].tolist() for name in ("encoder_segment_ids", "masked_targets", "masked_weights")]
      [[1, 1, 1, 1, 0], [8, 0], [1.0, 0.0]]
    """
    features = {
        "encoder_input_tokens": _pad(ex["tokens"], length, "tokens"),
        "encoder_token_types": _pad(ex["token_types"], length, "token_types"),
        **_layout("encoder", tf.size(ex["tokens"]), length),
        "masked_positions": _pad(ex["masked_positions"], max_predictions, "masked_positions"),
        "masked_targets": _pad(ex["masked_targets"], max_predictions, "masked_targets"),
        "masked_weights": _weights(tf.size(ex["masked_targets"]), max_predictions),
    }
    if "is_random_next" in ex:
        label = tf.ensure_shape(tf.cast(ex["is_random_next"], tf.int32), [])
        features |= {"next_sentence_labels": label, "next_sentence_weights": tf.constant(1.0)}
    return features


def _decoder(inputs: tf.Tensor, targets: tf.Tensor, length: int) -> dict[str, tf.Tensor]:
    """The decoder's features of inputs and targets of one length."""
    return {
        "decoder_input_tokens": _pad(inputs, length, "targets"),
        "decoder_target_tokens": _pad(targets, length, "targets"),
        **_layout("decoder", tf.size(targets), length),
        "decoder_loss_weights": _weights(tf.size(targets), length),
    }


def _layout(side: str, size: tf.Tensor, length: int) -> dict[str, tf.Tensor]:
    """Segment id 1 and positions 0, 1, … on `size` real tokens, zeros on the padding after them."""
    positions = np.arange(length, dtype=np.int32)
    segment_ids = tf.cast(positions < size, tf.int32)
    return {f"{side}_segment_ids": segment_ids, f"{side}_positions": positions * segment_ids}


def _weights(size: tf.Tensor, length: int) -> tf.Tensor:
    """1.0 on `size` real entries, zeros after them."""
    return tf.cast(np.arange(length, dtype=np.int32) < size, tf.float32)


def _pad(x: tf.Tensor, length: int, name: str) -> tf.Tensor:
    """Zeros after `x` up to the static `length`."""
    size = tf.size(x)
    message = f"{name} of an example are longer than their feature of length {length}:"
    # tf.debugging's assertion costs ten times as many ops. The dependency makes it speak before the padding fails.
    fits = tf.raw_ops.Assert(condition=size <= length, data=[message, size])
    with tf.control_dependencies([fits]):
        return tf.ensure_shape(tf.pad(x, [[0, length - size]]), [length])
