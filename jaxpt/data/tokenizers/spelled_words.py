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

    def __init__(
        self, words: Sequence[str], lowercase: bool, strip_accents: bool | None = None,
        chinese_chars: bool | None = None, pre_tokenizer: str = "bert",
    ) -> None:  # fmt: skip
        super().__init__(words, lowercase, strip_accents, chinese_chars, pre_tokenizer)
        self.vocabulary = _spelling(dataclasses.replace(self.vocabulary, size=len(self.words) + 512))

    @classmethod
    def planned(cls, config: TokenizerConfig, vocab_size: int) -> Vocabulary:
        return _spelling(super().planned(config, vocab_size))

    @classmethod
    def least(cls, config: TokenizerConfig) -> int:
        return super().least(config) + 512

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids for ids, _ in self._encode_with_offsets(texts)]

    def _pieces(self, word: str) -> list[int]:
        """The ids of a word in the vocabulary's spelling."""
        if word in self.ids:
            return [self.ids[word]]
        spelled = word.encode("utf-8", "ignore")[:_LONGEST]
        first = self.vocabulary.spelled_from
        return [first + byte + 256 * (n > 0) for n, byte in enumerate(spelled)]

    def _encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        encoded = []
        for text, (found, spans_Tx2) in zip(texts, super()._encode_with_offsets(texts)):
            ids_T = np.array(found, np.int64)
            is_unknown_T = ids_T == self.vocabulary.unk
            spelled = [self._pieces(self.folded(text[a:b])) for a, b in spans_Tx2[is_unknown_T]]
            count_T = np.ones(len(ids_T), np.int64)
            count_T[is_unknown_T] = [len(ids) for ids in spelled]
            ids_N = np.repeat(ids_T, count_T)
            ids_N[np.repeat(is_unknown_T, count_T)] = [i for ids in spelled for i in ids]
            encoded.append((ids_N.tolist(), np.repeat(spans_Tx2, count_T, axis=0)))
        return encoded

    def encode_words(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return [[self._pieces(word if word in self.ids else self.folded(word)) for word in text] for text in texts]

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
