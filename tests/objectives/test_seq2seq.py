"""Supervised training of an encoder-decoder: its features, and that its loss is that of its targets alone."""

import jax
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.models.network import Network
from jaxpt.objectives.base import Vocabulary
from jaxpt.objectives.seq2seq import Seq2Seq
from jaxpt.objectives.span_corruption import SpanCorruption
from tests import families
from tests.models.helpers import drawn


def test_features_follow_both_lengths():
    features = Seq2Seq(targets_length=7).batches.features(20)
    assert {shape for name, (shape, _) in features.items() if name.startswith("encoder")} == {(20,)}
    assert {shape for name, (shape, _) in features.items() if name.startswith("decoder")} == {(7,)}
    assert Seq2Seq().batches.examples(20) == 20 and Seq2Seq(targets_length=7).batches.examples(20) == 7
    assert Seq2Seq().batches.features(20).keys() == SpanCorruption().batches.features(20).keys()
    assert SpanCorruption().batches.examples(20) is None


def test_too_short_is_refused():
    with pytest.raises(UserError, match=r"data\.length: 1 is too short"):
        Seq2Seq().check(None, 1, Vocabulary(size=100, eos=1))


def test_the_loss_is_that_of_the_weighted_targets():
    objective = {"kind": "seq2seq", "targets_length": 6}
    config = families.config("t5", model={"layers": 1}, objective=objective, data={"length": 8})
    model = config.model.build()
    batch = families.batch(config)
    features = config.objective.batches.features(8)
    assert {name: value.shape[1:] for name, value in batch.items()} == {n: shape for n, (shape, _) in features.items()}
    params = drawn(model)
    loss = jax.jit(lambda batch: config.objective.loss(Network(model).bind({"model": params}), batch)[0]["seq2seq"])
    weights = config.objective.loss.weights(batch)
    assert set(weights) == set(config.objective.loss.coefficients()) == {"seq2seq"}
    np.testing.assert_allclose(weights["seq2seq"], batch["decoder_loss_weights"].sum())
    targets = batch["decoder_target_tokens"]
    hidden = dict(batch, decoder_target_tokens=np.where(batch["decoder_loss_weights"] > 0, targets, 3))
    np.testing.assert_allclose(loss(hidden), loss(batch), rtol=1e-6)
    changed = dict(batch, decoder_target_tokens=targets ^ 1)
    assert abs(loss(changed) - loss(batch)) > 1e-3
