"""Whole words, the most frequent first: for models before subwords.

    0 </S>   1 <S>   2 <UNK>   3 the most frequent word   4 …

A text is cut as BERT cuts it before WordPiece: at white space and around each mark of punctuation, so "don't" is
don ' t. With `data.tokenizer.pre_tokenizer: whitespace` it is cut at white space alone, for text whose words are
parted: do n't. A word that occurs less than `data.tokenizer.min_count` times, or has no room in the vocabulary, is
<UNK>. Of equally frequent words the alphabetically first comes first.

A directory has words.txt, a word a line. A file with a word a line and these special tokens is a vocabulary, too: that
of ELMo's published code.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as library
from tokenizers import models, pre_tokenizers, trainers

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.data.tokenizers.base import Tokenizer, cached_method
from jaxpt.data.tokenizers.rust_tokenizers import bert_steps
from jaxpt.errors import UserError

SPECIAL = {"eos": "</S>", "bos": "<S>", "unk": "<UNK>"}
"""In the order of their ids."""
WORDS = "words.txt"
PRE_TOKENIZER = "pre_tokenizer"
"""A key of tokenizer_config.json, as of `data.tokenizer`."""
MIN_COUNT = 5
"""Of word2vec, GloVe and fastText."""


class Words(Tokenizer):
    """Words by frequency.

    Attributes:
      words: the word of each id.
      ids: the id of each word.
      pre_tokenizer: what cuts a text into words.
    """

    kind = "words"

    def __init__(
        self, words: Sequence[str], lowercase: bool, strip_accents: bool | None = None,
        chinese_chars: bool | None = None, pre_tokenizer: str = "bert",
    ) -> None:  # fmt: skip
        """Takes a vocabulary.

        Args:
          words: of each id, special tokens included.
          lowercase: whether case is folded.
          strip_accents: whether accents are left out; None: where case is folded.
          chinese_chars: whether each Chinese character of a text is a word; None: by BERT's rule alone.
          pre_tokenizer: bert or whitespace, as `data.tokenizer.pre_tokenizer`.
        """
        self.words, self.lowercase, self.pre_tokenizer = list(words), lowercase, pre_tokenizer
        self.chinese_chars = pre_tokenizer == "bert" if chinese_chars is None else chinese_chars
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.vocabulary = _vocabulary(len(self.words), {part: self.ids[x] for part, x in SPECIAL.items()})
        model = models.WordLevel(self.ids, unk_token=SPECIAL["unk"])
        self._rust = _engine(model, lowercase, self.strip_accents, self.chinese_chars, pre_tokenizer)
        self._fold = bert_steps(lowercase, self.strip_accents, chinese_chars=False)[0]

    @classmethod
    def planned(cls, config: TokenizerConfig, vocab_size: int) -> Vocabulary:
        return _vocabulary(vocab_size, {part: n for n, part in enumerate(SPECIAL)})

    @classmethod
    def least(cls, config: TokenizerConfig) -> int:
        return len(SPECIAL)

    @classmethod
    def train(
        cls, texts: Sequence[str], config: TokenizerConfig, vocab_size: int, languages: Sequence[str] = ()
    ) -> Tokenizer:
        rule = config.pre_tokenizer or "bert"
        model = models.WordLevel(unk_token=SPECIAL["unk"])
        rust = _engine(model, config.lowercase, chinese_chars=rule == "bert", pre_tokenizer=rule)
        least = MIN_COUNT if config.min_count is None else config.min_count
        size = vocab_size - cls.least(config)
        rust.train_from_iterator(
            texts, trainers.WordLevelTrainer(vocab_size=size, min_frequency=least, show_progress=False)
        )
        vocab = rust.get_vocab()
        if not vocab:
            raise UserError(f"data.tokenizer.min_count: {least}: no word of the text occurs so often")
        words = [*SPECIAL.values(), *sorted(vocab, key=vocab.__getitem__)]
        return cls(words, config.lowercase, pre_tokenizer=rule)

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
        folds_case = bool(settings.get("do_lower_case", lowercase))
        rules = settings.get("strip_accents"), settings.get("tokenize_chinese_chars")
        return cls(words, folds_case, *rules, settings.get(PRE_TOKENIZER) or "bert")

    def save(self, directory: str | Path) -> None:
        settings = {"kind": self.kind, "do_lower_case": self.lowercase, **self._rules()}
        self._write(directory, {WORDS: self._lines()}, type(self).__name__, settings)

    def digest(self) -> str:
        rules = "".join(f" {name}={value}" for name, value in self._rules().items())
        return vocabulary_files.digest_of(f"{self.kind} {self.lowercase}{rules}\n{self._lines()}".encode())

    def _rules(self) -> dict[str, Any]:
        """The settings that are others than those of a vocabulary that is trained, and cut by BERT's rule."""
        is_bert = self.pre_tokenizer == "bert"
        rules = {} if is_bert else {PRE_TOKENIZER: self.pre_tokenizer}
        rules |= {"strip_accents": self.strip_accents} if self.strip_accents != self.lowercase else {}
        return rules | ({} if self.chinese_chars == is_bert else {"tokenize_chinese_chars": self.chinese_chars})

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
            known = self.word_id(word)
            return self.encode(word) if known is None else [known]

        return [[ids(word) for word in words] for words in texts]

    def word_id(self, word: str) -> int | None:
        """The id of a given word, as it is spelled or else `folded`; None where the vocabulary has neither."""
        known = None if word in SPECIAL.values() else self.ids.get(word, self.ids.get(self.folded(word)))
        return None if known is None or self.words[known] in SPECIAL.values() else known

    def folded(self, word: str) -> str:
        """A word as the vocabulary spells it: in lower case and without accents, if it folds these."""
        return self._fold.normalize_str(word).strip()

    def cut(self, text: str) -> list[str]:
        """The words of a text, known or not, as the vocabulary spells them.

        Example:
          >>> of_words(["don"], lowercase=True).cut("Don't!")
          ['don', "'", 't', '!']
        """
        normalized = self._rust.normalizer.normalize_str(text)
        return [word for word, _ in self._rust.pre_tokenizer.pre_tokenize_str(normalized)]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.tokens(self._shown(ids)))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.words[i] if 0 <= i < len(self.words) else f"<{i}>" for i in map(int, ids)]

    @cached_method
    def word_starts(self) -> np.ndarray:
        return np.ones(self.vocabulary.size, bool)


def of_words(words: Iterable[str], lowercase: bool) -> Words:
    """The tokenizer of known words, such as those of a file of vectors: accents stay, and a text's Chinese characters
    stay together where a word has several of them.

    Args:
      words: each once; their ids follow those of `SPECIAL`.
      lowercase: whether case is folded.

    Example:
      >>> of_words(["the", "café"], lowercase=True).encode("The Café sat")
      [3, 4, 2]
    """
    words = list(words)
    cut, whole = (bert_steps(lowercase=False, chinese_chars=chinese_chars)[0] for chinese_chars in (True, False))
    has_several = (cut.normalize_str(x).strip() != whole.normalize_str(x).strip() for x in words if not x.isascii())
    chinese_chars = not any(has_several)
    return Words([*SPECIAL.values(), *words], lowercase, strip_accents=False, chinese_chars=chinese_chars)


def _vocabulary(size: int, ids: Mapping[str, int]) -> Vocabulary:
    """What objectives know of it. <S> is for ELMo: documents of decoders have </S> between them."""
    return Vocabulary(size, pad=0, **ids, is_bos_of_decoders=False)


def _engine(
    model: Any, lowercase: bool, strip_accents: bool | None = None, chinese_chars: bool = True,
    pre_tokenizer: str = "bert",
) -> Any:  # fmt: skip
    """The library's tokenizer, with BERT's normalization."""
    rust = library.Tokenizer(model)
    rust.normalizer, bert = bert_steps(lowercase, strip_accents, chinese_chars)
    rust.pre_tokenizer = bert if pre_tokenizer == "bert" else pre_tokenizers.WhitespaceSplit()
    return rust
