"""Rows of labelled data as records: tokens, the tokens whose states are used, and targets."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxpt.data._tf import from_generator, seqio, tf
from jaxpt.data.sources.rows import Rows
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.vocabularies import tokenizer_of


def encode(
    ds: tf.data.Dataset, vocabulary: seqio.Vocabulary, encoder: Any, split_name: str, source: Rows
) -> tf.data.Dataset:
    """Encodes rows.

    Args:
      ds: {"text": a row as JSON, "origin": int64 [2] = (file, row)}.
      vocabulary: gives the ids.
      encoder: such as `jaxpt.data.labelled.texts.TextsEncoder`.
      split_name: "train" or "validation".
      source: the rows' source; a mistake in a row is kept in its `failure`.

    Returns:
      Records as `encoder` makes them, without those of no tokens: of rows that are left out, whose number ("too_long",
      "without_answer") is among the source's counts.
    """
    tokenizer, like = tokenizer_of(vocabulary), encoder.like()

    def places() -> Iterator[LocatedRow]:
        for ex in ds.as_numpy_iterator():
            yield source.place(split_name, *ex["origin"].tolist(), ex["text"].decode())

    def records() -> Iterator[dict[str, np.ndarray]]:
        counts: collections.Counter[str] = collections.Counter()
        for record in encoder(places(), tokenizer, has_targets=True, train=split_name == "train"):
            if source.failure is not None:  # of the rows, which ended there
                return
            if len(record.get("tokens", like)):  # of a dialogue that is left out there are none
                yield {name: record[name] for name in like}  # what only predictions need is not stored
            else:
                counts["too_long" if record["truncated"] else "without_answer"] += 1
        source.counts[split_name] |= counts

    signature = {name: tf.TensorSpec([None] if x.shape == (0,) else x.shape, x.dtype) for name, x in like.items()}
    return from_generator(records, signature, source.fail)
