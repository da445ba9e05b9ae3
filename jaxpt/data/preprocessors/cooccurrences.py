"""GloVe's records: how often words are near each other in a whole corpus. Paper: https://aclanthology.org/D14-1162

Shapes: N known tokens of all texts end to end · X pairs of words that are near each other · P pairs of a record
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.data.layout import Layout, Ragged
from jaxpt.data.preprocessors.batched import Records, makes_rows
from jaxpt.data.records.shard import Batches
from jaxpt.data.records.store import Store
from jaxpt.errors import UserError

_CHUNK = 1 << 21  # tokens that are counted together
_SEED = 0  # of the order of the pairs, in which records are cut; the records are shuffled again in every epoch


def count(store: Store, vocabulary_size: int, *, window: int, length: int, unknown: int | None) -> Batches:
    """The pairs of words that are at most `window` apart, each with Σ 1 / distance, in a random order.

    Args:
      store: records with "tokens".
      vocabulary_size: ids.
      window: words on each side.
      length: P.
      unknown: the id of unknown words, which are left out before distances are counted, as in the released code.

    Returns:
      Records {"words", "contexts": int32 [P], "counts": float32 [P]}; the last one may have fewer pairs. Both orders of
      a pair are there.

    Raises:
      UserError: there is no pair.
    """
    tokens_N, lengths = store.values("tokens"), store.lengths("tokens")
    text_N = np.repeat(np.arange(len(lengths)), lengths)
    if unknown is not None:
        is_known_N = tokens_N != unknown
        tokens_N, text_N = tokens_N[is_known_N], text_N[is_known_N]
    pairs_X, counts_X = _counted(tokens_N, text_N, vocabulary_size, window)
    if not len(pairs_X):
        raise UserError("objective.window: no two known words of the text are as near; lower data.tokenizer.min_count")
    order_X = np.random.default_rng(_SEED).permutation(len(pairs_X))
    words_X, contexts_X = np.divmod(pairs_X[order_X], vocabulary_size)
    columns = {"words": words_X.astype(np.int32), "contexts": contexts_X.astype(np.int32)}
    columns["counts"] = counts_X[order_X].astype(np.float32)

    def make() -> Iterator[dict[str, Ragged]]:
        starts = np.arange(0, len(pairs_X), length)
        lengths = np.minimum(length, len(pairs_X) - starts)
        yield {name: Ragged(values, lengths) for name, values in columns.items()}

    return Batches({name: tf.TensorSpec([None], values.dtype) for name, values in columns.items()}, make)


def _counted(tokens_N: np.ndarray, text_N: np.ndarray, size: int, window: int) -> tuple[np.ndarray, np.ndarray]:
    """(word · size + context ascending, int64 [X]; Σ 1 / distance, float64 [X]) of tokens and the text of each."""
    pairs, counts = np.zeros(0, np.int64), np.zeros(0)
    for start in range(0, len(tokens_N), _CHUNK):
        keys, weights = [pairs], [counts]
        for distance in range(1, window + 1):
            first = slice(start, max(min(start + _CHUNK, len(tokens_N) - distance), start))
            second = slice(first.start + distance, first.stop + distance)
            is_pair = text_N[first] == text_N[second]
            one, other = (tokens_N[part][is_pair].astype(np.int64) for part in (first, second))
            keys += [one * size + other, other * size + one]
            weights += [np.full(len(one), 1 / distance)] * 2
        pairs, counts = _summed(np.concatenate(keys), np.concatenate(weights))
    return pairs, counts


def _summed(keys: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each key once, with the sum of its weights."""
    order = np.argsort(keys, kind="stable")
    keys, weights = keys[order], weights[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.add.reduceat(weights, starts) if len(starts) else weights


@makes_rows
def features(batch: Records, length: int, packs: None = None) -> dict[str, np.ndarray]:
    """Features of GloVe: a row for each record.

    Args:
      batch: records of `count`.
      length: P.
      packs: None: records are as long as rows.

    Returns:
      words, contexts int32 [P] and counts float32 [P], 0 where there is no pair.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"words": [7, 8], "contexts": [8, 7], "counts": [1.5, 1.5]})
      >>> {name: x.tolist() for name, x in next(features(ds, length=3).as_numpy_iterator()).items()}
      {'words': [7, 8, 0], 'contexts': [8, 7, 0], 'counts': [1.5, 1.5, 0.0]}
    """
    layout = Layout(batch["words"].lengths, length, None, "pairs")
    counts_BxP = layout.weights()
    counts_BxP[counts_BxP > 0] = batch["counts"].values
    return {name: layout.rows(batch[name].values) for name in ("words", "contexts")} | {"counts": counts_BxP}
