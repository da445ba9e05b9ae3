"""Whole words, the most frequent first; a word that the vocabulary does not have is spelled, one id a byte.

    0 </S>   1 <S>   2 <UNK>   3 the most frequent word   …   then 256 ids of a word's first byte, 256 of the others

So a model that reads words by their characters (ELMo) reads every word. A word that is given ("n't") is one, whatever
the rule that cuts words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import words

_LONGEST = 48  # bytes of a word that are spelled; published models read no more


class SpelledWords(words.Words):
    """Words by frequency, then bytes."""

    kind = "spelled_words"

    def __init__(self, words: Sequence[str], lowercase: bool, counts: Sequence[int] | None = None) -> None:
        super().__init__(words, lowercase, counts)
        self.vocabulary = _spelling(dataclasses.replace(self.vocabulary, size=len(self.words) + 512))

    @classmethod
    def planned(cls, config: TokenizerConfig, vocab_size: int) -> Vocabulary:
        return _spelling(super().planned(config, vocab_size))

    @classmethod
    def least(cls, config: TokenizerConfig) -> int:
        return super().least(config) + 512

    def _ids(self, words: Iterable[str]) -> list[int]:
        return [i for word in words for i in self._pieces(word)]

    def _pieces(self, word: str) -> list[int]:
        """The ids of a word."""
        if word in self.ids:
            return [self.ids[word]]
        spelled = word.encode("utf-8", "ignore")[:_LONGEST]
        first = self.vocabulary.spelled_from
        return [first + byte + 256 * (n > 0) for n, byte in enumerate(spelled)]

    def _encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        encoded = []
        for text in texts:
            spans = words.spans(text)
            pieces = [self._pieces(word) for word in words.folded([text[a:b] for a, b in spans], self.lowercase)]
            offsets = np.repeat(np.reshape(spans, (-1, 2)), [len(ids) for ids in pieces], axis=0)
            encoded.append(([i for ids in pieces for i in ids], offsets))
        return encoded

    def encode_words(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return [[self._pieces(word) for word in words.folded(of_text, self.lowercase)] for of_text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        pieces: list[str | bytearray] = []
        first = self.vocabulary.spelled_from
        for i in self._shown(ids):
            if i < first:
                pieces.append(self.words[i])
            elif i < first + 256 or not pieces or not isinstance(pieces[-1], bytearray):
                pieces.append(bytearray([(i - first) % 256]))
            else:
                pieces[-1].append(i - first - 256)
        return " ".join(x if isinstance(x, str) else x.decode("utf-8", "replace") for x in pieces)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        first = self.vocabulary.spelled_from

        def piece(i: int) -> str:
            if not first <= i < self.vocabulary.size:
                return self.words[i] if 0 <= i < first else f"<{i}>"
            byte = (i - first) % 256
            letter = chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>"
            return letter if i < first + 256 else f"##{letter}"

        return [piece(int(i)) for i in ids]

    def word_starts(self) -> np.ndarray:
        return np.arange(self.vocabulary.size) < self.vocabulary.size - 256


def _spelling(vocabulary: Vocabulary) -> Vocabulary:
    """The last 512 ids spell; <S> and </S> are around a text."""
    ends = {"cls": vocabulary.bos, "sep": vocabulary.eos}
    return dataclasses.replace(vocabulary, spelled_from=vocabulary.size - 512, **ends)
