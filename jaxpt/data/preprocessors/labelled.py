"""Rows of labelled data as records: tokens, the tokens whose states are used, and targets."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxpt.data import tables
from jaxpt.data._tf import seqio, tf
from jaxpt.data.layout import Ragged
from jaxpt.data.records.shard import Batches
from jaxpt.data.sources.base import Pieces
from jaxpt.data.sources.rows import Rows
from jaxpt.data.vocabularies import tokenizer_of

_TOGETHER = 1024  # records that leave together


def encode(
    ds: tf.data.Dataset, vocabulary: seqio.Vocabulary, encoder: Any, split_name: str, source: Rows, pieces: Pieces
) -> Batches:
    """Encodes rows.

    Args:
      ds: not read: TensorFlow would take the rows one by one, as JSON, which costs more than they do.
      vocabulary: gives the ids.
      encoder: such as `jaxpt.data.labelled.texts.TextsEncoder`.
      split_name: "train" or "validation".
      source: of the rows.
      pieces: which of them.

    Returns:
      Records as `encoder` makes them, without those of no tokens: of rows that are left out, whose number ("too_long",
      "without_answer") is among the source's counts.
    """
    tokenizer, like = tokenizer_of(vocabulary), encoder.like()

    def records() -> Iterator[dict[str, np.ndarray]]:
        counts: collections.Counter[str] = collections.Counter()
        rows = source.rows(split_name, pieces)
        for record in encoder(rows, tokenizer, has_targets=True, train=split_name == "train"):
            if len(record.get("tokens", like)):  # of a dialogue that is left out there are none
                yield {name: record[name] for name in like}  # what only predictions need is not stored
            else:
                counts["too_long" if record["truncated"] else "without_answer"] += 1
        source.counts[split_name] |= counts

    def batches() -> Iterator[dict[str, Ragged]]:
        for chunk in tables.chunks(records(), _TOGETHER):
            yield {name: _together([record[name] for record in chunk], x) for name, x in like.items()}

    spec = {name: tf.TensorSpec([None] if x.shape == (0,) else x.shape, x.dtype) for name, x in like.items()}
    return Batches(spec, batches)


def _together(values: list[np.ndarray], like: np.ndarray) -> Ragged:
    """A feature of many records."""
    if like.shape == (0,):
        return Ragged(np.concatenate(values), np.fromiter(map(len, values), np.int64, len(values)))
    return Ragged(np.array(values, like.dtype), np.ones(len(values), np.int64))
