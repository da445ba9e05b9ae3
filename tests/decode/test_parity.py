"""Scores and filled masks equal those of Hugging Face's transformers, each text alone and without padding."""

import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.decode.embed import embed
from jaxpt.decode.fill import fill_masks
from jaxpt.decode.likelihood import loglikelihood
from jaxpt.hf import load
from jaxpt.objectives.bart import Bart
from jaxpt.objectives.causal_lm import CausalLM
from jaxpt.objectives.masked_lm import MaskedLM
from jaxpt.objectives.span_corruption import SpanCorruption
from tests import grids
from tests.hf.parity import V, randomise
from tests.hf.test_parity import make

pytestmark = [pytest.mark.parity, pytest.mark.slow]

CLS, SEP, MASK, EOS = 2, 3, 4, 1
ENCODER = Vocabulary(V, pad=0, cls=CLS, sep=SEP, mask=MASK)
rng = np.random.default_rng(0)
CONTEXTS, CONTINUATIONS = ([rng.integers(10, V - 10, n).tolist() for n in sizes] for sizes in ((3, 9, 5), (4, 2, 3)))
FILLED = [[10, MASK, 12], [MASK, 11, 12, 13, MASK, 15, 16]]
ENCODERS = ("bert, masked LM alone", "roberta", "albert, groups, masked LM alone", "distilbert", "electra generator",
            "modernbert", "deberta-v3")  # fmt: skip
SMALLEST_GAP = 1e-4  # between probabilities of neighbouring candidates: equal ids are no luck


def both(name, path):
    """Their model, and the first arguments of our functions."""
    model = randomise(make(name), 0)
    model.save_pretrained(path)
    network, params = load(path)
    network = network.with_model(dtype="float32")
    family = network.config.family
    objective = {"encoder": MaskedLM(next_sentence=False), "decoder": CausalLM()}.get(family, SpanCorruption())
    vocabulary = ENCODER if family == "encoder" else Vocabulary(V, eos=EOS, mask=MASK, sentinels=5)
    if name == "bart":
        objective, vocabulary = Bart(), Vocabulary(V, bos=0, eos=2, mask=MASK)
    return model, (network, params, objective, vocabulary)


def log_probs(model, *ids, **more):
    """Their log-probabilities [L, V] of one text."""
    import torch

    names = ("input_ids", "decoder_input_ids")
    with torch.no_grad():
        logits = model(**{name: torch.tensor([x]) for name, x in zip(names, ids)}, **more).logits[0].double()
    return torch.log_softmax(logits, -1).numpy()


@pytest.mark.parametrize(
    "name", grids.cases(ENCODERS, "bert, masked LM alone", "electra generator", "modernbert", "deberta-v3")
)
def test_masks_and_pseudo_log_likelihoods(name, tmp_path):
    model, given = both(name, tmp_path)
    for text, masks in zip(FILLED, fill_masks(*given, FILLED, k=5), strict=True):
        wanted = log_probs(model, [CLS, *text, SEP])
        for one in masks:
            row = wanted[1 + one.position]
            best = np.argsort(-row)[:6]
            assert np.diff(-np.exp(row[best])).min() > SMALLEST_GAP * np.exp(row[best[0]])
            np.testing.assert_array_equal(one.ids, best[:5])
            np.testing.assert_allclose(one.probabilities, np.exp(row[best[:5]]), rtol=1e-3)
    items = loglikelihood(*given, CONTEXTS, CONTINUATIONS).items
    for one, context, continuation in zip(items, CONTEXTS, CONTINUATIONS, strict=True):
        for t, token in enumerate(continuation):
            shown = [CLS, *context, *continuation, SEP]
            shown[1 + len(context) + t] = MASK
            row = log_probs(model, shown)[1 + len(context) + t]
            assert one.log_probs[t] == pytest.approx(row[token], abs=1e-3)


PSEUDO = ("bert, masked LM alone", "roberta", "deberta-v3", "electra generator")


@pytest.mark.parametrize("name", grids.cases(PSEUDO, "bert, masked LM alone"))
def test_pseudo_log_likelihoods_are_those_of_a_loop_over_masks(name, tmp_path):
    """As minicons' `original` and `within_word_l2r`; of random weights as the model draws them, whole texts."""
    model = make(name).eval()
    model.save_pretrained(tmp_path)
    network, params = load(tmp_path)
    given = network.with_model(dtype="float32"), params, MaskedLM(next_sentence=False), ENCODER
    starts = np.arange(V) % 3 != 0
    for unit in ("piece", "word"):
        items = loglikelihood(*given, [[], []], CONTINUATIONS[:2], unit=unit, word_starts=starts).items
        for one, text in zip(items, CONTINUATIONS, strict=False):
            words, wanted = np.cumsum(starts[text]), []
            for t, token in enumerate(text):
                hidden = [t] if unit == "piece" else [u for u in range(t, len(text)) if words[u] == words[t]]
                shown = [MASK if u in hidden else other for u, other in enumerate(text)]
                wanted.append(log_probs(model, [CLS, *shown, SEP])[1 + t][token])
            np.testing.assert_allclose(one.log_probs, wanted, atol=1e-4)
            assert one.total == pytest.approx(sum(wanted), abs=1e-4)


@pytest.mark.parametrize("name", grids.cases(["gpt2", "openai-gpt", "opt", "llama", "mistral"], "gpt2", "mistral"))
def test_a_decoder(name, tmp_path):
    model, given = both(name, tmp_path)
    items = loglikelihood(*given, CONTEXTS, CONTINUATIONS).items
    for one, context, continuation in zip(items, CONTEXTS, CONTINUATIONS, strict=True):
        rows = log_probs(model, [*context, *continuation])[len(context) - 1 : -1]
        np.testing.assert_allclose(one.log_probs, rows[np.arange(len(rows)), continuation], atol=1e-3)
        assert one.is_greedy == (rows.argmax(-1) == continuation).all()


@pytest.mark.parametrize("name", grids.cases(["t5", "t5 1.1", "umt5", "bart"], "t5", "bart"))
def test_an_encoder_decoder(name, tmp_path):
    model, given = both(name, tmp_path)
    items = loglikelihood(*given, CONTEXTS, CONTINUATIONS, form="plain").items
    for one, context, continuation in zip(items, CONTEXTS, CONTINUATIONS, strict=True):
        inputs, start = ([0, *context, 2], [2, 0]) if name == "bart" else ([*context, EOS], [0])
        rows = log_probs(model, inputs, [*start, *continuation])[len(start) - 1 : -1]
        np.testing.assert_allclose(one.log_probs, rows[np.arange(len(rows)), continuation], atol=1e-3)


def test_mean_embeddings_of_a_layer(tmp_path):
    import torch

    model, given = both("bert, masked LM alone", tmp_path)
    for layer in (0, 1, -1):
        for vector, text in zip(embed(*given, CONTEXTS, layer=layer).vectors, CONTEXTS, strict=True):
            with torch.no_grad():
                states = model(torch.tensor([[CLS, *text, SEP]]), output_hidden_states=True).hidden_states
            np.testing.assert_allclose(vector, states[layer][0].mean(0).numpy(), atol=1e-4)
