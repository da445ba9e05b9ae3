"""Text to text: the features of each kind of model are those made by hand, and what the loss looks at."""

import jax
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.data.labelled.rows import Ragged
from jaxpt.errors import UserError
from jaxpt.objectives.formats import Format
from tests import families
from tests.models.helpers import drawn
from tests.text_pairs import LABELS, TEXTS, Words, config, ids, records, rows

WORDS = Words()
ROW = {"mr": "the cat", "ref": "it is good"}


def features(model, row=ROW, **keys):
    """The features of a row, as the loader makes them."""
    from jaxpt.data.seqio_tasks import resolve

    made = config(model, **keys)
    (record,) = records(made, WORDS, rows(row))
    batch = {
        name: Ragged(x, np.array([len(x)])) if np.ndim(x) == 1 and name != "origin" else x[None]
        for name, x in record.items()
    }
    call = made.objective.to_features(made.data.length, WORDS.vocabulary)
    found = resolve(call.name).rows(batch, **call.kwargs)
    return {name: found[name][0] for name in made.objective.data_spec(made.data.length).features}


def padded(text, length):
    return np.array((ids(WORDS, text) + [0] * length)[:length])


@pytest.mark.parametrize("model, bos, start", [("t5", "", "<pad> "), ("bart", "<s> ", "</s> ")])
def test_the_features_of_an_encoder_decoder(model, bos, start):
    found = features(model)
    np.testing.assert_equal(found["encoder_input_tokens"], padded(bos + "say the cat </s>", 16))
    np.testing.assert_equal(found["decoder_target_tokens"], padded(bos + "it is good </s>", 6))
    np.testing.assert_equal(found["decoder_input_tokens"], padded(start + bos + "it is good", 6))
    np.testing.assert_equal(found["decoder_loss_weights"], padded(bos + "it is good </s>", 6) > 0)
    np.testing.assert_equal(found["encoder_segment_ids"], padded(bos + "say the cat </s>", 16) > 0)


def test_the_features_of_a_decoder():
    found = features("gpt2")
    before, after = "<s> say the cat =>", "it is good </s>"
    np.testing.assert_equal(found["decoder_input_tokens"], padded(f"{before} it is good", 16))
    np.testing.assert_equal(found["decoder_target_tokens"], padded(f"say the cat => {after}", 16))
    np.testing.assert_equal(found["decoder_loss_weights"], [0, 0, 0, 0, 1, 1, 1, 1] + [0] * 8)
    assert "decoder_prefix" not in found, "attention is causal in the inputs too"


@pytest.mark.slow
def test_a_decoder_learns_from_the_answer_alone():
    """Other inputs' targets change no loss, and the logits of inputs get no gradient."""
    made = config("gpt2")
    network = families.network(made)
    params, batch = drawn(network), {name: x[None] for name, x in features("gpt2").items()}
    loss = jax.jit(lambda batch: made.objective.loss(network.bind(params), batch)[0]["text_to_text"])

    other = batch["decoder_target_tokens"].copy()
    other[:, :4] = 9
    assert float(loss(batch)) == float(loss({**batch, "decoder_target_tokens": other}))
    other[:, 4] = 9
    assert float(loss(batch)) != float(loss({**batch, "decoder_target_tokens": other}))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["t5", "gpt2"])
def test_label_smoothing_is_of_the_answer(model):
    plain, smooth = config(model), config(model, label_smoothing=0.1)
    network = families.network(plain)
    params, batch = drawn(network), {name: x[None] for name, x in features(model).items()}
    both = jax.jit(lambda params: [c.objective.loss(network.bind(params), batch) for c in (plain, smooth)])
    (sums, metrics), (smoothed, same) = both(params)
    assert float(sums["text_to_text"]) != float(smoothed["text_to_text"])
    np.testing.assert_allclose(metrics["token_loss"], same["token_loss"], rtol=1e-6)


def test_labels_are_words():
    found = features("t5", {"text": "the dog", "label": 2}, task=LABELS | {"name": "toy"})
    np.testing.assert_equal(found["decoder_target_tokens"], padded("very good </s>", 6))


def test_what_the_model_reads_first_is_known_to_generation():
    for model, wanted in (
        ("t5", Format((), (1,), (0,))), ("bart", Format((2,), (1,), (1, 2))), ("gpt2", Format()),
    ):  # fmt: skip
        made = config(model)
        assert made.objective.text_format(made.model, WORDS.vocabulary) == wanted
        made.objective.check_writes("runs/x")


def test_a_model_with_a_head_writes_no_text():
    made = config("gpt2", LABELS, kind="classification")
    with pytest.raises(UserError, match=r"runs/x: was fine-tuned with .*classification.*; use jaxpt predict runs/x"):
        made.objective.check_writes("runs/x")


@pytest.mark.parametrize(
    "model, keys, said",
    [
        ("t5", {"decide_by": "likelihood"}, "objective.decide_by: likelihood needs labels"),
        ("t5", {"normalize": True}, "objective.normalize: true is for objective.decide_by: likelihood"),
        ("gpt2", {"targets_length": 16}, "objective.targets_length: 16 must be below data.length, 16"),
        ("t5", {"task": TEXTS | {"metrics": ["accuracy"]}}, "task.metrics: accuracy"),
    ],
)
def test_what_does_not_fit_is_refused(model, keys, said):
    made = config(model, **keys)
    with pytest.raises(UserError, match=said):
        made.objective.check(made.model, made.data.length, WORDS.vocabulary)


def test_cuts_of_two_texts_change_nothing():
    """Inputs are one text: a new run is refused, one that an earlier version let begin goes on."""
    for truncate in ("first", "second", "halves"):
        recipe = config("t5", truncate=truncate)
        (line,) = recipe.objective.idle_settings()
        assert line.startswith(f"objective.truncate: {truncate} is for heads on texts")
        recipe.objective.check(recipe.model, recipe.data.length, WORDS.vocabulary)
    for truncate in ("longest_first", "error"):
        assert config("gpt2", truncate=truncate).objective.idle_settings() == ()


@pytest.mark.parametrize("model", ["t5", "bart", "gpt2"])
def test_a_vocabulary_without_an_end_is_refused(model):
    made = config(model)
    for tokens in ({}, {"sep": 1}):
        with pytest.raises(UserError, match=r"text_to_text needs a vocabulary with EOS; data\.tokenizer\.kind"):
            made.objective.check(made.model, made.data.length, Vocabulary(size=20, **tokens))


@pytest.mark.parametrize("keys", [{"dropout": 0.5}, {"examples": 2}])
def test_what_a_head_has_is_refused(keys):
    with pytest.raises(UserError, match=rf"objective\.{next(iter(keys))}: wants null, got"):
        config("t5", **keys)
