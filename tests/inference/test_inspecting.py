"""A loaded model as a function: logits, hidden states and attention weights of texts and ids; and what it shows."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import jaxpt
from jaxpt.errors import UserError
from jaxpt.inference import inspecting
from tests import labelled
from tests.inference.helpers import TEXTS, loaded, made


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "llama"])
def test_one_pass_gives_all(family):
    model = loaded(family)
    outputs = model(TEXTS[:3], layer="all", attentions=True)
    for text, output in zip(TEXTS, outputs):
        length, config = len(output.ids), model.network.config
        assert output.tokens == model.tokenizer.tokens(output.ids)
        assert output.hidden.shape == (config.layers + 1, length, config.embed_dim)
        assert output.attentions.shape == (config.layers, config.heads, length, length)
        np.testing.assert_allclose(output.attentions.sum(-1), 1, atol=1e-5)
        if config.family == "decoder":
            assert not np.triu(output.attentions, 1).any()
        (states,) = model.embed([text], pooling="none")
        np.testing.assert_allclose(output.hidden[-1], states, atol=1e-5)
        assert output.logits.shape == (length if family != "t5" else 1, config.vocab_size)
        assert (output.decoder is None) == (family != "t5")


def test_ids_are_as_their_text():
    model = loaded("gpt2")
    ids = model.tokenizer.encode("the cat")
    of_text, of_ids, (of_list,) = model("the cat"), model(np.array(ids)), model([ids], layer=None)
    np.testing.assert_array_equal(of_text.logits, of_ids.logits)
    np.testing.assert_allclose(of_text.logits, of_list.logits, atol=1e-5)
    assert of_text.hidden.ndim == 2 and of_list.hidden is None and of_text.attentions is None
    assert "logits=[" in repr(of_text) and model([]) == []
    total = jax.nn.log_softmax(of_text.logits)[np.arange(len(ids) - 1), ids[1:]].sum()
    assert total == pytest.approx(model.loglikelihood(["the"], [" cat"])[0].total, abs=1e-4)


def test_a_decoder_reads_its_targets_after_its_start():
    """Of unequal texts in one batch each has what it has alone; the logits are those of the log-likelihood."""
    model = loaded("t5")
    targets = ["the cat ran", "a dog"]
    together = model(TEXTS[:2], targets=targets, layer="all", attentions=True)
    for text, target, output in zip(TEXTS, targets, together):
        ids, config = model.tokenizer.encode(target), model.network.config
        decoder, length = output.decoder, len(output.ids)
        assert decoder.ids == [model.vocabulary.pad, *ids] and decoder.tokens == model.tokenizer.tokens(decoder.ids)
        assert decoder.hidden.shape == (config.layers + 1, len(decoder.ids), config.embed_dim)
        assert decoder.attentions.shape == (config.layers, config.heads, len(decoder.ids), len(decoder.ids))
        assert decoder.cross_attentions.shape == (config.layers, config.heads, len(decoder.ids), length)
        np.testing.assert_allclose(decoder.cross_attentions.sum(-1), 1, atol=1e-5)
        assert not np.triu(decoder.attentions, 1).any()
        of_ids = model(text, decoder_inputs=decoder.ids, layer=None)
        np.testing.assert_allclose(of_ids.logits, output.logits, atol=1e-5)
        total = jax.nn.log_softmax(output.logits)[np.arange(len(ids)), ids].sum()
        assert total == pytest.approx(model.loglikelihood([text], [target], form="plain")[0].total, abs=1e-4)
    assert "; DecoderForward(" in repr(output) and "cross_attentions=[" in repr(output)


def test_bos_follows_a_start_that_a_file_names(tmp_path):
    """BART learned to read both before its targets; in `generate` it reads the start alone and writes BOS itself."""
    path = made(tmp_path / "model", "t5")
    (path / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": loaded("t5").vocabulary.eos}))
    model = jaxpt.load(path, objective="bart")
    v = model.tokenizer.vocabulary = dataclasses.replace(model.vocabulary, bos=model.vocabulary.unk)
    ids = model.tokenizer.encode("a dog")
    output = model(TEXTS[0], targets="a dog", layer=None)
    assert output.decoder.ids == [v.eos, v.bos, *ids]
    total = jax.nn.log_softmax(output.logits[1:])[np.arange(len(ids)), ids].sum()
    assert total == pytest.approx(model.loglikelihood(TEXTS[:1], ["a dog"], form="plain")[0].total, abs=1e-4)
    assert model.prompt_ids("a dog").tokens == model(TEXTS[0], layer=None).decoder.ids == [v.eos]


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("gpt2", {"targets": "a"}, "targets: are for encoder-decoders; gpt2 has one stack"),
        ("t5", {"targets": ["a", "b"]}, r"targets\[0\]: expected a text or a list of ids"),
        ("t5", {"targets": "a", "decoder_inputs": [1]}, "give one of them"),
        ("t5", {"decoder_inputs": [99999]}, "decoder input 0: id 99999 is not in the vocabulary"),
        ("t5", {"decoder_inputs": []}, r"decoder_inputs\[0\]: is empty"),
        ("gpt2", {"layer": "foo"}, "layer: foo is not known; a number, several, all or mix are"),
        ("gpt2", {"layer": 1.5}, "layer: 1.5 is not known"),
        ("gpt2", {"layer": ()}, r"layer: \(\) is not known"),
        ("gpt2", {"layer": 99}, "layer: 99 is not one of the model's"),
    ],
)
def test_wrong_options_of_a_call_are_named(family, options, words):
    with pytest.raises(UserError, match=words):
        loaded(family)("the cat", **options)


def test_a_text_beyond_the_positions_is_named():
    with pytest.raises(UserError, match=r"inputs\[1\]: 4\d\d tokens.*the model's length is"):
        loaded("bert")(["a", "the " * 400])


@pytest.mark.parametrize("inputs", [3, ["a", 3], [[1.5]], [None]])
def test_other_inputs_are_refused(inputs):
    with pytest.raises(UserError, match=r"inputs.*: expected"):
        loaded("gpt2")(inputs)


def test_the_parameters_are_a_tree_and_the_model_shows_itself():
    model = loaded("bert")
    assert sum(x.size for x in jax.tree.leaves(model.params)) >= model.network.count_params()
    lines = repr(model).splitlines()
    assert lines[0].startswith("jaxpt.load(") and "bert (encoder): 2 layers, 32 wide" in lines[1] and len(lines) == 5


@pytest.mark.parametrize(
    ("kind", "row", "columns"),
    [
        ("regression", "7 8", {"a": "7 8"}),
        ("classification", ("7", "8"), {"a": "7", "b": "8"}),
        ("question_answering", ("7", "8 9"), {"a": "7", "b": "8 9"}),
        ("tagging", "7 8", {"tokens": ["7", "8"]}),
        ("tagging", ["7", "8"], {"tokens": ["7", "8"]}),
        ("multiple_choice", {"a": "7", "b": "8", "c": "9"}, {"a": "7", "b": "8", "c": "9"}),
    ],
)
def test_a_row_may_be_a_text_a_tuple_or_a_dict(kind, row, columns):
    task = labelled.objective_of(kind, loaded("bert").network.config).task
    assert inspecting.columns_of(task, row, "row 0") == columns


def test_a_row_of_another_size_is_named():
    task = labelled.objective_of("question_answering", loaded("bert").network.config).task
    with pytest.raises(UserError, match=r"row 3: expected a tuple \(a, b\) or a dict of columns, got 'who'"):
        inspecting.columns_of(task, "who", "row 3")


def test_a_model_without_a_task_predicts_nothing():
    with pytest.raises(UserError, match="predict needs a run that was fine-tuned on a task"):
        loaded("bert").predict(["a text"])
