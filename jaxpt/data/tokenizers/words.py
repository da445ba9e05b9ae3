"""Whole words, as of word2vec, GloVe and fastText: a word that is too rare is unknown.

Words are cut as BERT cuts them before WordPiece: at white space and around punctuation. Their ids are in the order of
their frequency, words of equal frequency in that of the alphabet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers as library
from tokenizers import models, trainers

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import rust_tokenizers
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError

SPECIAL = ("<pad>", "<unk>")
"""In the order of their ids."""
MIN_COUNT = 5
"""Of word2vec, gensim, GloVe and fastText."""


class WordsTokenizer(rust_tokenizers.RustTokenizer):
    """0 <pad>  1 <unk>  …"""

    kind = "words"

    @classmethod
    def planned(cls, config: TokenizerConfig, vocab_size: int) -> Vocabulary:
        return Vocabulary(vocab_size, pad=0, unk=1)

    @classmethod
    def least(cls, config: TokenizerConfig) -> int:
        return len(SPECIAL)

    @classmethod
    def train(
        cls, texts: Sequence[str], config: TokenizerConfig, vocab_size: int, languages: Sequence[str] = ()
    ) -> Tokenizer:
        rust, least = library.Tokenizer(models.WordLevel(unk_token=SPECIAL[1])), config.min_count or MIN_COUNT
        rust.normalizer, rust.pre_tokenizer = rust_tokenizers.bert_steps(config.lowercase)
        trainer = trainers.WordLevelTrainer(
            vocab_size=vocab_size, min_frequency=least, special_tokens=list(SPECIAL), show_progress=False
        )
        rust.train_from_iterator(texts, trainer)
        vocab = rust.get_vocab()
        if len(vocab) <= len(SPECIAL):
            raise UserError(f"data.tokenizer.min_count: {least}: no word of the training text occurs as often")
        return of_vocabulary(sorted(vocab, key=vocab.__getitem__)[len(SPECIAL) :], config.lowercase)

    @classmethod
    def load(
        cls, files: Sequence[Path], settings: dict[str, Any], lowercase: bool | None, extra_ids: int | None
    ) -> Tokenizer:
        raise UserError(f"{files[0]}: wants the tokenizer.json of a vocabulary of words")


def of_vocabulary(words: Iterable[str], lowercase: bool) -> rust_tokenizers.RustTokenizer:
    """The tokenizer of known words, such as those of a file of vectors.

    Args:
      words: each once; their ids follow those of `SPECIAL`.
      lowercase: whether case is folded.

    Example:
      >>> of_vocabulary(["the", "cat"], lowercase=True).encode("The cat sat")
      [2, 3, 1]
    """
    vocab = {word: i for i, word in enumerate([*SPECIAL, *words])}
    rust = library.Tokenizer(models.WordLevel(vocab, unk_token=SPECIAL[1]))
    rust.normalizer, rust.pre_tokenizer = rust_tokenizers.bert_steps(lowercase)
    rust.add_special_tokens(list(SPECIAL))
    return rust_tokenizers.RustTokenizer(rust, "words")
