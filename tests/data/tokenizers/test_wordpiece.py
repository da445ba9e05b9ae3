"""Letters of a corpus for a WordPiece vocabulary."""

import collections
from pydoc_data.topics import topics

import pytest

from jaxpt.data.tokenizers import rust_tokenizers, wordpiece

TEXTS = [*list(topics.values())[:30], "ab\tc  d\n\ne", "x\u3000y 你好 don't É é", "", "🙂🙂 a🙂b"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_letters_are_those_that_one_word_after_the_other_gives(lowercase, monkeypatch):
    monkeypatch.setattr(wordpiece, "_BLOCK", 5000)
    normalizer, pre_tokenizer = rust_tokenizers.bert_steps(lowercase)
    texts = [normalizer.normalize_str(text) for text in TEXTS]
    words = collections.Counter(word for text in texts for word, _ in pre_tokenizer.pre_tokenize_str(text))
    letters = collections.Counter()
    for word, count in words.items():
        letters.update(dict.fromkeys(word, count))
    for room in (20, 1000):
        alphabet = sorted(sorted(letters, key=lambda c: (-letters[c], c))[:room])
        inner = sorted({c for word in words for c in word[1:]} & set(alphabet))
        assert wordpiece._letters(texts, pre_tokenizer, room) == (alphabet, inner)
