"""Supervised training of an encoder-decoder: its features, and that its loss is that of its targets alone."""

import jax
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.network import Network
from jaxpt.objectives.seq2seq import Seq2Seq
from jaxpt.objectives.span_corruption import SpanCorruption
from tests import families
from tests.models.helpers import drawn


def test_features_follow_both_lengths():
    features = Seq2Seq(targets_length=7).data_spec(20).features
    assert {shape for name, (shape, _) in features.items() if name.startswith("encoder")} == {(20,)}
    assert {shape for name, (shape, _) in features.items() if name.startswith("decoder")} == {(7,)}
    assert (
        Seq2Seq().data_spec(20).max_target_tokens == 20
        and Seq2Seq(targets_length=7).data_spec(20).max_target_tokens == 7
    )
    assert Seq2Seq().data_spec(20).features.keys() == SpanCorruption().data_spec(20).features.keys()
    assert SpanCorruption().data_spec(20).max_target_tokens is None


def test_too_short_is_refused():
    with pytest.raises(UserError, match=r"data\.length: 1 is too short"):
        Seq2Seq().check(None, 1, Vocabulary(size=100, eos=1))


def test_the_loss_is_that_of_the_weighted_targets():
    objective = {"kind": "seq2seq", "targets_length": 6}
    config = families.config("t5", model={"layers": 1}, objective=objective, data={"length": 8})
    model = config.model.build()
    batch = families.batch(config)
    features = config.objective.data_spec(8).features
    assert {name: value.shape[1:] for name, value in batch.items()} == {n: shape for n, (shape, _) in features.items()}
    params = drawn(model)
    loss = jax.jit(lambda batch: config.objective.loss(Network(model).bind({"model": params}), batch)[0]["seq2seq"])
    weights = config.objective.weights(batch)
    assert set(weights) == set(config.objective.coefficients()) == {"seq2seq"}
    np.testing.assert_allclose(weights["seq2seq"], batch["decoder_loss_weights"].sum())
    targets = batch["decoder_target_tokens"]
    hidden = dict(batch, decoder_target_tokens=np.where(batch["decoder_loss_weights"] > 0, targets, 3))
    np.testing.assert_allclose(loss(hidden), loss(batch), rtol=1e-6)
    changed = dict(batch, decoder_target_tokens=targets ^ 1)
    assert abs(loss(changed) - loss(batch)) > 1e-3
