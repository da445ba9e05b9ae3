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


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_both_stacks_of_an_encoder_decoder(name, tmp_path):
    """Logits, hidden states of both stacks, and their three kinds of attention weights."""
    import torch
    import transformers

    name = next(case for case in CASES if case.startswith(name))
    architecture, config_class, options = CASES[name]
    config = getattr(transformers, config_class)(**options, attn_implementation="eager")
    theirs = randomise(getattr(transformers, architecture)(config), 0)
    theirs.save_pretrained(tmp_path)
    network, params = load(tmp_path)
    network = network.with_model(dtype="float32")
    draw = np.random.default_rng(0)
    texts, decoded = ([draw.integers(5, V, n).tolist() for n in lengths] for lengths in ((9, 14), (7, 4)))
    rows = Rows(texts, [[0] * len(ids) for ids in texts], None, [False] * 2, [], [])
    outputs = forward(network, params, rows, "all", attentions=True, decoder_rows=decoded)
    for ids, decoder_ids, ours in zip(texts, decoded, outputs):
        with torch.no_grad():
            expected = theirs(
                input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([decoder_ids]),
                output_attentions=True, output_hidden_states=True,
            )  # fmt: skip
        np.testing.assert_allclose(ours.logits, expected.logits[0].numpy(), atol=1e-4)
        for mine, layers in (
            (ours.hidden, expected.encoder_hidden_states),
            (ours.attentions, expected.encoder_attentions),
            (ours.decoder.hidden, expected.decoder_hidden_states),
            (ours.decoder.attentions, expected.decoder_attentions),
            (ours.decoder.cross_attentions, expected.cross_attentions),
        ):
            np.testing.assert_allclose(mine, np.stack([layer[0].numpy() for layer in layers]), atol=1e-4)
