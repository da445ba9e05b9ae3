"""Documents cut into windows of at most so many tokens.

Documents go through in groups, each laid end to end in one buffer, so that the work per document is small and what is
held in memory is one group and the rest of the one before it.
"""

from __future__ import annotations

import functools

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.documents import ragged

_GROUP = 32  # documents
_LEAST_BPTT = 5  # tokens of a random window

# Documents laid end to end: "tokens", and for each document the place of its first token ("starts") and the origin of
# that token (file, document, offset in it); where windows hold whole sentences also where those start ("pieces").
_Buffer = dict[str, tf.Tensor]


def cut(
    ds: tf.data.Dataset,
    length: int,
    join: bool,
    separator: int | None = None,
    overlap: int = 0,
    shortest: int = 1,
    group: int | None = None,
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
      group: with `join`, so many documents are laid end to end at a time, and each group has a rest of its own (T5's
        `reduce_concat_tokens`); by default all.

    Returns:
      {"tokens": int32 [at most length], "origin": int64 [3] = (file, document, offset in it) of the first token}.

    Example:
      >>> ds = tf.data.Dataset.from_tensor_slices({"tokens": [[5, 6], [7, 8]], "origin": tf.constant([[0, 0], [0, 1]])})
      >>> [ex["tokens"].tolist() for ex in cut(ds, length=4, join=True, separator=1, overlap=1).as_numpy_iterator()]
      [[5, 6, 1, 7], [7, 8, 1]]
      >>> [ex["tokens"].tolist() for ex in cut(ds, length=3, join=True, group=1).as_numpy_iterator()]
      [[5, 6], [7, 8]]
      >>> [ex["tokens"].tolist() for ex in cut(ds, length=4, join=False).as_numpy_iterator()]
      [[5, 6], [7, 8]]
    """
    if not 0 <= overlap < length:
        raise ValueError(f"overlap {overlap} must be at least 0 and less than length {length}")
    groups = ds.ragged_batch(group or _GROUP)
    groups = groups.map(lambda docs: _lay(docs, separator), num_parallel_calls=tf.data.AUTOTUNE)
    if join and not group:
        nothing, groups = _ended(groups)
        state = {"rest": nothing, "seen": tf.constant(0, tf.int64)}
        cuts = groups.scan(state, lambda state, docs: _cut_joined(state, *docs, length, overlap, shortest))
    else:
        windows = functools.partial(_cut_each, length=length, overlap=overlap, shortest=shortest, join=join)
        cuts = groups.map(windows, num_parallel_calls=tf.data.AUTOTUNE)
    return cuts.flat_map(_unpack)


def cut_random(
    ds: tf.data.Dataset,
    longest: int,
    mean: int,
    std: float,
    half: float,
    seed: int,
    separator: int | None = None,
    shard: int = 0,
) -> tf.data.Dataset:
    """Cuts running text into windows of random lengths, each one token into the one before it (random bptt).

    A length is drawn from N(mean, std²), or with probability `half` from N(mean / 2, std²), and limited to 5 … longest,
    so that no token always stands at a window's end, where nothing after it is in its gradient.
    Paper: https://arxiv.org/abs/1708.02182

    Args:
      ds: {"tokens": int32 [any], "origin": int64 [2] = (file, document)}.
      longest: most inputs of a window, which has one token more.
      mean: of most lengths.
      std: standard deviation of lengths.
      half: share of windows of half the length.
      seed: of all draws.
      separator: id put after every document.
      shard: number of this run of documents in the corpus: others draw otherwise.

    Returns:
      {"tokens": int32 [at most longest + 1], "origin": int64 [3] = (file, document, offset in it) of the first token}.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": list(range(20)), "origin": tf.constant([0, 0], tf.int64)})
      >>> [ex["tokens"].tolist()[::5] for ex in cut_random(ds, 10, 6, 0.0, 0.0, seed=0).as_numpy_iterator()]
      [[0, 5], [6, 11], [12, 17], [18]]
    """
    shortest = min(_LEAST_BPTT, longest)
    groups = ds.ragged_batch(_GROUP).map(lambda docs: _lay(docs, separator), num_parallel_calls=tf.data.AUTOTUNE)
    nothing, groups = _ended(groups)

    def step(state: _Buffer, group: tuple[_Buffer, tf.Tensor]) -> tuple[_Buffer, _Buffer]:
        docs, is_last = _after(state["rest"], group[0]), group[1]
        total = tf.size(docs["tokens"], tf.int64)
        count = total // shortest + 1
        seeds = tf.random.experimental.stateless_split([seed, state["drawn"] + (shard << 32)], 2)
        is_half = tf.random.stateless_uniform([count], seeds[0]) < half
        lengths = tf.round(tf.random.stateless_normal([count], seeds[1], tf.where(is_half, mean / 2, mean * 1.0), std))
        ends = tf.cumsum(tf.cast(tf.clip_by_value(lengths, shortest, longest), tf.int64))
        first = tf.concat([[tf.constant(0, tf.int64)], ends], 0)
        full = tf.reduce_sum(tf.cast(ends < total, tf.int64))
        done = first[full]
        kept = full + tf.cast(is_last & (total - done > 1), tf.int64)
        windows = _windows(docs, first[:kept], tf.minimum(ends[:kept] + 1, total), 2)
        return {"rest": _drop(docs, done), "drawn": state["drawn"] + full}, windows

    state = {"rest": nothing, "drawn": tf.constant(0, tf.int64)}
    return groups.scan(state, step).flat_map(_unpack)


def fill(ds: tf.data.Dataset, length: int, join: bool, separator: int | None = None) -> tf.data.Dataset:
    """Fills windows with as many whole sentences as fit, one after the other (RoBERTa's FULL-SENTENCES).

    A sentence that is longer than a window is cut into pieces. A window neither starts nor ends with the separator.

    Args:
      ds: {"tokens": int32 [any], "sentence_lengths": int32 [sentences], "origin": int64 [2] = (file, document)}.
      length: most tokens in a window.
      join: a window may go on with the next document; otherwise each document has windows of its own
        (DOC-SENTENCES).
      separator: id put between the documents of a window.

    Returns:
      {"tokens": int32 [at most length], "origin": int64 [3] = (file, document, offset in it) of the first token}.

    Example:
      >>> docs = {"tokens": [[4, 5, 6], [7, 8, 9]], "sentence_lengths": [[2, 1], [1, 2]]}
      >>> ds = tf.data.Dataset.from_tensor_slices({**docs, "origin": tf.constant([[0, 0], [0, 1]])})
      >>> [ex["tokens"].tolist() for ex in fill(ds, length=5, join=True, separator=1).as_numpy_iterator()]
      [[4, 5, 6, 1, 7], [8, 9]]
      >>> [ex["tokens"].tolist() for ex in fill(ds, length=5, join=False).as_numpy_iterator()]
      [[4, 5, 6], [7, 8, 9]]
    """

    def lay(docs: dict[str, tf.Tensor]) -> _Buffer:
        return {
            **_lay(docs, separator if join else None),
            "pieces": _pieces(docs, length, join and separator is not None),
        }

    groups = ds.ragged_batch(_GROUP).map(lay, num_parallel_calls=tf.data.AUTOTUNE)
    if join:
        nothing, groups = _ended(groups)
        cuts = groups.scan(nothing, lambda rest, docs: _fill_joined(rest, *docs, length, separator))
    else:
        cuts = groups.map(lambda docs: _fill(docs, length, False)[1], num_parallel_calls=tf.data.AUTOTUNE)
    return cuts.flat_map(_unpack)


def _ended(groups: tf.data.Dataset) -> tuple[_Buffer, tf.data.Dataset]:
    """An empty buffer, and the groups as (buffer, whether it is the end), with the empty one at the end."""
    nothing = {k: tf.zeros([0, *v.shape[1:]], v.dtype) for k, v in groups.element_spec.items()}
    return nothing, groups.map(lambda docs: (docs, False)).concatenate(tf.data.Dataset.from_tensors((nothing, True)))


def _pieces(docs: dict[str, tf.Tensor], length: int, separated: bool) -> tf.Tensor:
    """Where sentences start in the buffer, and the pieces of those that are longer than `length`."""
    sizes = ragged(docs["sentence_lengths"])
    sizes_S = tf.cast(sizes.values, tf.int64)
    if separated:
        last = sizes.row_splits[1:, None] - 1
        sizes_S = tf.tensor_scatter_nd_add(sizes_S, last, tf.ones_like(last[:, 0]))
    counts_S = (sizes_S + length - 1) // length
    first = tf.repeat(tf.cumsum(counts_S, exclusive=True), counts_S)
    nth = tf.range(tf.size(first, tf.int64)) - first
    return tf.repeat(tf.cumsum(sizes_S, exclusive=True), counts_S) + nth * length


def _fill_joined(
    rest: _Buffer, docs: _Buffer, is_last: tf.Tensor, length: int, separator: int | None
) -> tuple[_Buffer, dict[str, tf.Tensor]]:
    """Windows of what was left and more documents, but for the last, which may yet grow; what is left now."""
    docs = _after(rest, docs)
    begins, windows = _fill(docs, length, True, separator)
    begins = tf.concat([begins, [tf.size(docs["tokens"], tf.int64)]], 0)
    done = tf.where(is_last, begins[-1], begins[tf.maximum(tf.size(begins) - 2, 0)])
    whole = windows["first"] < done
    return _drop(docs, done), {k: v if k == "tokens" else tf.boolean_mask(v, whole) for k, v in windows.items()}


def _fill(
    docs: _Buffer, length: int, join: bool, separator: int | None = None
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Where windows begin, and the windows, without the separators at their ends."""
    total = tf.size(docs["tokens"], tf.int64)
    bounds = tf.concat([docs["pieces"], [total]], 0)
    ends = tf.concat([docs["starts"], [total]], 0)

    def next_end(first: tf.Tensor) -> tf.Tensor:
        end = bounds[tf.searchsorted(bounds, [first + length], side="right")[0] - 1]
        return end if join else tf.minimum(end, ends[tf.searchsorted(ends, [first], side="right")[0]])

    def step(n: tf.Tensor, first: tf.Tensor, starts: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        return n + 1, next_end(first), starts.write(n, first)

    state = (tf.constant(0), tf.constant(0, tf.int64), tf.TensorArray(tf.int64, 0, dynamic_size=True, element_shape=[]))
    begins = tf.while_loop(lambda n, first, starts: first < total, step, state)[2].stack()
    first, end = begins, tf.concat([begins[1:], [total]], 0)[: tf.size(begins)]
    if separator is not None:
        first += tf.cast(tf.gather(docs["tokens"], first) == separator, tf.int64)
        end -= tf.cast((end > first) & (tf.gather(docs["tokens"], end - 1) == separator), tf.int64)
    return begins, _windows(docs, first, end, 1)


def _lay(docs: dict[str, tf.Tensor], separator: int | None) -> _Buffer:
    """Lays a batch of documents end to end, the separator after each."""
    tokens = ragged(docs["tokens"])
    if separator is not None:
        tokens = tf.concat([tokens, tf.fill([tokens.nrows(), 1], separator)], axis=1)
    origin = tf.pad(tf.cast(docs["origin"], tf.int64), [[0, 0], [0, 1]])
    return {"tokens": tokens.values, "starts": tokens.row_starts(), "origin": origin}


def _cut_each(docs: _Buffer, length: int, overlap: int, shortest: int, join: bool) -> dict[str, tf.Tensor]:
    """Windows of each document by itself, or with `join` of all as one text."""
    stride = length - overlap
    starts = docs["starts"][:1] if join else docs["starts"]
    ends = tf.concat([starts, [tf.size(docs["tokens"], tf.int64)]], 0)[1:]
    counts = tf.maximum((ends - starts - overlap + stride - 1) // stride, 1)
    text = tf.repeat(tf.range(tf.size(counts)), counts)
    nth = tf.range(tf.size(text, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), text)
    first = tf.gather(starts, text) + nth * stride
    return _windows(docs, first, tf.minimum(first + length, tf.gather(ends, text)), shortest)


def _cut_joined(
    state: dict[str, tf.Tensor], docs: _Buffer, is_last: tf.Tensor, length: int, overlap: int, shortest: int
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Full windows of what was left and more documents; what is left now, of which `seen` tokens are in a window."""
    stride = length - overlap
    docs = _after(state["rest"], docs)
    total = tf.size(docs["tokens"], tf.int64)
    full = tf.maximum((total - overlap) // stride, 0)
    done = full * stride
    covered = tf.where(full > 0, tf.constant(overlap, tf.int64), state["seen"])
    first = stride * tf.range(full + tf.cast(is_last & (total - done > covered), tf.int64))
    windows = _windows(docs, first, tf.minimum(first + length, total), shortest)
    return {"rest": _drop(docs, done), "seen": covered}, windows


def _after(rest: _Buffer, docs: _Buffer) -> _Buffer:
    """A buffer of what was left and more documents."""
    size = tf.size(rest["tokens"], tf.int64)
    moved = {k: docs[k] + size for k in ("starts", "pieces") if k in docs}
    return {k: tf.concat([rest[k], v], 0) for k, v in {**docs, **moved}.items()}


def _drop(docs: _Buffer, done: tf.Tensor) -> _Buffer:
    """The buffer without its first `done` tokens."""
    if "pieces" in docs:
        docs = {**docs, "pieces": tf.boolean_mask(docs["pieces"], docs["pieces"] >= done) - done}
    ends = tf.concat([docs["starts"], [tf.size(docs["tokens"], tf.int64)]], 0)[1:]
    docs = {**docs, "tokens": docs["tokens"][done:], **{k: docs[k][ends > done] for k in ("starts", "origin")}}
    skipped = tf.maximum(done - docs["starts"], 0)
    return {**docs, "starts": docs["starts"] + skipped - done, "origin": _shift(docs["origin"], skipped)}


def _windows(docs: _Buffer, first: tf.Tensor, end: tf.Tensor, shortest: int) -> dict[str, tf.Tensor]:
    """Windows from token `first` to `end` of the buffer and their origins, the short ones left out."""
    enough = end - first >= shortest
    first, end = tf.boolean_mask(first, enough), tf.boolean_mask(end, enough)
    doc = tf.searchsorted(docs["starts"], first, side="right") - 1
    origin = _shift(tf.gather(docs["origin"], doc), first - tf.gather(docs["starts"], doc))
    return {"tokens": docs["tokens"], "first": first, "end": end, "origin": origin}


def _unpack(cuts: dict[str, tf.Tensor]) -> tf.data.Dataset:
    """One element a window."""
    bounds = tf.data.Dataset.from_tensor_slices((cuts["first"], cuts["end"], cuts["origin"]))
    return bounds.map(lambda first, end, origin: {"tokens": cuts["tokens"][first:end], "origin": origin})


def _shift(origin: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """The origins so many tokens further on."""
    return origin + tokens[:, None] * tf.constant([0, 0, 1], tf.int64)


def end_lines(ds: tf.data.Dataset, sep: int, end_documents: bool) -> tf.data.Dataset:
    """Puts [SEP] after each sentence, and one more after each document, as a sentence of its own (fairseq's data).

    Args:
      ds: {"tokens": int32 [any], "sentence_lengths": int32 [sentences], …}.
      sep: id of [SEP].
      end_documents: put one after documents.

    Returns:
      The records with more tokens and sentences.

    Example:
      >>> ds = end_lines(tf.data.Dataset.from_tensors({"tokens": [5, 6, 7], "sentence_lengths": [1, 2]}), 3, True)
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'tokens': [5, 3, 6, 7, 3, 3], 'sentence_lengths': [2, 3, 1]}
    """

    def ended(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        sentences = tf.RaggedTensor.from_row_lengths(ex["tokens"], ex["sentence_lengths"])
        sentences = tf.concat([sentences, tf.fill([sentences.nrows(), 1], sep)], axis=1)
        if end_documents:
            sentences = tf.concat([sentences, [[sep]]], axis=0)
        lengths = tf.cast(sentences.row_lengths(), tf.int32)
        return {**ex, "tokens": sentences.values, "sentence_lengths": lengths}

    return ds.map(ended, num_parallel_calls=tf.data.AUTOTUNE)


def enclose(ds: tf.data.Dataset, cls: int, sep: int | None) -> tf.data.Dataset:
    """Puts [CLS] before and [SEP] after the tokens, all of type 0.

    Args:
      ds: {"tokens": int32 [any], …}.
      cls: id of [CLS].
      sep: id of [SEP]; None puts none.

    Returns:
      The records with "tokens" and "token_types" int32 [any + 2].

    Example:
      >>> ds = enclose(tf.data.Dataset.from_tensors({"tokens": [7, 8]}), cls=2, sep=3)
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'tokens': [2, 7, 8, 3], 'token_types': [0, 0, 0, 0]}
    """

    def enclosed(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens = tf.concat([[cls], ex["tokens"], [] if sep is None else [sep]], 0)
        return {**ex, "tokens": tokens, "token_types": tf.zeros_like(tokens)}

    return ds.map(enclosed, num_parallel_calls=tf.data.AUTOTUNE)
