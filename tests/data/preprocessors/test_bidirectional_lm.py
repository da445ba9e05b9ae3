"""Running text for two language models: both read each document, and a window goes on where the last one ended."""

import doctest

import numpy as np
import tensorflow as tf

from jaxpt.data.calls import Vocabulary
from jaxpt.data.fingerprint import describe
from jaxpt.data.preprocessors import bidirectional_lm, windows
from jaxpt.objectives.bidirectional_lm import BidirectionalLM

BOS, EOS, UNK, SPELLED, LENGTH = 1, 0, 2, 50, 3


def rows(documents, **options):
    lengths = [len(x) for x in documents]
    tokens = tf.RaggedTensor.from_row_lengths(np.concatenate(documents).astype(np.int32), lengths)
    origin = np.stack([np.zeros(len(lengths), int), np.arange(len(lengths))], 1)
    ds = tf.data.Dataset.from_tensor_slices({"tokens": tokens, "origin": origin})
    ds = bidirectional_lm.both_directions(ds, bos=BOS, eos=EOS, unk=UNK, spelled_from=SPELLED)
    ds = windows.cut(ds, length=2 * (LENGTH + 1), join=True, overlap=2, shortest=2 * (LENGTH + 1))
    ds = bidirectional_lm.features(ds, length=LENGTH, bos=BOS, eos=EOS, **options)
    made = list(ds.as_numpy_iterator())
    return {name: np.concatenate([x[name] for x in made]) for name in made[0]}


def released(sentences):
    """Rows as bilm-tf's `_get_batch` fills them, of one stream: the tokens of a sentence but the last are read, those
    but the first are targets, and the next sentence goes on in the row. A row that is not full in the end is left out.

    Returns:
      (inputs, targets), [rows, LENGTH] each.
    """
    stream, full = iter(sentences), []
    sentence, row = next(stream), []
    while sentence is not None:
        count = min(len(sentence) - 1, LENGTH - len(row))
        row += [(sentence[n], sentence[n + 1]) for n in range(count)]
        sentence = sentence[count:]
        if len(row) == LENGTH:
            full.append(row)
            row = []
        if len(sentence) == 1:
            sentence = next(stream, None)
    return np.moveaxis(np.array(full), 2, 0)


def test_windows_are_the_released_codes():
    documents = [np.arange(10, 15), np.arange(20, 24), np.arange(30, 31), np.arange(40, 48)]
    found = rows(documents, reset_at_documents=False)
    forward = released([[BOS, *x, EOS] for x in documents])
    backward = released([[EOS, *x[::-1], BOS] for x in documents])
    names = ("encoder_input_tokens", "forward_target_tokens", "backward_input_tokens", "backward_target_tokens")
    for name, expected in zip(names, (*forward, *backward), strict=True):
        np.testing.assert_array_equal(found[name].reshape(-1, LENGTH), expected, err_msg=name)
    assert len(forward[0]) == 7 and EOS not in found["encoder_input_tokens"]
    assert (found["encoder_segment_ids"] == 1).all() and (found["target_weights"] == 1).all()


def test_runs_of_records_with_closing_tokens_are_not_resumed():
    """The arguments are the same: the version says that the records are others."""
    spec = BidirectionalLM().data_spec(LENGTH)
    described = describe(spec.transforms(Vocabulary(60, bos=BOS, eos=EOS, unk=UNK), 0))
    assert described["offline"]["1 bidirectional_lm.both_directions"]["version"] == 2


def test_a_document_is_a_segment_where_it_is_reset():
    """Segment 1 is what goes on from the row before."""
    found = rows([np.arange(10, 13), np.arange(20, 27)], reset_at_documents=True)
    opens = found["encoder_input_tokens"] == BOS
    ids = found["encoder_segment_ids"].reshape(-1, LENGTH)
    np.testing.assert_array_equal(ids, 1 + np.cumsum(opens.reshape(-1, LENGTH), 1))
    backward = found["backward_input_tokens"].reshape(-1, LENGTH) == EOS
    np.testing.assert_array_equal(found["backward_segment_ids"].reshape(-1, LENGTH), 1 + np.cumsum(backward, 1))
    assert ids[0, 0] == 2 and ids[1, 0] == 1


def test_a_spelled_word_is_unknown():
    word = [SPELLED + 7, SPELLED + 256 + 8, SPELLED + 256 + 9]
    found = rows([np.array([10, *word, 11, SPELLED + 5, 12, 13])], reset_at_documents=False)
    assert found["encoder_input_tokens"].tolist() == [BOS, 10, UNK, 11, UNK, 12]


def test_examples_in_docstrings():
    assert doctest.testmod(bidirectional_lm).failed == 0
