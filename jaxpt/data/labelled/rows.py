"""From records of labelled data to the features of a batch. NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxpt.data.layout import Layout, Ragged, Rows


def together(records: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Single records as a batch of them: sequences as `Ragged`, others stacked.

    Args:
      records: at least one; what has one axis and another length in each is a sequence.
    """
    ragged = ("tokens", "token_types", "positions", "targets")
    return {
        name: Ragged(np.concatenate([r[name] for r in records]), np.array([len(r[name]) for r in records]))
        if name in ragged
        else np.stack([r[name] for r in records])
        for name in records[0]
    }


def texts(
    batch: Mapping[str, Any],
    length: int,
    examples: int,
    side: str,
    start: int | None = None,
    packs: np.ndarray | None = None,
    orders: int = 1,
) -> Rows:
    """Features of texts with a target each, or with one at each of some tokens.

    Args:
      batch: records with "tokens" and "token_types" int32 [any], "positions" int32 [any], the tokens whose states are
        used, and "target", a number or a vector for each record, or "targets" int32 [any], one for each position.
      length: length of the features.
      examples: most positions in a row; with `orders` most records.
      side: "encoder" or "decoder": the part of the model that reads the texts.
      start: of an encoder-decoder, the id that its decoder starts from; it reads the same tokens, shifted right.
      packs: which records a row is made of; None: one each.
      orders: above 1 a record is so many sequences, each a segment of its own that ends at one of its "positions".

    Returns:
      <side>_{input_tokens,segment_ids,positions} [length], encoder_token_types [length], with `start` also
      decoder_{input_tokens,segment_ids,positions}; label_{positions,weights} [examples], labels [examples, ...]; with
      `orders` label_positions [examples, orders].

    Raises:
      ValueError: more tokens or positions than fit.

    Example:
      >>> record = {"tokens": np.array([2, 7, 3]), "token_types": np.zeros(3, int), "positions": np.array([0])}
      >>> found = texts(together([{**record, "target": np.int32(1)}]), 4, 1, "encoder")
      >>> [found[name].tolist() for name in ("encoder_segment_ids", "label_positions", "labels", "label_weights")]
      [[[1, 1, 1, 0]], [[0]], [[1]], [[1.0]]]
    """
    positions = batch["positions"]
    layout, features = _read(batch, length, side, start, packs)
    if orders > 1:  # each sequence of a record ends at a position
        starts_P = np.repeat(np.cumsum(layout.lengths) - layout.lengths, positions.lengths)
        opens_N = np.zeros(layout.lengths.sum() + 1, bool)
        opens_N[starts_P + positions.values + 1] = True
        features |= layout.cut_at(opens_N[:-1]).features(side)
    ends = Layout(positions.lengths, orders * examples, packs, "positions")
    label_positions = ends.rows(positions.values + np.repeat(layout.before_R, positions.lengths))
    labels = Layout(positions.lengths // orders, examples, packs, "positions")
    target = batch["targets"].values if "targets" in batch else np.repeat(batch["target"], labels.lengths, axis=0)
    placed = np.zeros((*labels.weights().shape, *target.shape[1:]), target.dtype)
    placed[labels.weights() > 0] = target
    return features | {
        "label_positions": label_positions if orders == 1 else label_positions.reshape(-1, examples, orders),
        "labels": placed,
        "label_weights": labels.weights(),
    }


def spans(
    batch: Mapping[str, Any],
    length: int,
    examples: int,
    side: str,
    start: int | None = None,
    packs: np.ndarray | None = None,
) -> Rows:
    """Features of texts in which a span is to be found.

    Args:
      batch: records with "tokens" and "token_types" int32 [any], and "positions" int32 [2], the first and the last
        token of the span.
      length: length of the features.
      examples: most records in a row.
      side: as in `texts`.
      start: as in `texts`.
      packs: which records a row is made of; None: one each.

    Returns:
      As `texts`, with label_positions [examples, 2] and label_weights [examples], without labels.

    Example:
      >>> record = {"tokens": np.array([2, 7, 3]), "token_types": np.zeros(3, int), "positions": np.array([1, 2])}
      >>> found = spans(together([record, record]), 6, 2, "encoder", packs=np.array([0, 2]))
      >>> found["label_positions"].tolist(), found["label_weights"].tolist()
      ([[[1, 2], [4, 5]]], [[1.0, 1.0]])
    """
    layout, features = _read(batch, length, side, start, packs)
    ends = Layout(batch["positions"].lengths, 2 * examples, packs, "positions")
    positions = ends.rows(batch["positions"].values + np.repeat(layout.before_R, batch["positions"].lengths))
    return features | {
        "label_positions": positions.reshape(-1, examples, 2), "label_weights": ends.weights()[:, ::2],
    }  # fmt: skip


def _read(
    batch: Mapping[str, Any], length: int, side: str, start: int | None, packs: np.ndarray | None
) -> tuple[Layout, Rows]:
    """What the model reads."""
    tokens = batch["tokens"]
    layout = Layout(tokens.lengths, length, packs, "tokens")
    features = {f"{side}_input_tokens": layout.rows(tokens.values), **layout.features(side)}
    if side == "encoder":
        features["encoder_token_types"] = layout.rows(batch["token_types"].values)
    if start is not None:
        shifted_N = np.concatenate([[start], tokens.values])[:-1]
        shifted_N[layout.starts()] = start
        features |= {"decoder_input_tokens": layout.rows(shifted_N), **layout.features("decoder")}
    return layout, features
