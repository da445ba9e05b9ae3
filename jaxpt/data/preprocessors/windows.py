"""Documents cut into windows of at most so many tokens.

Documents go through in groups, each laid end to end in one buffer, so that the work per document is small and what is
held in memory is one group and the rest of the one before it.
"""

from __future__ import annotations

import tensorflow as tf

from jaxpt.data.preprocessors.documents import ragged

_GROUP = 32  # documents

# What a group leaves to the next one: tokens not yet in a full window (but for `overlap` at the front, of which `seen`
# says how many), and for each document among them its first token's place in `tokens` and its origin.
_State = dict[str, tf.Tensor]


def cut(
    ds: tf.data.Dataset,
    length: int,
    join: bool,
    separator: int | None = None,
    overlap: int = 0,
    shortest: int = 1,
) -> tf.data.Dataset:
    """Cuts documents into windows, each `overlap` tokens into the one before it.

    Every token is in a window, but for a last rest of fewer than `shortest` tokens. A rest that brings no new token
    makes no window.

    Args:
      ds: {"tokens": int32 [any], "origin": int64 [2] = (file, document)}.
      length: tokens in a window.
      join: lay all documents end to end first; otherwise no window crosses a document's end, and each document has a
        rest of its own.
      separator: id put after every document.
      overlap: tokens that a window shares with the one before it, fewer than `length`.
      shortest: fewest tokens in a window.

    Returns:
      {"tokens": int32 [at most length], "origin": int64 [3] = (file, document, offset in it) of the first token}.

    Example:
      >>> ds = tf.data.Dataset.from_tensor_slices({"tokens": [[5, 6], [7, 8]], "origin": tf.constant([[0, 0], [0, 1]])})
      >>> [ex["tokens"].tolist() for ex in cut(ds, length=4, join=True, separator=1, overlap=1).as_numpy_iterator()]
      [[5, 6, 1, 7], [7, 8, 1]]
      >>> [ex["tokens"].tolist() for ex in cut(ds, length=4, join=False).as_numpy_iterator()]
      [[5, 6], [7, 8]]
    """
    if not 0 <= overlap < length:
        raise ValueError(f"overlap {overlap} must be at least 0 and less than length {length}")
    stride = length - overlap

    def group(ex: dict[str, tf.Tensor]) -> _State:
        tokens = ragged(ex["tokens"])
        if separator is not None:
            tokens = tf.concat([tokens, tf.fill([tokens.nrows(), 1], separator)], axis=1)
        origin = tf.pad(tf.cast(ex["origin"], tf.int64), [[0, 0], [0, 1]])
        return {"tokens": tokens.values, "starts": tokens.row_starts(), "origin": origin}

    def each(docs: _State) -> dict[str, tf.Tensor]:
        """Windows of each document by itself."""
        ends = tf.concat([docs["starts"][1:], [tf.size(docs["tokens"], tf.int64)]], 0)
        counts = tf.maximum((ends - docs["starts"] - overlap + stride - 1) // stride, 1)
        doc = tf.repeat(tf.range(tf.size(counts)), counts)
        nth = tf.range(tf.size(doc, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), doc)
        start = tf.gather(docs["starts"], doc) + nth * stride
        end = tf.minimum(start + length, tf.gather(ends, doc))
        return windows(docs, start, end)

    def joined(rest: _State, docs_last: tuple[_State, tf.Tensor]) -> tuple[_State, dict[str, tf.Tensor]]:
        """Full windows of the rest and a group of documents laid end to end; the last group's rest, too."""
        docs, is_last = docs_last
        old = tf.size(rest["tokens"], tf.int64)
        all_docs = {
            "tokens": tf.concat([rest["tokens"], docs["tokens"]], 0),
            "starts": tf.concat([rest["starts"], docs["starts"] + old], 0),
            "origin": tf.concat([rest["origin"], docs["origin"]], 0),
        }
        total = tf.size(all_docs["tokens"], tf.int64)
        full = tf.maximum((total - overlap) // stride, 0)
        done = full * stride
        seen = tf.where(full > 0, tf.constant(overlap, tf.int64), rest["seen"])
        count = full + tf.cast(is_last & (total - done > seen), tf.int64)
        start = tf.range(count) * stride
        return after(all_docs, done, seen), windows(all_docs, start, tf.minimum(start + length, total))

    def after(docs: _State, done: tf.Tensor, seen: tf.Tensor) -> _State:
        """What is left from token `done` on."""
        ends = tf.concat([docs["starts"][1:], [tf.size(docs["tokens"], tf.int64)]], 0)
        left = ends > done
        start = tf.boolean_mask(docs["starts"], left)
        skipped = tf.maximum(done - start, 0)
        origin = tf.boolean_mask(docs["origin"], left) + skipped[:, None] * tf.constant([0, 0, 1], tf.int64)
        return {"tokens": docs["tokens"][done:], "starts": start + skipped - done, "origin": origin, "seen": seen}

    def windows(docs: _State, start: tf.Tensor, end: tf.Tensor) -> dict[str, tf.Tensor]:
        """Windows from `start` to `end` in the buffer, the short ones left out."""
        enough = end - start >= shortest
        start, end = tf.boolean_mask(start, enough), tf.boolean_mask(end, enough)
        doc = tf.searchsorted(docs["starts"], start, side="right") - 1
        offset = start - tf.gather(docs["starts"], doc)
        origin = tf.gather(docs["origin"], doc) + offset[:, None] * tf.constant([0, 0, 1], tf.int64)
        return {"tokens": docs["tokens"], "start": start, "end": end, "origin": origin}

    def unpack(group: dict[str, tf.Tensor]) -> tf.data.Dataset:
        bounds = tf.data.Dataset.from_tensor_slices((group["start"], group["end"], group["origin"]))
        return bounds.map(lambda start, end, origin: {"tokens": group["tokens"][start:end], "origin": origin})

    groups = ds.ragged_batch(_GROUP).map(group, num_parallel_calls=tf.data.AUTOTUNE)
    if not join:
        return groups.map(each, num_parallel_calls=tf.data.AUTOTUNE).flat_map(unpack)
    nothing = {
        "tokens": tf.zeros([0], tf.int32),
        "starts": tf.zeros([0], tf.int64),
        "origin": tf.zeros([0, 3], tf.int64),
    }
    groups = groups.map(lambda g: (g, False)).concatenate(tf.data.Dataset.from_tensors((nothing, True)))
    return groups.scan({**nothing, "seen": tf.zeros([], tf.int64)}, joined).flat_map(unpack)


def enclose(ds: tf.data.Dataset, cls: int, sep: int) -> tf.data.Dataset:
    """Puts [CLS] before and [SEP] after the tokens, all of type 0.

    Args:
      ds: {"tokens": int32 [any], …}.
      cls: id of [CLS].
      sep: id of [SEP].

    Returns:
      The records with "tokens" and "token_types" int32 [any + 2].

    Example:
      >>> ds = enclose(tf.data.Dataset.from_tensors({"tokens": [7, 8]}), cls=2, sep=3)
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'tokens': [2, 7, 8, 3], 'token_types': [0, 0, 0, 0]}
    """

    def enclosed(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens = tf.concat([[cls], ex["tokens"], [sep]], 0)
        return {**ex, "tokens": tokens, "token_types": tf.zeros_like(tokens)}

    return ds.map(enclosed, num_parallel_calls=tf.data.AUTOTUNE)
