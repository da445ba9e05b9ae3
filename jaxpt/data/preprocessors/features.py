"""From examples of any length to the features of a batch: padded, of static shape, with SeqIO's names.

An example fills a row by itself, or several of them stand one after the other in a packed row: each is a segment of
its own, numbered from 1, whose positions start at 0.

What is real is known from lengths alone: an id 0 inside a text is a token like any other. An example longer than its
feature is an error, never trimmed.

Shapes: R records · B rows of the batch · N tokens of all records end to end · L length of a row
"""

from __future__ import annotations

import numpy as np

from jaxpt.data.labelled import rows
from jaxpt.data.labelled.choices import rows_of_choices
from jaxpt.data.layout import Layout
from jaxpt.data.preprocessors.batched import Records, makes_rows

Packs = np.ndarray | None
Rows = dict[str, np.ndarray]


@makes_rows
def encoder_decoder(batch: Records, inputs_length: int, targets_length: int, start: int, packs: Packs = None) -> Rows:
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
      ValueError: inputs or targets are longer than their features.

    Example:
      >>> import tensorflow as tf
      >>> ds = tf.data.Dataset.from_tensors({"inputs": [7, 8, 1], "targets": [9, 1]})
      >>> ex = next(encoder_decoder(ds, inputs_length=4, targets_length=3, start=0).as_numpy_iterator())
      >>> [ex["decoder_" + name].tolist() for name in ("input_tokens", "target_tokens", "loss_weights")]
      [[0, 9, 0], [9, 1, 0], [1.0, 1.0, 0.0]]
    """
    inputs, targets = batch["inputs"], batch["targets"]
    encoder = Layout(inputs.lengths, inputs_length, packs, "inputs")
    decoder = Layout(targets.lengths, targets_length, packs, "targets")
    # Shifted right as a whole; the first place of each example is then the start.
    shifted_N = np.concatenate([[start], targets.values])[:-1]
    shifted_N[decoder.starts()] = start
    read_N = batch["decoder_inputs"].values if "decoder_inputs" in batch else shifted_N
    features = {
        "encoder_input_tokens": encoder.rows(inputs.values),
        **encoder.features("encoder"),
        **_decoder(decoder, read_N, targets.values),
    }
    if "offset" in batch:
        features["decoder_positions"] += decoder.rows(np.repeat(batch["offset"], targets.lengths))
    return features


@makes_rows
def decoder(
    batch: Records,
    length: int,
    packs: Packs = None,
    opening: int | None = None,
    answers_only: bool = False,
    continues: bool = False,
) -> Rows:
    """Features of a decoder: every token but the first is a target, its inputs are those before it.

    Args:
      batch: records with "tokens" int32 [at most length + 1], and possibly "prefix", an int32 scalar: the first so many
        tokens are no targets; of dialogues also "answers" int32 [as many], 1 at the tokens of answers.
      length: length of the features.
      packs: which records a row is made of; None: one each.
      opening: id that begins a segment of its own wherever it stands; None: a record is one segment.
      answers_only: the tokens of answers alone have a weight.
      continues: also tell of rows that continue the row before whether the first token does; with `opening`.

    Returns:
      decoder_{input_tokens,target_tokens,segment_ids,positions} and decoder_loss_weights [length], and decoder_prefix
      [length], 1 at the prefix's tokens, if the records have one, and decoder_answers [length], 1 where the target is
      an answer's token, if they have these; with `continues` decoder_continues, int32 [], 0 where `opening` is first.

    Raises:
      ValueError: more than length + 1 tokens.

    Example:
      >>> import tensorflow as tf
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
    ends = np.cumsum(tokens.lengths)[tokens.lengths > 0]
    starts = np.concatenate([[0], ends])[:-1]
    layout = Layout(np.maximum(tokens.lengths - 1, 0), length, packs, "targets")
    inputs_N = np.delete(tokens.values, ends - 1)
    features = _decoder(layout, inputs_N, np.delete(tokens.values, starts))
    if opening is not None:
        features |= layout.cut_at(inputs_N == opening).features("decoder")
        if continues:
            features["decoder_continues"] = (features["decoder_input_tokens"][:, 0] != opening).astype(np.int32)
    if "prefix" in batch:
        prefix_N = np.repeat(batch["prefix"], layout.lengths)
        features["decoder_prefix"] = layout.rows(layout.places() < prefix_N)
        features["decoder_loss_weights"] = layout.rows(layout.places() + 1 >= prefix_N).astype(np.float32)
    if "answers" in batch:
        features["decoder_answers"] = layout.rows(np.delete(batch["answers"].values, starts))
        if answers_only:
            features["decoder_loss_weights"] = features["decoder_answers"].astype(np.float32)
    return features


@makes_rows
def encoder(batch: Records, length: int, max_predictions: int, packs: Packs = None) -> Rows:
    """Features of an encoder with masked positions, and the label of a pair of texts where the records have one.

    Args:
      batch: examples with "tokens" and "token_types" int32 [any], "masked_positions" and "masked_targets" int32 [any],
        possibly "is_random_next" or "is_swapped", an int32 scalar, -1 where there is nothing to tell, "ranks" int32
        [any], one for each token, "mask_kind", an int32 scalar, and "positions" and "order" int32 [any], one for each
        token.
      length: length of the encoder's features.
      max_predictions: length of the masked features.
      packs: which examples a row is made of; None: one each.

    Returns:
      encoder_{input_tokens,token_types,segment_ids,positions} [length], masked_{positions,targets,weights}
      [max_predictions]; next_sentence_{labels,weights} [] if the records have "is_random_next", and
      sentence_order_{labels,weights} [] if they have "is_swapped"; encoder_ranks [length] if they have "ranks", and
      masked_kinds [max_predictions], at each position its record's, if they have "mask_kind"; encoder_order [length] if
      they have "order".

    Raises:
      ValueError: more tokens or masked positions than fit; packed rows of examples with such a label: there is one
        place for it in a row.

    Example:
      >>> import tensorflow as tf
      >>> ex = {"tokens": [2, 4, 9, 3], "token_types": [0] * 4, "masked_positions": [1], "masked_targets": [8]}
      >>> ex = next(encoder(tf.data.Dataset.from_tensors(ex), length=5, max_predictions=2).as_numpy_iterator())
      >>> [ex[name].tolist() for name in ("encoder_segment_ids", "masked_targets", "masked_weights")]
      [[1, 1, 1, 1, 0], [8, 0], [1.0, 0.0]]
    """
    tokens, positions = batch["tokens"], batch["masked_positions"]
    layout = Layout(tokens.lengths, length, packs, "tokens")
    masked = Layout(positions.lengths, max_predictions, packs, "masked_positions")
    features = {
        "encoder_input_tokens": layout.rows(tokens.values),
        "encoder_token_types": layout.rows(batch["token_types"].values),
        **layout.features("encoder"),
        # A position counts from its row's beginning.
        "masked_positions": masked.rows(positions.values + np.repeat(layout.before_R, positions.lengths)),
        "masked_targets": masked.rows(batch["masked_targets"].values),
        "masked_weights": masked.weights(),
    }
    for name in ("positions", "ranks", "order"):
        if name in batch:
            features[f"encoder_{name}"] = layout.rows(batch[name].values)
    if "mask_kind" in batch:
        features["masked_kinds"] = masked.rows(np.repeat(batch["mask_kind"], positions.lengths))
    for label, name in (("is_random_next", "next_sentence"), ("is_swapped", "sentence_order")):
        if label not in batch:
            continue
        if packs is not None:
            raise ValueError(f"a packed row has no place for the {name} labels of its examples")
        labels = batch[label].astype(np.int32)
        weights = (labels >= 0).astype(np.float32)
        features |= {f"{name}_labels": np.maximum(labels, 0), f"{name}_weights": weights}
    return features


labelled = makes_rows(rows.texts)
labelled_spans = makes_rows(rows.spans)
choices = makes_rows(rows_of_choices)


def _decoder(layout: Layout, inputs_N: np.ndarray, targets_N: np.ndarray) -> Rows:
    """The decoder's features of inputs and targets of the same lengths."""
    return {
        "decoder_input_tokens": layout.rows(inputs_N),
        "decoder_target_tokens": layout.rows(targets_N),
        **layout.features("decoder"),
        "decoder_loss_weights": layout.weights(),
    }
