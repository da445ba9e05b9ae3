"""Documents to tokens: what is dropped, where sentences end."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.preprocessors import documents

BYTES = seqio.ByteVocabulary()


def dataset(*texts):
    origin = np.array([[7, n] for n in range(len(texts))], np.int64)
    return tf.data.Dataset.from_tensor_slices({"text": list(texts), "origin": origin})


def test_tokenize_drops_empty_documents_and_keeps_the_others_origin():
    out = list(documents.tokenize(dataset("ab", "", "c"), BYTES).as_numpy_iterator())
    assert [(BYTES.decode(ex["tokens"].tolist()), ex["origin"].tolist()) for ex in out] == [
        ("ab", [7, 0]),
        ("c", [7, 2]),
    ]
    assert out[0]["tokens"].dtype == np.int32 and out[0]["origin"].dtype == np.int64


def test_tokenize_sentences_gives_each_sentences_ids():
    ds = documents.tokenize_sentences(dataset("One. Two!\n\nthree\n", " \n ", "four"), BYTES)
    out = list(ds.as_numpy_iterator())
    assert [ex["origin"].tolist() for ex in out] == [[7, 0], [7, 2]]
    sentences = np.split(out[0]["tokens"], np.cumsum(out[0]["sentence_lengths"])[:-1])
    assert [BYTES.decode(s.tolist()) for s in sentences] == ["One.", "Two!", "three"]
    assert out[1]["sentence_lengths"].tolist() == [4]


def test_sentences_one_a_line_are_berts():
    ds = documents.tokenize_sentences(dataset("One. Two!\n three. Four \n\n"), BYTES, sentences="lines")
    assert next(ds.as_numpy_iterator())["sentence_lengths"].tolist() == [9, 11]


def test_the_splitter_is_replaceable():
    ds = documents.tokenize_sentences(dataset("a|b. C"), BYTES, split=lambda text: tf.strings.split(text, "|"))
    assert next(ds.as_numpy_iterator())["sentence_lengths"].tolist() == [1, 4]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rained. He left.", ["It rained.", "He left."]),
        ("Why? No! Yes.", ["Why?", "No!", "Yes."]),
        ('He said "go." "Why?" she asked.', ['He said "go."', '"Why?" she asked.']),
        ("He said “go.” “Why?” she asked.", ["He said “go.”", "“Why?” she asked."]),
        ("It was 3.5 m, e.g. long. Él vino. Ägypten", ["It was 3.5 m, e.g. long.", "Él vino.", "Ägypten"]),
        ("A. B. C", ["A.", "B.", "C"]),
        ("no end\r\n\n  next  line", ["no end", "next  line"]),
        ("雨が降った。彼は帰った！なぜ？", ["雨が降った。", "彼は帰った！", "なぜ？"]),
        ("「行こう。」彼女は言った。。。はい", ["「行こう。」", "彼女は言った。。。", "はい"]),
        ("下雨了. 他走了?為什麼", ["下雨了.", "他走了?", "為什麼"]),  # ASCII marks, as some write them
        ("Yahoo!ニュース３．５％。終わり．次", ["Yahoo!ニュース３．５％。", "終わり．", "次"]),
        ("그는 갔다. 그녀는 왔다.", ["그는 갔다.", "그녀는 왔다."]),
        ("वह गया। वह आई॥", ["वह गया।", "वह आई॥"]),
        ("هل ذهب؟ نعم. عاد", ["هل ذهب؟", "نعم.", "عاد"]),
        ("הוא הלך. היא באה", ["הוא הלך.", "היא באה"]),
        ("", []),
    ],
)
def test_split_sentences(text, sentences):
    assert [s.decode() for s in documents.split_sentences(tf.constant(text)).numpy()] == sentences
