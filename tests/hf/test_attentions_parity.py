"""Attention weights equal those of Hugging Face's transformers (`output_attentions`)."""

import numpy as np
import pytest

from jaxpt.decode.embed import Rows
from jaxpt.decode.forward import forward
from jaxpt.hf import load
from tests.hf.parity import V, randomise
from tests.hf.test_parity import CASES, LAYERS

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "modernbert", "deberta", "xlnet", "t5"])
def test_attention_weights(name, tmp_path):
    import torch
    import transformers

    if name not in CASES:
        name = next(case for case in CASES if case.startswith(name))
    architecture, config_class, options = CASES[name]
    config = getattr(transformers, config_class)(**options, attn_implementation="eager")
    theirs = randomise(getattr(transformers, architecture)(config), 0)
    theirs.save_pretrained(tmp_path)
    network, params = load(tmp_path)
    network = network.with_model(dtype="float32")
    ids = np.random.default_rng(0).integers(5, V, 9).tolist()
    (ours,) = forward(network, params, Rows([ids], [[0] * 9], None, [False], [], []), attentions=True)
    model = theirs.get_encoder() if config.is_encoder_decoder else theirs
    with torch.no_grad():
        weights = model(torch.tensor([ids]), output_attentions=True).attentions
    expected = np.stack([layer[0].numpy() for layer in weights])
    assert len(expected) >= LAYERS
    np.testing.assert_allclose(ours.attentions, expected, atol=1e-5)
