"""Word dropout, and rows of noisy or of whole texts: preprocessors that objectives name by their dotted paths."""

import numpy as np
import tensorflow as tf

from jaxpt.data.preprocessors import features
from jaxpt.data.preprocessors.batched import makes_rows, one_to_one, uniform
from jaxpt.data.records.shard import Ragged


@one_to_one
def word_dropout(batch, keys, rate, unk):
    """Adds "noisy": the tokens, each replaced by `unk` with probability `rate`.

    Paper: https://arxiv.org/abs/1511.06349
    """
    tokens = batch["tokens"]
    noisy = tf.where(uniform(keys, tokens) < rate, unk, tokens.values)
    return {**batch, "noisy": tokens.with_values(noisy)}


@makes_rows
def noisy_decoder(records, length, packs=None):
    """Features of a decoder that reads the noisy tokens and predicts the true ones."""
    true, noisy = (features.decoder.rows({"tokens": records[name]}, length, packs) for name in ("tokens", "noisy"))
    return true | {"decoder_input_tokens": noisy["decoder_input_tokens"]}


@makes_rows
def encoder(records, length, packs=None):
    """Features of an encoder without masked positions."""
    none = Ragged(np.zeros(0, np.int32), np.zeros(len(records["tokens"].lengths), np.int64))
    return features.encoder.rows({**records, "masked_positions": none, "masked_targets": none}, length, 0, packs)
