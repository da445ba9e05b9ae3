"""What all kinds of tokenizers offer."""

from __future__ import annotations

import abc
import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import scripts

DEFAULT_EXTRA_IDS = 100
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END_OF_TEXT = "<|endoftext|>"
SPECIALS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "bos": ("<s>", "<|begin_of_text|>", END_OF_TEXT),
    "eos": (END_OF_TEXT, "</s>", "<|end_of_text|>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


class Tokenizer(abc.ABC):
    """What all three kinds offer.

    Attributes:
      kind: "sentencepiece", "wordpiece" or "bpe".
      lowercase: whether case is folded.
      vocabulary: the ids that objectives need to know.
      assumed: what no file says and was assumed, and why; a line for the user.
    """

    kind: str
    lowercase: bool
    vocabulary: Vocabulary
    assumed: str | None = None

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of a text; nothing is put before or after it.

        Args:
          text: any text.
          special: read special tokens written in the text (`[MASK]`, `<|endoftext|>`) as such; by default they are
            plain text. Sentinels (`<extra_id_0>`) are always read as such, as T5 does.

        Returns:
          Ids.
        """
        if not special:
            return self.encode_batch([text])[0]
        parts = re.split(f"({'|'.join(map(re.escape, self._written()))})", text)
        named = self._written()
        return [i for part in parts if part for i in ([named[part]] if part in named else self.encode(part))]

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, faster than one by one."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids. Padding, EOS, [CLS] and [SEP] are left out; masks and sentinels are shown."""

    @abc.abstractmethod
    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The readable piece of each id, such as ["▁the", "##ing", "<extra_id_0>"]."""

    @functools.cache  # noqa: B019 (a tokenizer lives as long as the program)
    def word_starts(self) -> np.ndarray:
        """Whether an id starts a word, or stands for no part of one: bool [ids].

        SentencePiece's and byte-level pieces start a word with white space ("▁the", "Ġthe"), WordPiece's without "##".
        Pieces of scripts without spaces (`scripts`) each start a word, in every vocabulary.
        """
        v = self.vocabulary
        named = {v.pad, v.unk, v.bos, v.eos, v.cls, v.sep, v.mask, *v.languages, *range(v.size - v.sentinels, v.size)}

        def starts(i: int, piece: str) -> bool:
            if self.kind == "wordpiece":
                return not piece.startswith("##") or scripts.is_unspaced(piece[2:])
            if piece.startswith("▁") or piece[:1].isspace() or scripts.is_unspaced(piece):
                return True
            is_part = scripts.may_spell_bytes(piece) and "\ufffd" in self.decode([i])  # of a character
            return is_part and scripts.is_unspaced_bytes(piece)

        return np.array([i in named or starts(i, piece) for i, piece in enumerate(self.tokens(range(v.size)))])

    @abc.abstractmethod
    def save(self, directory: str | Path) -> None:
        """Writes the files that `load` and Hugging Face's AutoTokenizer read."""

    @abc.abstractmethod
    def digest(self) -> str:
        """Hash of everything that determines the ids."""

    def _written(self) -> dict[str, int]:
        """Special tokens as they are written, with their ids."""
        v = self.vocabulary
        ids = dict.fromkeys(i for i in (v.bos, v.eos, v.cls, v.sep, v.mask) if i is not None)
        return dict(zip(self.tokens(ids), ids))

    def _shown(self, ids: Iterable[int]) -> list[int]:
        """Ids without those that stand for no text, and those that a larger model knows and the vocabulary does not."""
        v = self.vocabulary
        hidden = {v.bos, v.eos, v.cls, v.sep, *v.languages} | (
            {v.pad} if self.tokens([v.pad])[0] in SPECIALS["pad"] else set()
        )
        return [i for i in map(int, ids) if i not in hidden and 0 <= i < self.vocabulary.size]
