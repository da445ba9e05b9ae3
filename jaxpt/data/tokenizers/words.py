"""Whole words, the most frequent first: for models before subwords.

    0 </S>   1 <S>   2 <UNK>   3 the most frequent word   4 …

A text is cut as BERT cuts it before WordPiece: at white space and around each mark of punctuation, so "don't" is
don ' t. A word that occurs less than `data.tokenizer.min_count` times, or has no room in the vocabulary, is <UNK>. Of
equally frequent words the alphabetically first comes first.

A directory has words.txt, a word a line. A file with a word a line and these special tokens is a vocabulary, too: that
of ELMo's published code.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as library
from tokenizers import models, trainers

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.data.tokenizers.rust_tokenizers import bert_steps
from jaxpt.errors import UserError

SPECIAL = {"eos": "</S>", "bos": "<S>", "unk": "<UNK>"}
"""In the order of their ids."""
WORDS = "words.txt"
MIN_COUNT = 5
"""Of word2vec, GloVe and fastText."""


class Words(Tokenizer):
    """Words by frequency.

    Attributes:
      words: the word of each id.
      ids: the id of each word.
    """

    kind = "words"

    def __init__(self, words: Sequence[str], lowercase: bool) -> None:
        """Takes a vocabulary.

        Args:
          words: of each id, special tokens included.
          lowercase: whether case is folded and accents are left out.
        """
        self.words, self.lowercase = list(words), lowercase
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.vocabulary = Vocabulary(len(self.words), pad=0, **{part: self.ids[x] for part, x in SPECIAL.items()})
        self._rust = _engine(models.WordLevel(self.ids, unk_token=SPECIAL["unk"]), lowercase)

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
        rust, least = _engine(models.WordLevel(unk_token=SPECIAL["unk"]), config.lowercase), config.min_count
        least = MIN_COUNT if least is None else least
        size = vocab_size - cls.least(config)
        rust.train_from_iterator(
            texts, trainers.WordLevelTrainer(vocab_size=size, min_frequency=least, show_progress=False)
        )
        vocab = rust.get_vocab()
        if not vocab:
            raise UserError(f"data.tokenizer.min_count: {least}: no word of the text occurs so often")
        return cls([*SPECIAL.values(), *sorted(vocab, key=vocab.__getitem__)], config.lowercase)

    @classmethod
    def load(
        cls, files: Sequence[Path], settings: dict[str, Any], lowercase: bool | None, extra_ids: int | None
    ) -> Tokenizer:
        path = files[0] / WORDS if files[0].is_dir() else files[0]
        # Words have other ends of lines (U+0085, as in GloVe's files), a file's own may be CR LF.
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        words = [line.removesuffix("\r") for line in lines]
        if missing := [token for token in SPECIAL.values() if token not in words]:
            special = ", ".join(SPECIAL.values())
            raise UserError(f"{path}: has no line {missing[0]}; wants a word a line, and {special} among them")
        if len(set(words)) < len(words):
            raise UserError(f"{path}: has the word {collections.Counter(words).most_common(1)[0][0]!r} twice")
        return cls(words, bool(settings.get("do_lower_case", lowercase)))

    def save(self, directory: str | Path) -> None:
        settings = {"kind": self.kind, "do_lower_case": self.lowercase}
        self._write(directory, {WORDS: self._lines()}, type(self).__name__, settings)

    def digest(self) -> str:
        return vocabulary_files.digest_of(f"{self.kind} {self.lowercase}\n{self._lines()}".encode())

    def _lines(self) -> str:
        return "".join(f"{word}\n" for word in self.words)

    def token_id(self, token: str) -> int | None:
        return self.ids.get(token)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._rust.encode_batch_fast(list(texts))]

    def _encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        encodings = self._rust.encode_batch(list(texts))
        return [(e.ids, np.array(e.offsets, np.int64).reshape(-1, 2)) for e in encodings]

    def encode_words(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """As the base class; a given word that the vocabulary has ("n't") is one token, whatever the rule."""

        def ids(word: str) -> list[int]:
            known = self.ids.get(self.folded(word))
            return self.encode(word) if known is None or word in SPECIAL.values() else [known]

        return [[ids(word) for word in words] for words in texts]

    def folded(self, word: str) -> str:
        """A word as the vocabulary spells it: in lower case and without accents, if it folds case."""
        return self._rust.normalizer.normalize_str(word).strip()

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.tokens(self._shown(ids)))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.words[i] if 0 <= i < len(self.words) else f"<{i}>" for i in map(int, ids)]

    @functools.cache  # noqa: B019 (a tokenizer lives as long as the program)
    def word_starts(self) -> np.ndarray:
        return np.ones(self.vocabulary.size, bool)


def of_words(words: Iterable[str], lowercase: bool) -> Words:
    """The tokenizer of known words, such as those of a file of vectors.

    Args:
      words: each once; their ids follow those of `SPECIAL`.
      lowercase: whether case is folded.

    Example:
      >>> of_words(["the", "cat"], lowercase=True).encode("The cat sat")
      [3, 4, 2]
    """
    return Words([*SPECIAL.values(), *words], lowercase)


def _engine(model: Any, lowercase: bool) -> Any:
    """The library's tokenizer with BERT's rule."""
    rust = library.Tokenizer(model)
    rust.normalizer, rust.pre_tokenizer = bert_steps(lowercase)
    return rust
