"""Salient spans: what the default finder finds, and that every example can be filled in again."""

from types import SimpleNamespace

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.calls import Call
from jaxpt.data.preprocessors import salient_spans
from jaxpt.data.seqio_tasks import bind
from jaxpt.errors import UserError
from tests.data.preprocessors import corpus

SETTINGS = {"prefix": "nem: ", "blank": "_X_", "inputs_length": 256, "targets_length": 16, "eos": 1}


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("The mill burned.", []),
        ("It was in May 1912.", ["May 1912"]),
        ("On the 3rd of June, 1990, it ended.", ["3rd of June, 1990"]),
        ("Since the 1980s Ann O'Neill-Bell has lived in New York.", ["1980s", "Ann O'Neill-Bell", "New York"]),
        ("The Duke said so.", ["Duke"]),
        ("Bank of England notes", ["Bank of England"]),
        ("March 5th or August", ["March 5th", "August"]),
        ("In 30000 or x1999y there is none, nor in I.", []),
        ("", []),
    ],
)
def test_dates_and_names(text, spans):
    assert [text[a:b] for a, b in salient_spans.dates_and_names(text)] == spans


def test_every_example_is_filled_in_again():
    count = 0
    for sentence in "\n".join(corpus.documents()).splitlines():
        for inputs, span in salient_spans.blanks(sentence, salient_spans.dates_and_names, "nem: ", "\0"):
            assert inputs.count("\0") == 1 and span == span.strip() != ""
            assert inputs.replace("\0", span) == f"nem: {sentence}"
            count += 1
    assert count > 10_000


def every_word(sentence):
    """A finder of one's own."""
    return [(0, len(sentence.split()[0]))]


def made(text, finder="salient_spans.dates_and_names", **settings):
    ds = tf.data.Dataset.from_tensors({"text": text, "origin": np.array([3, 4])})
    vocabulary = seqio.ByteVocabulary()
    ds = salient_spans.make(ds, vocabulary, finder=finder, **SETTINGS | settings)
    examples = list(ds.as_numpy_iterator())
    inputs, targets = ([vocabulary.decode(ex[side].tolist()[:-1]) for ex in examples] for side in ("inputs", "targets"))
    return list(zip(inputs, targets, (ex["origin"].tolist() for ex in examples)))


@pytest.mark.slow
def test_an_example_for_each_span_that_fits():
    text = "He saw Rome. I saw Paris and Sevastopol-on-the-Sea."
    assert made(text) == [
        ("nem: He saw _X_.", "Rome", [3, 4, 0]),
        ("nem: I saw _X_ and Sevastopol-on-the-Sea.", "Paris", [3, 4, 1]),
    ]
    assert [target for _, target, _ in made(text, inputs_length=18)] == ["Rome"]
    assert made("nothing here") == []


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ("rule", ["nem: He saw _X_.", "nem: I saw _X_.", "nem: In _X_."]),
        ("lines", ["nem: He saw _X_. I saw Paris.", "nem: He saw Rome. I saw _X_.", "nem: In _X_."]),
    ],
)
def test_sentences_are_those_of_the_source(sentences, expected):
    settings = SETTINGS | {"finder": "salient_spans.dates_and_names"}
    source = SimpleNamespace(language=None, fields=None, sentences=sentences)
    preprocessor = bind(Call("salient_spans.make", settings), seqio.ByteVocabulary(), source=source)
    ds = tf.data.Dataset.from_tensors({"text": "He saw Rome. I saw Paris.\nIn May 1912.", "origin": np.array([3, 4])})
    inputs = [ex["inputs"].tolist()[:-1] for ex in preprocessor(ds).as_numpy_iterator()]
    assert [seqio.ByteVocabulary().decode(ids) for ids in inputs] == expected


def test_a_finder_of_ones_own():
    name = f"{__name__}.every_word"
    assert made("one two", name)[0][:2] == ("nem: _X_ two", "one")
    with pytest.raises(UserError, match="did you mean dates_and_names"):
        made("one two", "salient_spans.dates")
