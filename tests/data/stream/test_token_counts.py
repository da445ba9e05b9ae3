"""How often ids are in the records, as online transforms ask for it."""

import numpy as np
import tensorflow as tf

from jaxpt.data.calls import Vocabulary
from jaxpt.data.records import store as stores
from jaxpt.data.stream.online import compile_online
from jaxpt.objectives.span_boundary import SpanBoundary
from tests.stores import build


def test_random_tokens_are_those_of_the_records(tmp_path, monkeypatch):
    rows = [[2, *[7] * 20, *[8] * 8, 3]] * 60
    records = tf.data.Dataset.from_generator(
        lambda: ({"tokens": np.array(row, np.int32), "token_types": np.zeros(30, np.int32)} for row in rows),
        output_signature={name: tf.TensorSpec([None], tf.int32) for name in ("tokens", "token_types")},
    )
    store = build(lambda: records, tmp_path / "store")
    assert store.token_counts(10).tolist() == [0, 0, 60, 60, 0, 0, 0, 1200, 480, 0]
    objective = SpanBoundary(mask_probability=0.0, random_probability=1.0, unit="piece", rounding="nearest")
    vocabulary = Vocabulary(size=10, cls=2, sep=3, mask=4)
    calls = objective.data_spec(30).transforms(vocabulary, 0).online
    counts = lambda: store.token_counts(10)  # noqa: E731
    made = compile_online(calls, None, store.spec, objective.data_spec(30).features, False, counts)
    features = made(store.fetch(np.arange(60)), np.arange(60, dtype=np.uint64), np.arange(61))
    at, real = features["masked_positions"], features["masked_weights"] > 0
    shown = np.take_along_axis(features["encoder_input_tokens"], at, axis=1)[real]
    assert set(shown) == {7, 8} and abs((shown == 7).mean() - 1200 / 1680) < 0.15
    monkeypatch.setattr(stores, "COUNTED", 300)
    assert store.token_counts(10).sum() == 300
