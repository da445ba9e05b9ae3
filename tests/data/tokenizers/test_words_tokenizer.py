"""Whole words: in the order of their counts, rare ones unknown, the same from the files."""

import doctest

import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import words
from jaxpt.errors import UserError

TEXTS = ["The cat, the dog.", "the cat; a dog's day", "A cat."]


@pytest.mark.parametrize(("lowercase", "known"), [(True, ["the", "cat", "."]), (False, ["cat"])])
def test_words_are_in_the_order_of_their_counts(tmp_path, lowercase, known):
    config = TokenizerConfig(kind="words", lowercase=lowercase, min_count=2 if lowercase else 3)
    known = ["cat", "the", ".", "a", "dog"] if lowercase else known  # 3 3 2 2 2
    tokenizer = tokenizers.train(TEXTS, config, 50, tmp_path)
    ids = range(tokenizer.vocabulary.size)
    assert tokenizer.tokens(ids) == ["<pad>", "<unk>", *known] and tokenizer.vocabulary.unk == 1
    again = tokenizers.load(tmp_path, "words", lowercase=lowercase)
    assert again.kind == "words" and again.digest() == tokenizer.digest() and again.word_starts().all()
    text = "The cat saw <unk>"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.encode("cat zebra") == [2, 1] and again.decode([2, 1]) == "cat <unk>"


def test_the_most_frequent_words_are_kept():
    config = TokenizerConfig(kind="words", lowercase=True, min_count=1)
    assert tokenizers.train(TEXTS, config, 4).tokens([2, 3]) == ["cat", "the"]


def test_a_text_of_rare_words_is_one_line():
    with pytest.raises(UserError, match=r"data.tokenizer.min_count: 9: no word of the training text occurs as often"):
        tokenizers.train(TEXTS, TokenizerConfig(kind="words", min_count=9), 50)


def test_docstrings():
    assert doctest.testmod(words).failed == 0
