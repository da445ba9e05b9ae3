"""Samples: nothing is shown where an objective has nothing to guess."""

import types

import numpy as np

from jaxpt.evals.samples import Samples


def test_an_encoder_without_masked_positions_has_none():
    batch = {name: np.ones((3, 4), np.int32) for name in ("encoder_input_tokens", "encoder_segment_ids")}
    data = types.SimpleNamespace(validation=types.SimpleNamespace(epoch=lambda *_, **__: iter([batch])))
    setup = types.SimpleNamespace(config=types.SimpleNamespace(objective=types.SimpleNamespace(family="encoder")))
    assert Samples().prepare(setup, data)(None, {}, lambda: False).lines == ()
