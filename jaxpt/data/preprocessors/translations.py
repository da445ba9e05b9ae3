"""Pairs of a text and its translation in one record. Paper: https://arxiv.org/abs/1901.07291"""

from __future__ import annotations

from collections.abc import Sequence

from jaxpt.data._tf import seqio, tf
from jaxpt.data.sources.readers import PAIR_SEPARATOR


def join(
    ds: tf.data.Dataset,
    vocabulary: seqio.Vocabulary,
    fields: Sequence[str],
    length: int,
    sep: int,
    languages: Sequence[str],
    types: bool,
    text_length: int | None = None,
) -> tf.data.Dataset:
    """[SEP] x [SEP] [SEP] y [SEP], positions of the second text from 0 again.

    A pair is left out whole, as in XLM's code, if it or one of its texts is too long: what is cut off a text is missing
    in its translation. So is a pair of which one text is empty.

    Args:
      ds: documents of two texts, parted by `readers.PAIR_SEPARATOR`.
      vocabulary: gives the ids.
      fields: languages of the two texts.
      length: most tokens in a record.
      sep: id of [SEP].
      languages: of all sources, in the order of their token types; `fields` where there are none.
      types: token types say the language; false: all are 0.
      text_length: most tokens in a text, without [SEP]; by default what fits.

    Returns:
      {"tokens", "token_types", "positions": int32 [at most length], "origin": int64 [3]}.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"text": "cat" + PAIR_SEPARATOR + "Kater", "origin": [0, 0]})
      >>> settings = {"length": 12, "sep": 1, "languages": ["de", "en"], "types": True}
      >>> ex = next(join(ds, seqio.ByteVocabulary(), ["en", "de"], **settings).as_numpy_iterator())
      >>> [ex[name].tolist() for name in ("tokens", "token_types", "positions")]  # doctest: +NORMALIZE_WHITESPACE
      [[1, 102, 100, 119, 1, 1, 78, 100, 119, 104, 117, 1],
       [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
       [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]]
    """
    numbers = [list(languages or fields).index(field) if types else 0 for field in fields]

    def joined(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        texts = tf.strings.split(ex["text"], PAIR_SEPARATOR)
        ids = [tf.ensure_shape(tf.cast(vocabulary.encode_tf(texts[n]), tf.int32), [None]) for n in (0, 1)]
        sides = [tf.concat([[sep], side, [sep]], 0) for side in ids]
        sizes = tf.stack([tf.size(side) for side in ids])
        return {
            "fits": tf.reduce_all((sizes > 0) & (sizes <= (text_length or length)))
            & (sum(map(tf.size, sides)) <= length),
            "tokens": tf.concat(sides, 0),
            "token_types": tf.concat([tf.fill(tf.shape(side), number) for side, number in zip(sides, numbers)], 0),
            "positions": tf.concat([tf.range(tf.size(side)) for side in sides], 0),
            "origin": tf.concat([tf.cast(ex["origin"], tf.int64), [0]], 0),
        }

    ds = ds.map(joined, num_parallel_calls=tf.data.AUTOTUNE)
    ds = ds.filter(lambda ex: ex["fits"])
    return ds.map(lambda ex: {name: x for name, x in ex.items() if name != "fits"})
