"""Whole words, the most frequent first: for models before subwords.

    0 </S>   1 <S>   2 <UNK>   3 the most frequent word   4 …

A text is cut at white space, and each mark of punctuation or symbol is a word by itself: "don't" is don ' t. A word
that occurs less than `data.tokenizer.min_count` times, or has no room in the vocabulary, is <UNK>. Of equally frequent
words the alphabetically first comes first.

A directory has words.txt, a word a line, and counts.txt, how often each occurred in the text that the vocabulary was
made of. A file with a word a line and these special tokens is a vocabulary, too: that of ELMo's published code.
"""

from __future__ import annotations

import collections
import functools
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError

SPECIAL = {"eos": "</S>", "bos": "<S>", "unk": "<UNK>"}
"""In the order of their ids."""
WORDS, COUNTS = "words.txt", "counts.txt"


class Words(Tokenizer):
    """Words by frequency.

    Attributes:
      words: the word of each id.
      counts: how often each occurred, int64 [ids], 0 for special tokens but <UNK>; None if that is not known.
    """

    kind = "words"

    def __init__(self, words: Sequence[str], lowercase: bool, counts: Sequence[int] | None = None) -> None:
        """Takes a vocabulary.

        Args:
          words: of each id, special tokens included.
          lowercase: whether case is folded and accents are left out.
          counts: of each word.
        """
        self.words, self.lowercase = list(words), lowercase
        self.counts = None if counts is None else np.array(counts, np.int64)
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.vocabulary = Vocabulary(len(self.words), pad=0, **{part: self.ids[x] for part, x in SPECIAL.items()})

    @classmethod
    def planned(cls, config: TokenizerConfig, vocab_size: int) -> Vocabulary:
        return Vocabulary(vocab_size, pad=0, **{part: n for n, part in enumerate(SPECIAL)})

    @classmethod
    def least(cls, config: TokenizerConfig) -> int:
        return len(SPECIAL)

    @classmethod
    def train(
        cls, texts: Sequence[str], config: TokenizerConfig, vocab_size: int, languages: Sequence[str] = ()
    ) -> Tokenizer:
        found: collections.Counter[str] = collections.Counter()
        for text in texts:
            found.update(folded(split(text), config.lowercase))
        ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        kept = [(word, count) for word, count in ranked[: vocab_size - cls.least(config)] if count >= config.min_count]
        if not kept:
            most = f"the most frequent, {ranked[0][0]!r}, occurs {ranked[0][1]} times" if ranked else "it has no word"
            raise UserError(f"data.tokenizer.min_count: {config.min_count}: no word of the text is so frequent; {most}")
        unknown = sum(found.values()) - sum(count for _, count in kept)
        return cls(
            [*SPECIAL.values(), *(word for word, _ in kept)],
            config.lowercase,
            [0, 0, unknown, *(count for _, count in kept)],
        )

    @classmethod
    def load(
        cls, files: Sequence[Path], settings: dict[str, Any], lowercase: bool | None, extra_ids: int | None
    ) -> Tokenizer:
        is_directory = files[0].is_dir()
        path = files[0] / WORDS if is_directory else files[0]
        words = path.read_text("utf-8").splitlines()
        if missing := [token for token in SPECIAL.values() if token not in words]:
            special = ", ".join(SPECIAL.values())
            raise UserError(f"{path}: has no line {missing[0]}; wants a word a line, and {special} among them")
        if len(set(words)) < len(words):
            raise UserError(f"{path}: has the word {collections.Counter(words).most_common(1)[0][0]!r} twice")
        counts = None
        if is_directory and (files[0] / COUNTS).is_file():
            counts = [int(line) for line in (files[0] / COUNTS).read_text("utf-8").splitlines()]
            if len(counts) != len(words):
                raise UserError(f"{files[0] / COUNTS}: has {len(counts)} lines, {WORDS} has {len(words)}")
        return cls(words, bool(settings.get("do_lower_case", lowercase)), counts)

    def files(self) -> dict[str, str | bytes]:
        counts = {} if self.counts is None else {COUNTS: "".join(f"{count}\n" for count in self.counts)}
        return {WORDS: "".join(f"{word}\n" for word in self.words), **counts}

    def save(self, directory: str | Path) -> None:
        self._write(directory, self.files(), type(self).__name__, {"kind": self.kind, "do_lower_case": self.lowercase})

    def digest(self) -> str:
        return vocabulary_files.digest_of(f"{self.kind} {self.lowercase}\n{self.files()[WORDS]}".encode())

    def token_id(self, token: str) -> int | None:
        return self.ids.get(token)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._ids(folded(split(text), self.lowercase)) for text in texts]

    def _ids(self, words: Iterable[str]) -> list[int]:
        """The ids of words."""
        unk = self.vocabulary.unk
        return [self.ids.get(word, unk) for word in words]

    def _encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        encoded = []
        for text in texts:
            found = spans(text)
            encoded.append((self._ids(folded([text[a:b] for a, b in found], self.lowercase)), found))
        return encoded

    def encode_words(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """As the base class; a given word that the vocabulary has ("n't") is one token, whatever the rule."""

        def ids(word: str) -> list[int]:
            (known,) = folded([word], self.lowercase)
            return [self.ids[known]] if known in self.ids else self.encode(word)

        return [[ids(word) for word in words] for words in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.tokens(self._shown(ids)))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.words[i] if 0 <= i < len(self.words) else f"<{i}>" for i in map(int, ids)]

    @functools.cache  # noqa: B019 (a tokenizer lives as long as the program)
    def word_starts(self) -> np.ndarray:
        return np.ones(self.vocabulary.size, bool)


def split(text: str) -> list[str]:
    """The words of a text.

    Example:
      >>> split("They don't know (yet).")
      ['They', 'don', "'", 't', 'know', '(', 'yet', ')', '.']
    """
    return _rule().findall(text)


def spans(text: str) -> list[tuple[int, int]]:
    """(first character, one behind the last) of the words of a text."""
    return [match.span() for match in _rule().finditer(text)]


def folded(words: Sequence[str], lowercase: bool) -> list[str]:
    """The words in lower case and without accents, if wanted.

    Example:
      >>> folded(["Café"], True)
      ['cafe']
    """
    if not lowercase:
        return list(words)
    return [word.lower() if word.isascii() else _without_accents(word.lower()) for word in words]


def _without_accents(word: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")


@functools.cache
def _rule() -> re.Pattern[str]:
    """A mark of punctuation or a symbol, or a run of other characters but white space."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] in "PS":
            if not ranges or ranges[-1][1] != code - 1:
                ranges.append([code, code])
            ranges[-1][1] = code
    marks = "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)
    # What is ASCII comes first, and its marks by themselves: the whole class of marks takes seven times as long.
    ascii_marks = re.escape("".join(map(chr, (*range(33, 48), *range(58, 65), *range(91, 97), *range(123, 127)))))
    ascii_word = rf"[A-Za-z0-9]++(?=[\s{ascii_marks}]|\Z)"
    return re.compile(rf"{ascii_word}|[{ascii_marks}]|[{marks}]|[^\s{marks}]+")
