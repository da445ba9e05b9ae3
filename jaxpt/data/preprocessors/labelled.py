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
from jaxpt.data.sources.rows import Rows
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.vocabularies import tokenizer_of

_TOGETHER = 1024  # rows and records that enter and leave together


def encode(ds: tf.data.Dataset, vocabulary: seqio.Vocabulary, encoder: Any, split_name: str, source: Rows) -> Batches:
    """Encodes rows.

    Args:
      ds: {"text": a row as JSON, "origin": int64 [2] = (file, row)}.
      vocabulary: gives the ids.
      encoder: such as `jaxpt.data.labelled.texts.TextsEncoder`.
      split_name: "train" or "validation".
      source: the rows' source; a mistake of the file is kept in its `failure`.

    Returns:
      Records as `encoder` makes them, without those of no tokens: of rows that are left out, whose number ("too_long",
      "without_answer") is among the source's counts.
    """
    tokenizer, like = tokenizer_of(vocabulary), encoder.like()

    def places() -> Iterator[LocatedRow]:
        for chunk in ds.batch(_TOGETHER).as_numpy_iterator():
            for (file, number), text in zip(chunk["origin"].tolist(), chunk["text"].tolist()):
                yield source.place(split_name, file, number, text.decode())

    def records() -> Iterator[dict[str, np.ndarray]]:
        counts: collections.Counter[str] = collections.Counter()
        for record in encoder(places(), tokenizer, has_targets=True, train=split_name == "train"):
            if source.failure is not None:  # of the file, whose rows ended there
                break
            if len(record.get("tokens", like)):  # of a dialogue that is left out there are none
                yield {name: record[name] for name in like}  # what only predictions need is not stored
            else:
                counts["too_long" if record["truncated"] else "without_answer"] += 1
        if source.failure is None:
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
