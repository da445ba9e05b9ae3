"""ULMFiT's classification: texts in chunks, what is pooled, where gradients end, what other texts do not change."""

import dataclasses
import doctest
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.data.labelled.layout import TextLayout
from jaxpt.data.labelled.texts import TextsEncoder
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tokenizers.words import of_words
from jaxpt.errors import UserError
from jaxpt.models.awd_lstm import AWDLSTMConfig
from jaxpt.models.gpt2 import GPT2Config
from jaxpt.models.heads import concat_pool as concat_pool_module
from jaxpt.models.heads.concat_pool import concat_pool
from jaxpt.objectives.classification import Classification
from jaxpt.objectives.recurrent_classification import RecurrentClassification, read_chunks
from jaxpt.objectives.recurrent_lm import RecurrentLM
from tests.labelled import LABELS, VOCABULARY, Numbers, V
from tests.models.helpers import drawn

MODEL = AWDLSTMConfig(vocab_size=V, layers=2, embed_dim=8, hidden_dim=12, dtype="float32")
TASK = ClassificationTask(text="a", labels=LABELS)


def objective(**options):
    return RecurrentClassification(task=TASK, text_layout="decoder", **{"bptt": 4, "hidden_dim": 6, **options})


@functools.cache
def made():
    network = objective().network(MODEL)
    return network, drawn(network)


def batch(*rows):
    """Features of rows, each a list of texts with a label; all rows are as long as the longest."""
    length, most = max(sum(map(len, row)) for row in rows), max(map(len, rows))
    shapes = {"decoder_input_tokens": length, "decoder_segment_ids": length, "label_positions": most, "labels": most}
    out = {name: np.zeros((len(rows), size), np.int32) for name, size in shapes.items()}
    out["label_weights"] = np.zeros((len(rows), most), np.float32)
    for b, row in enumerate(rows):
        end = 0
        for n, text in enumerate(row):
            start, end = end, end + len(text)
            out["decoder_input_tokens"][b, start:end], out["decoder_segment_ids"][b, start:end] = text, n + 1
            out["label_positions"][b, n], out["labels"][b, n], out["label_weights"][b, n] = end - 1, len(text) % 3, 1
    return out


def texts(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(5, V, n).tolist() for n in lengths]


def test_packed_texts_have_the_outputs_of_separate_ones():
    """Chunks of 4 tokens end within texts, between them and in padding; a text that is longer than `max_length`."""
    network, params = made()
    of, (a, b, c) = objective(max_length=6), texts(8, 5, 9)
    run = jax.jit(lambda batch: of.predict(network.bind(params), batch))
    packed, separate = run(batch([a, b, c])), run(batch([a], [b], [c]))
    np.testing.assert_allclose(packed[0], separate[:, 0], rtol=1e-5, atol=1e-6)


def test_chunks_change_gradients_but_no_state():
    """A state is that of the whole text, and its gradient ends where its chunk begins."""
    network, params = made()
    (text,) = texts(10)
    tokens, ids = np.array([text]), np.ones((1, 10), np.int32)
    bound = network.bind(params)
    np.testing.assert_allclose(
        read_chunks(bound, tokens, ids, 4), bound.decode(tokens, segment_ids=ids).hidden, rtol=1e-5, atol=1e-6
    )

    def last(table):
        model = {**params["model"], "token_embed": {"table": table}}
        return read_chunks(network.bind({**params, "model": model}), tokens, ids, 4)[0, -1].sum()

    gradient = jax.jit(jax.grad(last))(params["model"]["token_embed"]["table"])
    assert set(np.flatnonzero(np.abs(gradient).sum(-1))) == set(text[8:])


def test_examples_in_docstrings():
    assert doctest.testmod(concat_pool_module).failed == 0


def test_what_is_pooled_is_the_last_the_largest_and_the_mean():
    x = np.random.default_rng(0).normal(size=(1, 6, 3)).astype(np.float32)
    is_own = np.array([[[0, 1, 1, 1, 0, 0]]], bool)
    found = concat_pool(x, np.array([[3]]), is_own)[0, 0]
    np.testing.assert_allclose(found, [*x[0, 3], *x[0, 1:4].max(0), *x[0, 1:4].mean(0)], rtol=1e-6)


def test_only_the_last_tokens_of_a_text_are_pooled_and_regularised():
    a, b = texts(8, 3)
    features = batch([a, b])
    of = objective(max_length=5)
    pooled = of._regularized({name: jnp.asarray(x) for name, x in features.items()})
    assert pooled.tolist() == [[0] * 3 + [1] * 5 + [2] * 3]
    weights = of.weights({name: jnp.asarray(x) for name, x in features.items()})
    assert (float(weights["activation"]), float(weights["temporal_activation"])) == (8, 6)


@pytest.mark.parametrize("vocabulary", [of_words(["cat"], lowercase=True).vocabulary, Vocabulary(9, bos=8, eos=8)])
def test_a_text_begins_with_a_token_that_the_language_model_read(vocabulary):
    """`opening` is that of new runs; without it, as in older ones, it was <S>, which no document of words has."""
    separator = RecurrentLM().data_spec(8).transforms(vocabulary, 0).offline[-1].kwargs["separator"]
    row = LocatedRow(Row(1, {"a": "5 6", "label": "no"}), "line 1", (0, 1))
    (record,) = objective(opening="eos").encoder(16, vocabulary)([row], Numbers(), has_targets=True, train=True)
    assert record["tokens"].tolist() == [separator, 5, 6]
    assert objective().layout(vocabulary).before == (() if vocabulary.bos == vocabulary.eos else (vocabulary.bos,))


def test_heads_on_decoders_begin_with_bos_where_decoders_read_it():
    head = Classification(task=TASK, text_layout="decoder")
    words = of_words(["cat"], lowercase=True).vocabulary
    for vocabulary, before in ((words, ()), (Vocabulary(9, bos=8, eos=8), ()), (Vocabulary(9, bos=1, eos=2), (1,))):
        assert head.layout(vocabulary).before == before
    assert head.model_copy(update={"text_layout": "bart"}).layout(words).before == (words.bos,)


def test_backward_reads_texts_from_their_ends():
    layout = TextLayout(before=(2,), between=(1,), after=(1,), pooled="last")
    row = LocatedRow(Row(1, {"a": "5 6 7", "b": "8 9", "label": "no"}), "line 1", (0, 1))
    pair = TASK.model_copy(update={"pair": "b"})
    for task, forward, backward in (
        (TASK, [2, 5, 6, 7, 1], [2, 7, 6, 5, 1]),
        (pair, [2, 5, 6, 7, 1, 8, 9, 1], [2, 9, 8, 1, 7, 6, 5, 1]),
    ):
        encoder = TextsEncoder(task, layout, 16)
        for one, tokens in ((encoder, forward), (dataclasses.replace(encoder, reverse=True), backward)):
            (record,) = one([row], Numbers(), has_targets=True, train=True)
            assert record["tokens"].tolist() == tokens
    assert objective(direction="backward").encoder(16, VOCABULARY).reverse
    assert not objective().encoder(16, VOCABULARY).reverse


def test_a_long_text_keeps_what_is_read_last():
    """fastai's code reads all of it, and pools the last tokens."""
    row = LocatedRow(Row(1, {"a": "5 6 7 8 9", "label": "no"}), "line 1", (0, 1))
    for direction, tokens in (("forward", [7, 8, 9]), ("backward", [7, 6, 5])):
        encoder = objective(truncate="left", opening="eos", direction=direction).encoder(4, VOCABULARY)
        (record,) = encoder([row], Numbers(), has_targets=True, train=True)
        assert record["tokens"].tolist()[1:] == tokens and record["truncated"] == 1


def test_the_loss_has_its_parts_in_training_alone():
    network, params = made()
    of, features = objective(), batch(texts(8, 5), texts(9))
    run = jax.jit(lambda rngs: of.loss(network.bind(params, rngs), features)[0])
    trained, evaluated = run({"dropout": jax.random.key(0)}), run({})
    assert set(trained) == set(of.coefficients()) == {"recurrent_classification", "activation", "temporal_activation"}
    assert trained["activation"] > 0 and trained["temporal_activation"] > 0
    assert evaluated["activation"] == evaluated["temporal_activation"] == 0


def test_a_model_without_a_state_is_refused():
    objective().check(MODEL, 16, VOCABULARY)
    gpt2 = GPT2Config(vocab_size=V, layers=1, embed_dim=8, heads=2)
    with pytest.raises(UserError, match="recurrent_classification reads with a recurrent model"):
        objective().check(gpt2, 16, VOCABULARY)
    with pytest.raises(UserError, match=r"objective\.features: recurrent_classification reads the last layer alone"):
        objective(features={"frozen": True}).check(MODEL, 16, VOCABULARY)
