"""WordPiece, BERT's tokenizer: pieces inside a word start with "##"."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as library
from tokenizers import models, trainers

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import rust_tokenizers, vocabulary_files
from jaxpt.data.tokenizers.base import BERT_TOKENS, Tokenizer
from jaxpt.data.tokenizers.declared import class_name
from jaxpt.errors import UserError

_CODES = 0x110000
"""Number of Unicode's code points."""
_BLOCK = 1 << 20  # characters


class WordPieceTokenizer(rust_tokenizers.RustTokenizer):
    """0 [PAD]  1 [UNK]  2 [CLS]  3 [SEP]  4 [MASK]  …"""

    kind = "wordpiece"

    @classmethod
    def planned(cls, config: TokenizerConfig, vocab_size: int) -> Vocabulary:
        return Vocabulary(vocab_size, **{part: n for n, part in enumerate(BERT_TOKENS)})

    @classmethod
    def least(cls, config: TokenizerConfig) -> int:
        return len(BERT_TOKENS)

    @classmethod
    def train(
        cls, texts: Sequence[str], config: TokenizerConfig, vocab_size: int, languages: Sequence[str] = ()
    ) -> Tokenizer:
        """The library numbers "##x" pieces in the order of a randomly seeded hash map: all are named beforehand."""
        rust = library.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        normalizer, rust.pre_tokenizer = rust_tokenizers.bert_steps(config.lowercase)
        texts = [normalizer.normalize_str(text) for text in texts]
        alphabet, inner = _letters(texts, rust.pre_tokenizer, min(1000, (vocab_size - len(BERT_TOKENS)) // 2))
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, special_tokens=[*BERT_TOKENS.values(), *(f"##{c}" for c in inner)],
            initial_alphabet=alphabet, limit_alphabet=len(alphabet), min_frequency=2, show_progress=False,
        )  # fmt: skip
        rust.train_from_iterator(texts, trainer)
        return rust_tokenizers.wordpiece(rust.get_vocab(), config.lowercase)

    @classmethod
    def load(
        cls, files: Sequence[Path], settings: dict[str, Any], lowercase: bool | None, extra_ids: int | None
    ) -> Tokenizer:
        vocab = {line: i for i, line in enumerate(files[0].read_text("utf-8").removesuffix("\n").split("\n"))}
        if class_name(said_class := settings.get("tokenizer_class") or "") not in ("", *rust_tokenizers.BERT_CLASSES):
            why = f"the ids of a {said_class} may be others than BERT's"
            raise UserError(f"{files[0]}: {why}; wants its tokenizer.json")
        unk = settings.get("unk_token") or "[UNK]"
        if unk not in vocab:
            raise UserError(f"{files[0]}: no {unk} line; wants a WordPiece vocabulary, one token a line")
        # Pieces hold letters that have case, all in lower case; those in brackets are special tokens.
        pieces = [piece for piece in vocab if not (piece.startswith("[") and piece.endswith("]"))]
        uncased = any(p != p.upper() for p in pieces) and all(p == p.lower() for p in pieces)
        do_lower_case = settings.get("do_lower_case")
        do_lower_case = lowercase if do_lower_case is None else do_lower_case
        if uncased and do_lower_case is False and settings.get("do_lower_case") is None:
            raise UserError(
                f"{files[0]}: holds no upper-case letter, data.tokenizer.lowercase is false; set it to true, or say "
                f'{{"do_lower_case": false}} in {vocabulary_files.SETTINGS} beside it'
            )
        tokenizer = rust_tokenizers.wordpiece(
            vocab, uncased if do_lower_case is None else bool(do_lower_case),
            strip_accents=settings.get("strip_accents"),
            chinese_chars=settings.get("tokenize_chinese_chars") is not False, unk=unk,
        )  # fmt: skip
        if do_lower_case is None:
            folds, has = ("folds case", "no") if uncased else ("keeps case", "an")
            tokenizer.assumed = (
                f"{files[0]}: no {vocabulary_files.SETTINGS} says do_lower_case; assumed that it {folds}, as it holds "
                f"{has} upper-case letter"
            )
        return tokenizer


class _Kind(enum.IntEnum):
    """What a character is for the words of a text."""

    UNKNOWN = 0
    SPACE = 1
    LETTER = 2
    WORD = 3
    """A word of its own: punctuation."""


def _letters(texts: Iterable[str], pre_tokenizer: Any, room: int) -> tuple[list[str], list[str]]:
    """Letters of a corpus, by whole arrays: one word after the other takes Python longer than all of the training.

    Args:
      texts: the documents, normalized.
      pre_tokenizer: cuts them into words.
      room: number of letters wanted.

    Returns:
      (the `room` letters that are in most words, those of them that occur inside a word), in alphabetical order.
    """
    counts, inside = np.zeros(_CODES, np.int64), np.zeros(_CODES, bool)
    kinds = np.zeros(_CODES, np.uint8)
    for text in _joined(texts):
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int64)
        for code in np.flatnonzero((np.bincount(codes, minlength=_CODES) > 0) & (kinds == _Kind.UNKNOWN)).tolist():
            kinds[code] = _kind(chr(code), pre_tokenizer)
        kind = kinds[codes]
        goes_on = np.append(False, (kind[1:] == _Kind.LETTER) & (kind[:-1] == _Kind.LETTER))
        word = np.cumsum(~goes_on)
        inside[codes[goes_on]] = True
        in_words = np.sort((word * _CODES + codes)[kind != _Kind.SPACE])
        is_new = np.diff(in_words, prepend=-1) > 0  # a letter counts once a word
        counts += np.bincount(in_words[is_new] % _CODES, minlength=_CODES)
    frequent = sorted(np.flatnonzero(counts).tolist(), key=lambda code: (-counts[code], code))[:room]
    return [chr(code) for code in sorted(frequent)], [chr(code) for code in sorted(frequent) if inside[code]]


def _kind(character: str, pre_tokenizer: Any) -> _Kind:
    words = pre_tokenizer.pre_tokenize_str(2 * character)
    return (_Kind.SPACE, _Kind.LETTER, _Kind.WORD)[len(words)]


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Texts in blocks of about a million characters."""
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text) + 1
        if size >= _BLOCK:
            yield "\n".join(block)
            block, size = [], 0
    yield "\n".join(block)
