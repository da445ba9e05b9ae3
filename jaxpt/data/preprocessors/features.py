"""From examples of any length to the features of a batch: padded, of static shape, with SeqIO's names.

An example fills a row by itself, or several of them stand one after the other in a packed row: each is a segment of
its own, numbered from 1, whose positions start at 0.

What is real is known from lengths alone: an id 0 inside a text is a token like any other. An example longer than its
feature is an error, never trimmed.

Shapes: R records · B rows of the batch · N tokens of all records end to end · L length of a row
"""

from __future__ import annotations

import tensorflow as tf

from jaxpt.data.preprocessors.batched import Batch, at_starts, one_to_one, places

Packs = tf.Tensor | None


@one_to_one
def encoder_decoder(batch: Batch, inputs_length: int, targets_length: int, start: int, packs: Packs = None) -> Batch:
    """Features of an encoder-decoder; the decoder reads the targets shifted right.

    Args:
      batch: examples with "inputs" and "targets", int32 [any], and possibly "decoder_inputs", which the decoder then
        reads, and "offset", an int32 scalar, where its positions start.
      inputs_length: length of the encoder's features.
      targets_length: length of the decoder's features.
      start: id that the decoder starts from, in each segment.
      packs: which examples a row is made of; None: one each.

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
    inputs, targets = batch["inputs"], batch["targets"]
    # Shifted right as a whole; the first place of each example is then the start.
    shifted = at_starts(tf.roll(targets.values, 1, 0), targets, start)
    features = {
        "encoder_input_tokens": _rows(inputs, inputs_length, packs, "inputs"),
        **_layout("encoder", inputs, inputs_length, packs),
        **_decoder(batch.get("decoder_inputs", targets.with_values(shifted)), targets, targets_length, packs),
    }
    if "offset" in batch:
        offsets = targets.with_values(tf.repeat(batch["offset"], targets.row_lengths()))
        features["decoder_positions"] += _rows(offsets, targets_length, packs, "targets")
    return features


@one_to_one
def decoder(batch: Batch, length: int, opening: int | None = None, packs: Packs = None) -> Batch:
    """Features of a decoder: every token but the first is a target, its inputs are those before it.

    Args:
      batch: records with "tokens" int32 [at most length + 1], and possibly "prefix", an int32 scalar: the first so many
        tokens are no targets.
      length: length of the features.
      opening: id that begins a segment of its own wherever it stands; None: a record is one segment.
      packs: which records a row is made of; None: one each.

    Returns:
      decoder_{input_tokens,target_tokens,segment_ids,positions} and decoder_loss_weights [length], and decoder_prefix
      [length], 1 at the prefix's tokens, if the records have one.

    Raises:
      tf.errors.InvalidArgumentError: more than length + 1 tokens.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [5, 6, 7]})
      >>> ex = next(decoder(ds, length=3).as_numpy_iterator())
      >>> [ex["decoder_" + name].tolist() for name in ("input_tokens", "target_tokens", "loss_weights")]
      [[5, 6, 0], [6, 7, 0], [1.0, 1.0, 0.0]]
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [5, 6, 1, 7, 8]})
      >>> ex = next(decoder(ds, length=4, opening=1).as_numpy_iterator())
      >>> [ex["decoder_" + name].tolist() for name in ("input_tokens", "segment_ids", "positions")]
      [[5, 6, 1, 7], [1, 1, 2, 2], [0, 1, 0, 1]]
    """
    tokens = batch["tokens"]
    none_N = tf.zeros_like(tokens.values, tf.bool)
    sizes_R = tf.maximum(tokens.row_lengths() - 1, 0)
    is_first_N = at_starts(none_N, tokens, True)
    is_last_N = tf.concat([is_first_N[1:], [True]], 0)[: tf.size(is_first_N)]
    inputs, targets = (
        tf.RaggedTensor.from_row_lengths(tf.boolean_mask(tokens.values, ~left_out), sizes_R, validate=False)
        for left_out in (is_last_N, is_first_N)
    )
    features = _decoder(inputs, targets, length, packs)
    if opening is not None:
        pieces, rows = _cut_at(inputs, opening, packs)
        features |= _layout("decoder", pieces, length, rows)
    if "prefix" in batch:
        prefix_N = tf.repeat(batch["prefix"], sizes_R)
        in_prefix, after = places(inputs) < prefix_N, places(inputs) + 1 >= prefix_N
        features |= {
            "decoder_prefix": _rows(inputs.with_values(tf.cast(in_prefix, tf.int32)), length, packs, "tokens"),
            "decoder_loss_weights": _rows(inputs.with_values(tf.cast(after, tf.float32)), length, packs, "tokens"),
        }
    return features


def _cut_at(x: tf.RaggedTensor, opening: int, packs: Packs) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Records cut before each opening token, and which of the pieces a row is made of."""
    starts = tf.where(at_starts(x.values == opening, x, True))[:, 0]
    bounds = tf.concat([starts, [tf.size(x.values, tf.int64)]], 0)
    rows = x.row_splits if packs is None else tf.gather(x.row_splits, packs)
    pieces = tf.RaggedTensor.from_row_splits(x.values, bounds, validate=False)
    return pieces, tf.searchsorted(bounds, rows, out_type=tf.int64)


@one_to_one
def encoder(batch: Batch, length: int, max_predictions: int, packs: Packs = None) -> Batch:
    """Features of an encoder with masked positions, and the next-sentence label where the records have one.

    Args:
      batch: examples with "tokens" and "token_types" int32 [any], "masked_positions" and "masked_targets" int32 [any],
        and possibly "is_random_next", an int32 scalar.
      length: length of the encoder's features.
      max_predictions: length of the masked features.
      packs: which examples a row is made of; None: one each.

    Returns:
      encoder_{input_tokens,token_types,segment_ids,positions} [length], masked_{positions,targets,weights}
      [max_predictions], and next_sentence_{labels,weights} [] if the records have "is_random_next".

    Raises:
      tf.errors.InvalidArgumentError: more tokens or masked positions than fit.
      ValueError: packed rows of examples with a next-sentence label: there is one place for it in a row.

    Example:
      >>> ex = {"tokens": [2, 4, 9, 3], "token_types": [0] * 4, "masked_positions": [1], "masked_targets": [8]}
      >>> ex = next(encoder(tf.data.Dataset.from_tensors(ex), length=5, max_predictions=2).as_numpy_iterator())
      >>> [ex[name].tolist() for name in ("encoder_segment_ids", "masked_targets", "masked_weights")]
      [[1, 1, 1, 1, 0], [8, 0], [1.0, 0.0]]
    """
    tokens, positions = batch["tokens"], batch["masked_positions"]
    if packs is not None:
        before_R = tf.cast(tokens.row_starts() - _first(tokens, packs), tf.int32)
        positions = positions.with_values(positions.values + tf.repeat(before_R, positions.row_lengths()))
    features = {
        "encoder_input_tokens": _rows(tokens, length, packs, "tokens"),
        "encoder_token_types": _rows(batch["token_types"], length, packs, "token_types"),
        **_layout("encoder", tokens, length, packs),
        "masked_positions": _rows(positions, max_predictions, packs, "masked_positions"),
        "masked_targets": _rows(batch["masked_targets"], max_predictions, packs, "masked_targets"),
        "masked_weights": _weights(positions, max_predictions, packs),
    }
    if "is_random_next" in batch:
        if packs is not None:
            raise ValueError("a packed row has no place for the next-sentence labels of its examples")
        labels = tf.ensure_shape(tf.cast(batch["is_random_next"], tf.int32), [None])
        features |= {"next_sentence_labels": labels, "next_sentence_weights": tf.ones_like(labels, tf.float32)}
    return features


def _decoder(inputs: tf.RaggedTensor, targets: tf.RaggedTensor, length: int, packs: Packs) -> Batch:
    """The decoder's features of inputs and targets of the same lengths."""
    return {
        "decoder_input_tokens": _rows(inputs, length, packs, "targets"),
        "decoder_target_tokens": _rows(targets, length, packs, "targets"),
        **_layout("decoder", targets, length, packs),
        "decoder_loss_weights": _weights(targets, length, packs),
    }


def _layout(side: str, x: tf.RaggedTensor, length: int, packs: Packs) -> Batch:
    """Segment ids and positions of the real tokens, zeros on the padding after them."""
    positions = tf.range(length)[None]
    if packs is None:
        segment_ids = tf.cast(positions < _sizes(x, packs)[:, None], tf.int32)
        return {f"{side}_segment_ids": segment_ids, f"{side}_positions": positions * segment_ids}
    # A row's segment ids count the records that have begun; a position counts from where the last of them did.
    first_R, sizes_R = tf.cast(x.row_starts() - _first(x, packs), tf.int32), tf.cast(x.row_lengths(), tf.int32)
    number_R = tf.range(tf.size(first_R)) - tf.cast(_by_record(packs[:-1], packs), tf.int32) + 1
    segment_ids, first = (
        _rows(x.with_values(tf.repeat(of_record, sizes_R)), length, packs, side) for of_record in (number_R, first_R)
    )
    return {f"{side}_segment_ids": segment_ids, f"{side}_positions": (positions - first) * tf.sign(segment_ids)}


def _weights(x: tf.RaggedTensor, length: int, packs: Packs) -> tf.Tensor:
    """1.0 on the real entries of each row, zeros after them: float32 [B, L]."""
    return tf.cast(tf.range(length)[None] < _sizes(x, packs)[:, None], tf.float32)


def _rows(x: tf.RaggedTensor, length: int, packs: Packs, name: str) -> tf.Tensor:
    """The rows, filled up with zeros to the static `length`: [B, L]."""
    splits = x.row_splits if packs is None else tf.gather(x.row_splits, packs)
    longest = tf.reduce_max(_sizes(x, packs))
    message = f"{name} of an example are longer than their feature of length {length}:"
    # tf.debugging's assertion costs ten times as many ops.
    fits = tf.raw_ops.Assert(condition=longest <= length, data=[message, longest])
    with tf.control_dependencies([fits]):
        rows = tf.RaggedTensor.from_row_splits(x.values, splits, validate=False)
        return tf.ensure_shape(rows.to_tensor(shape=[None, length]), [None, length])


def _sizes(x: tf.RaggedTensor, packs: Packs) -> tf.Tensor:
    """Real entries of each row: int32 [B]."""
    splits = tf.cast(x.row_splits if packs is None else tf.gather(x.row_splits, packs), tf.int32)
    return splits[1:] - splits[:-1]


def _first(x: tf.RaggedTensor, packs: tf.Tensor) -> tf.Tensor:
    """For each record, where the row that it stands in begins in `x.values`: [R]."""
    return _by_record(tf.gather(x.row_splits, packs[:-1]), packs)


def _by_record(of_row: tf.Tensor, packs: tf.Tensor) -> tf.Tensor:
    """Values of rows as values of their records: [B] → [R]."""
    return tf.repeat(of_row, packs[1:] - packs[:-1])
