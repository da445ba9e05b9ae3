"""Words: the rule that cuts them, their order, what is unknown, and the files."""

import collections

import numpy as np
import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers.words import split
from jaxpt.errors import UserError

TEXTS = ["The cat sat on the mat, didn't it?", "The dog sat (on) the cat. Überall."]


def train(vocab_size=100, **settings):
    return tokenizers.train(TEXTS, TokenizerConfig(kind="words", **settings), vocab_size)


def test_words_are_sorted_by_how_often_they_occur():
    words = train()
    want = collections.Counter(word for text in TEXTS for word in split(text))
    assert words.words[:3] == ["</S>", "<S>", "<UNK>"] and set(words.words[3:]) == set(want)
    assert words.counts.tolist() == [0, 0, 0, *(want[word] for word in words.words[3:])]
    assert (np.diff(words.counts[3:]) <= 0).all()
    assert words.words[3:8] == [".", "The", "cat", "on", "sat"], "of equal counts in alphabetical order"
    assert words.vocabulary.unk == 2 and words.word_starts().all()


def test_rare_words_and_those_without_room_are_unknown():
    words = train(min_count=2)
    assert min(words.counts[3:]) == 2
    assert words.decode(words.encode("The dog sat")) == "The <UNK> sat"
    assert words.counts[2] == sum(train().counts) - sum(words.counts[3:])
    assert train(vocab_size=5).vocabulary.size == 5
    with pytest.raises(UserError, match=r"data\.tokenizer\.min_count: 9: no word .*'\.', occurs 2 times"):
        train(min_count=9)


def test_offsets_and_given_words():
    words = train(lowercase=True)
    ((ids, offsets),) = words.encode_with_offsets(["  The  überall!"])
    assert offsets.tolist() == [[2, 5], [7, 14], [14, 15]] and ids == words.encode("the uberall !")
    ((the, cut, unknown),) = words.encode_words([["the", "cat.", "n't"]])
    assert (the, cut) == (words.encode("the"), words.encode("cat .")) and unknown[0] == 2


def test_files(tmp_path):
    words = train(lowercase=True)
    words.save(tmp_path)
    again = tokenizers.load(tmp_path)
    assert (again.words, again.lowercase, again.digest()) == (words.words, True, words.digest())
    np.testing.assert_array_equal(again.counts, words.counts)
    published = tmp_path / "vocab-elmo.txt"
    published.write_text("</S>\n<S>\n<UNK>\nthe\n")
    assert tokenizers.load(published, "words").encode("the cat") == [3, 2]
    published.write_text("</S>\n<S>\nthe\n")
    with pytest.raises(UserError, match=r"vocab-elmo\.txt: has no line <UNK>"):
        tokenizers.load(published, "words")


def test_words_that_are_not_known_are_spelled(tmp_path):
    words = tokenizers.train(TEXTS, TokenizerConfig(kind="spelled_words", min_count=2), 900)
    v, text = words.vocabulary, "The dog: Überall é"
    assert v.spelled_from == len(words.words) == v.size - 512 and (v.cls, v.sep) == (1, 0)
    ((ids, offsets),) = words.encode_with_offsets([text])
    assert words.encode(text) == ids and words.decode(ids) == "The dog : Überall é"
    spelled = [v.spelled_from + byte + 256 * (n > 0) for n, byte in enumerate(b"dog")]
    assert ids[1:4] == spelled and offsets[:4].tolist() == [[0, 3], [4, 7], [4, 7], [4, 7]]
    assert words.tokens(ids[1:4]) == ["d", "##o", "##g"] and words.word_starts()[ids[:4]].tolist() == [1, 1, 0, 0]
    ((given, the),) = words.encode_words([["n't", "The"]])
    assert words.decode(given) == "n't" and the == words.encode("The")
    words.save(tmp_path)
    assert tokenizers.load(tmp_path).encode(text) == ids
