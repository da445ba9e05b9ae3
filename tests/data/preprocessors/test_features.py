"""Features: padding, shift, masks; an id 0 in a text is a token; too long is an error."""

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.data.preprocessors import features
from jaxpt.data.records.shard import Ragged


def first(ds):
    return next(ds.as_numpy_iterator())


def dataset(**features):
    """One record whose lengths are unknown to the graph, as those of a store."""
    ex = {k: np.array(v, np.int32) for k, v in features.items()}
    signature = {k: tf.TensorSpec([None] * v.ndim, tf.int32) for k, v in ex.items()}
    return tf.data.Dataset.from_generator(lambda: iter([ex]), output_signature=signature)


@pytest.mark.slow
def test_encoder_decoder():
    ex = first(features.encoder_decoder(dataset(inputs=[7, 0, 1], targets=[0, 9, 1]), 5, 4, start=6))
    assert {k: v.tolist() for k, v in ex.items()} == {
        "encoder_input_tokens": [7, 0, 1, 0, 0],
        "encoder_segment_ids": [1, 1, 1, 0, 0],
        "encoder_positions": [0, 1, 2, 0, 0],
        "decoder_input_tokens": [6, 0, 9, 0],
        "decoder_target_tokens": [0, 9, 1, 0],
        "decoder_segment_ids": [1, 1, 1, 0],
        "decoder_positions": [0, 1, 2, 0],
        "decoder_loss_weights": [1.0, 1.0, 1.0, 0.0],
    }


def test_decoder():
    ex = first(features.decoder(dataset(tokens=[5, 0, 7]), 4))
    assert {k: v.tolist() for k, v in ex.items()} == {
        "decoder_input_tokens": [5, 0, 0, 0],
        "decoder_target_tokens": [0, 7, 0, 0],
        "decoder_segment_ids": [1, 1, 0, 0],
        "decoder_positions": [0, 1, 0, 0],
        "decoder_loss_weights": [1.0, 1.0, 0.0, 0.0],
    }


def test_encoder():
    record = {"tokens": [2, 0, 3, 8, 3], "token_types": [0, 0, 0, 1, 1], "masked_positions": [1], "masked_targets": [0]}
    ex = first(features.encoder(dataset(**record, is_random_next=1), 6, 3))
    assert {k: v.tolist() for k, v in ex.items()} == {
        "encoder_input_tokens": [2, 0, 3, 8, 3, 0],
        "encoder_token_types": [0, 0, 0, 1, 1, 0],
        "encoder_segment_ids": [1, 1, 1, 1, 1, 0],
        "encoder_positions": [0, 1, 2, 3, 4, 0],
        "masked_positions": [1, 0, 0],
        "masked_targets": [0, 0, 0],
        "masked_weights": [1.0, 0.0, 0.0],
        "next_sentence_labels": 1,
        "next_sentence_weights": 1.0,
    }
    assert not any(name.startswith("next_sentence") for name in first(features.encoder(dataset(**record), 6, 3)))


def records(**features):
    """A batch of records, as a store gives it."""
    return {
        name: Ragged(np.array([x for row in rows for x in row], np.int32), np.array([len(row) for row in rows]))
        for name, rows in features.items()
    }


def test_packed_rows_of_pairs_some_of_which_are_empty_on_a_side():
    pairs = records(inputs=[[7, 8], [], [9], [5]], targets=[[1], [2, 3], [], [4]])
    rows = features.encoder_decoder.rows(pairs, 4, 3, start=6, packs=np.array([0, 3, 4]))
    assert {name: x.tolist() for name, x in rows.items()} == {
        "encoder_input_tokens": [[7, 8, 9, 0], [5, 0, 0, 0]],
        "encoder_segment_ids": [[1, 1, 3, 0], [1, 0, 0, 0]],
        "encoder_positions": [[0, 1, 0, 0], [0, 0, 0, 0]],
        "decoder_input_tokens": [[6, 6, 2], [6, 0, 0]],
        "decoder_target_tokens": [[1, 2, 3], [4, 0, 0]],
        "decoder_segment_ids": [[1, 2, 2], [1, 0, 0]],
        "decoder_positions": [[0, 0, 1], [0, 0, 0]],
        "decoder_loss_weights": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
    }
    with pytest.raises(ValueError, match="targets of an example are longer than their feature of length 2: 3"):
        features.encoder_decoder.rows(pairs, 4, 2, start=6, packs=np.array([0, 3, 4]))


def test_packed_rows_of_masked_records_and_windows():
    packs = np.array([0, 2])
    masked = records(tokens=[[2, 9, 3], [2, 4, 3]], token_types=[[0] * 3] * 2, masked_positions=[[1], [0, 1]],
                     masked_targets=[[9], [2, 8]])  # fmt: skip
    rows = features.encoder.rows(masked, 7, 4, packs)
    assert rows["masked_positions"].tolist() == [[1, 3, 4, 0]] and rows["masked_targets"].tolist() == [[9, 2, 8, 0]]
    with pytest.raises(ValueError, match="no place for the next_sentence labels"):
        features.encoder.rows(masked | {"is_random_next": np.array([0, 1])}, 7, 4, packs)
    rows = features.decoder.rows(records(tokens=[[5, 6, 7], [8, 9]]), 4, packs)
    assert rows["decoder_input_tokens"].tolist() == [[5, 6, 8, 0]]
    assert rows["decoder_target_tokens"].tolist() == [[6, 7, 9, 0]]


def test_shapes_are_static():
    spec = features.encoder_decoder(dataset(inputs=[7], targets=[9]), 5, 4, start=0).element_spec
    assert {tuple(s.shape) for name, s in spec.items() if name.startswith("encoder")} == {(5,)}
    assert {tuple(s.shape) for name, s in spec.items() if name.startswith("decoder")} == {(4,)}


ENCODER = {"tokens": [5] * 5, "token_types": [0] * 5, "masked_positions": [1, 2], "masked_targets": [5, 5]}


@pytest.mark.parametrize(
    ("name", "make", "record"),
    [
        ("inputs", lambda ds: features.encoder_decoder(ds, 5, 4, start=0), {"inputs": [7] * 6, "targets": [9]}),
        ("targets", lambda ds: features.encoder_decoder(ds, 5, 4, start=0), {"inputs": [7], "targets": [9] * 5}),
        ("targets", lambda ds: features.decoder(ds, 4), {"tokens": [5] * 6}),
        ("tokens", lambda ds: features.encoder(ds, 4, 2), ENCODER),
        ("masked_positions", lambda ds: features.encoder(ds, 5, 1), ENCODER),
    ],
)
def test_too_long_is_an_error(name, make, record):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name} of an example are longer"):
        first(make(dataset(**record)))


def test_exactly_full():
    ex = first(features.decoder(dataset(tokens=[5, 6, 7]), 2))
    np.testing.assert_array_equal(ex["decoder_loss_weights"], [1.0, 1.0])


def test_ranks_positions_and_kinds_of_packed_records_are_each_records_own():
    lengths = np.array([3, 4])
    tokens = Ragged(np.arange(5, 12, dtype=np.int32), lengths)
    records = {
        "tokens": tokens,
        "token_types": tokens,
        "ranks": Ragged(np.array([0, 1, 2, 0, 0, -1, -2]), lengths),
        "positions": Ragged(np.array([0, 1, 2, 0, 1, 0, 1]), lengths),
        "mask_kind": np.array([2, 3]),
        "masked_positions": Ragged(np.array([1, 0, 3]), np.array([1, 2])),
        "masked_targets": Ragged(np.array([7, 8, 9]), np.array([1, 2])),
    }
    made = features.encoder.rows(records, length=8, max_predictions=4, packs=np.array([0, 2]))
    assert made["encoder_ranks"].tolist() == [[0, 1, 2, 0, 0, -1, -2, 0]]
    assert made["encoder_positions"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 0]]
    assert made["masked_positions"].tolist() == [[1, 3, 6, 0]]
    assert made["masked_kinds"].tolist() == [[2, 3, 3, 0]]


def test_a_label_below_zero_tells_nothing():
    one = Ragged(np.array([2, 9, 3]), np.array([3]))
    masked = {name: Ragged(np.array([1]), np.array([1])) for name in ("masked_positions", "masked_targets")}
    for label, expected in ((1, (1, 1.0)), (0, (0, 1.0)), (-1, (0, 0.0))):
        records = {"tokens": one, "token_types": one, **masked, "is_random_next": np.array([label])}
        made = features.encoder.rows(records, length=3, max_predictions=1)
        assert (made["next_sentence_labels"][0], made["next_sentence_weights"][0]) == expected
