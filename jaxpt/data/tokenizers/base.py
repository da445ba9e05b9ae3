"""What all kinds of tokenizers offer."""

from __future__ import annotations

import abc
import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import scripts, vocabulary_files
from jaxpt.data.tokenizers.added_tokens import AddedToken
from jaxpt.errors import UserError

DEFAULT_EXTRA_IDS = 100
BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""In the order of their ids."""
BART_TOKENS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
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


_CACHED = "_cached"
"""Attribute of a tokenizer with the results of its cached methods."""


def cached_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """`functools.cache` of a tokenizer's method, or of a function of a tokenizer: its results are freed with it."""

    @functools.wraps(method)
    def cached(self: Any, *args: Any) -> Any:
        results, key = vars(self).setdefault(_CACHED, {}), (method.__qualname__, *args)
        if key not in results:
            results[key] = method(self, *args)
        return results[key]

    return cached


class Encoded(NamedTuple):
    """A text's tokens."""

    ids: list[int]
    offsets: np.ndarray
    """(start, end) of each token's characters: int64 [tokens, 2]."""


class Tokenizer(abc.ABC):
    """A kind of tokenizer; subclassed once in each module that `data.tokenizer.kind` can name.

    A subclass sets `kind` to that name, and `vocabulary` in its `__init__`.

    Attributes:
      kind: "sentencepiece", "wordpiece", "bpe" or the dotted path of a module.
      takes_languages: whether `train` adds tokens of languages.
      lowercase: whether case is folded.
      vocabulary: the ids that objectives need to know.
      assumed: what no file says and was assumed, and why; a line for the user.
      byte_text: how `decode` makes text of the ids that stand for bytes (`spelled`). "all": every id does, and the text
        is that of all bytes. "characters": each character of a run of them is decoded by itself. "runs": a run is text
        only if all of it is valid. None: not known, or there are no such ids.
      folder: the directory that it was read from, whose files say more of it; None: it was read from none.
      chat_templates: {name: Jinja template} of dialogues that stood beside the vocabulary; it is saved with them.
      added: tokens of `with_tokens`.
      declared: tokens of `with_declared`.
      specials: what files say of special tokens, see `name_specials`; {} where they say nothing.
      carried: further keys of tokenizer_config.json; `save` writes them as they are.
      of_config: keys of tokenizer_config.json that say what config.json beside it says.
    """

    kind: str
    takes_languages: ClassVar[bool] = False
    lowercase: bool = False
    vocabulary: Vocabulary
    assumed: str | None = None
    byte_text: Literal["all", "characters", "runs"] | None = None
    folder: Path | None = None
    chat_templates: Mapping[str, str] = MappingProxyType({})
    added: tuple[str, ...] = ()
    declared: tuple[AddedToken, ...] = ()
    specials: Mapping[str, AddedToken | None] = MappingProxyType({})
    carried: Mapping[str, Any] = MappingProxyType({})
    of_config: Mapping[str, Any] = MappingProxyType({})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != _CACHED}

    @classmethod
    def planned(cls, config: TokenizerConfig, vocab_size: int) -> Vocabulary:
        """The ids of a vocabulary that is still to be trained.

        Args:
          config: the settings.
          vocab_size: ids wanted, special ones included.
        """
        raise NotImplementedError

    @classmethod
    def least(cls, config: TokenizerConfig) -> int:
        """Ids that are taken before a text is read; `vocab_size` must be larger."""
        return 0

    @classmethod
    def train(
        cls, texts: Sequence[str], config: TokenizerConfig, vocab_size: int, languages: Sequence[str] = ()
    ) -> Tokenizer:
        """Trains a vocabulary; the same texts must give the same one.

        Args:
          texts: documents.
          config: the settings.
          vocab_size: ids wanted, special ones included; fewer are fine.
          languages: tokens that no text gives, where the class `takes_languages`.
        """
        raise NotImplementedError

    @classmethod
    def load(
        cls, files: Sequence[Path], settings: dict[str, Any], lowercase: bool | None, extra_ids: int | None
    ) -> Tokenizer:
        """Reads a vocabulary.

        Args:
          files: its files; the directory or file that was named, where jaxpt does not know the kind's files.
          settings: tokenizer_config.json beside them.
          lowercase: `data.tokenizer.lowercase`, None if nobody says.
          extra_ids: `data.tokenizer.extra_ids`.
        """
        raise NotImplementedError

    def with_tokens(self, tokens: Sequence[str]) -> Tokenizer:
        """The tokenizer with further tokens. They are read as such in every text, before any normalization; `decode`
        shows them.

        Args:
          tokens: one that the vocabulary has keeps its id, the others get the next ids in their order.

        Raises:
          UserError: this kind of tokenizer takes none.
        """
        raise UserError(f"data.tokenizer.add_tokens: tokens cannot be added to a {self.kind} vocabulary")

    def with_declared(self, tokens: Sequence[AddedToken]) -> Tokenizer:
        """The tokenizer with added tokens that the files beside its vocabulary name.

        Args:
          tokens: special ones are read where special tokens are, the others in every text.

        Raises:
          UserError: this kind of tokenizer takes none, or one has another id than it gets.
        """
        if tokens:
            raise UserError(f"{tokens[0].content!r}: tokens cannot be added to a {self.kind} vocabulary")
        return self

    def name_specials(self, tokens: Mapping[str, AddedToken | None]) -> None:
        """Says which special tokens there are: {"bos": <s>, "pad": None, …}; of other parts the tokenizer knows.

        Where a mask is named and no CLS or SEP (EuroBERT, mmBERT), BOS and EOS are around an encoder's text.
        """
        self.specials = tokens
        ids = {part: None if token is None else self.token_id(token.content) for part, token in tokens.items()}
        if "pad" in ids:
            ids["pad"] = ids["pad"] or 0  # a vocabulary without padding gives some id
        v = self.vocabulary = dataclasses.replace(self.vocabulary, **ids)
        if v.mask is not None:
            cls, sep = (v.bos if v.cls is None else v.cls), (v.eos if v.sep is None else v.sep)
            self.vocabulary = dataclasses.replace(v, cls=cls, sep=sep)

    def special_tokens(self, named: Mapping[str, AddedToken | None] | None = None) -> dict[str, AddedToken | None]:
        """The special tokens by their part: {"bos": <s>, "pad": None, …}.

        Args:
          named: what files say of them; by default what `name_specials` was told. The vocabulary says the other parts;
            padding counts only under a usual name, as every vocabulary has some id for it.
        """
        ids = {part: getattr(self.vocabulary, part) for part in SPECIALS}
        tokens = {part: AddedToken(self.tokens([i])[0], special=True) for part, i in ids.items() if i is not None}
        if tokens["pad"].content not in SPECIALS["pad"]:
            del tokens["pad"]
        return {**tokens, **(self.specials if named is None else named)}

    def token_id(self, token: str) -> int | None:
        """The id of a token as it is written; None where the vocabulary does not have it."""
        return next((i for i in range(self.vocabulary.size) if self.tokens([i])[0] == token), None)

    def special_token(self, i: int) -> AddedToken | None:
        """The special token with an id; None where the id is another token's, or that is not known."""
        return None

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
        named = self._written()
        parts = re.split(any_of(named), text)
        return [i for part in parts if part for i in ([named[part]] if part in named else self.encode(part))]

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, faster than one by one."""

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Encoded]:
        """`encode_batch`, with the characters of the text that each token stands for.

        Offsets count characters of the text as it is given, before any normalization, and leave out white space around
        a token. A token that stands for no character has start = end; tokens that share a character (bytes of one, or
        parts of "½" = "1⁄2") have the same.

        Args:
          texts: any texts.

        Raises:
          UserError: this kind of tokenizer does not know them.
        """
        encoded = self._encode_with_offsets(texts)
        return [Encoded(ids, _trimmed(text, np.reshape(spans, (-1, 2)))) for text, (ids, spans) in zip(texts, encoded)]

    def _encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        """(ids, (start, end) of each) of each text; white space around a token may belong to it."""
        raise UserError(f"data.tokenizer.kind: {self.kind} does not say which characters a token stands for")

    def encode_rendered(self, text: str) -> Encoded:
        """`encode` of a text whose special tokens are read as such, with offsets that count white space too.

        Args:
          text: any text, such as a dialogue in a chat template.

        Raises:
          UserError: as `encode_with_offsets`.
        """
        named, at = self._written(), 0
        ids, spans = [], [np.zeros((0, 2), np.int64)]
        for part in filter(None, re.split(any_of(named), text)):
            known = ([named[part]], [(0, len(part))]) if part in named else self._encode_with_offsets([part])[0]
            ids += known[0]
            spans.append(np.reshape(known[1], (-1, 2)) + at)
            at += len(part)
        return Encoded(ids, np.concatenate(spans))

    def encode_words(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Token ids of each word of texts that are given as words.

        Each word is encoded by itself, and begins as in running text: byte-level BPE, and a SentencePiece model that
        puts no space before a text (Gemma's), encode all words but a text's first with the space that stands before
        them there.

        Args:
          texts: the words of each text.

        Returns:
          For each text the ids of each of its words; none for a word that has no token, such as "" or a control
          character.
        """
        space = " " * self._needs_space
        flat = self.encode_batch([space * (n > 0) + word for words in texts for n, word in enumerate(words)])
        ids = iter(flat)
        return [[next(ids) for _ in words] for words in texts]

    @functools.cached_property
    def _needs_space(self) -> bool:
        """Whether a word that is encoded by itself begins as in running text only with the space before it."""
        alone, spaced = ("".join(self.pieces(ids)) for ids in self.encode_batch(["a", " a"]))
        return self.byte_text == "all" or (spaced.startswith("▁") and not alone.startswith("▁"))

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids. Padding, EOS, [CLS] and [SEP] are left out; masks and sentinels are shown."""

    @abc.abstractmethod
    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The readable piece of each id, such as ["▁the", "##ing", "<extra_id_0>"]."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id as the vocabulary has it, such as ["Ġthe", "▁the"]; each id has another one."""
        return self.tokens(ids)

    @cached_method
    def spelled(self, i: int) -> bytes | None:
        """The bytes that an id stands for; b"" if `decode` leaves it out, None if it stands for text."""
        return self._spelled(i) if self._shown([i]) else b""

    def _spelled(self, i: int) -> bytes | None:
        return None

    @cached_method
    def word_starts(self) -> np.ndarray:
        """Whether an id starts a word, or stands for no part of one: bool [ids].

        SentencePiece's and byte-level pieces start a word with white space ("▁the", "Ġthe"), WordPiece's without "##".
        Pieces of scripts without spaces (`scripts`) each start a word, in every vocabulary.

        Raises:
          UserError: the pieces do not say it.
        """
        v = self.vocabulary
        named = {v.pad, v.unk, v.bos, v.eos, v.cls, v.sep, v.mask, *v.languages, *v.sentinel_ids}
        named |= {*range(v.size - v.behind, v.size)}

        def starts(i: int, token: str, piece: str) -> bool:
            if self.kind == "wordpiece":
                return not piece.startswith("##") or scripts.is_unspaced(piece[2:])
            if piece.startswith("▁") or token[:1].isspace() or scripts.is_unspaced(token):
                return True
            is_part = scripts.may_spell_bytes(token) and "\ufffd" in self.decode([i])  # of a character
            return is_part and scripts.is_unspaced_bytes(token)

        names = zip(self.tokens(range(v.size)), self.pieces(range(v.size)))
        return np.array([i in named or starts(i, *pair) for i, pair in enumerate(names)])

    def resolved(self) -> dict[str, Any]:
        """Options of tokenizer_config.json whose default depends on config.json."""
        return dict(self.of_config)

    def files(self) -> dict[str, str | bytes]:
        """{name: content} of the files that `load` reads, for `save` and `digest`."""
        raise NotImplementedError

    def save(self, directory: str | Path) -> None:
        """Writes the files with their checksums; those of jaxpt's kinds are Hugging Face's AutoTokenizer's, too."""
        self._write(directory, self.files(), type(self).__name__, {"kind": self.kind})

    def _write(self, directory: str | Path, files: dict[str, str | bytes], name: str, settings: dict[str, Any]) -> None:
        """Writes the files, and a tokenizer_config.json of the class `name` with these settings."""
        written = vocabulary_files.settings_file(name, settings, self.chat_templates)
        vocabulary_files.write(directory, files | {vocabulary_files.SETTINGS: written})

    def _settings(self) -> dict[str, Any]:
        """What tokenizer_config.json says of every vocabulary of jaxpt's kinds."""
        # Special tokens are named always: the classes that take all from tokenizer.json know none by themselves.
        named = {f"{part}_token": token and token.named() for part, token in self.special_tokens().items()}
        added = {vocabulary_files.ADDED: list(self.added)} if self.added else {}
        return {"do_lower_case": self.lowercase, **self.carried, **added, **named}

    @property
    def text_version(self) -> int:
        """More than 1 where a text had other ids before, by the same `digest`: records from then are made again."""
        return 1

    @property
    def label_version(self) -> int:
        """As `text_version`, of the records of tasks: words had other ids, or spans other tokens."""
        return 2 if self._needs_space and self.byte_text != "all" else 1

    def digest(self) -> str:
        """Hash of everything that determines the ids: by default the files and the module's source."""
        parts = [Path(sys.modules[type(self).__module__].__file__ or "").read_bytes()]
        for name, content in sorted(self.files().items()):
            parts += [name.encode(), content.encode() if isinstance(content, str) else content]
        return vocabulary_files.digest_of(b"".join(len(part).to_bytes(8, "big") + part for part in parts))

    def _written(self) -> dict[str, int]:
        """Special tokens as they are written, with their ids."""
        v = self.vocabulary
        ids = dict.fromkeys(i for i in (v.bos, v.eos, v.cls, v.sep, v.mask) if i is not None)
        named = {token.content: self.token_id(token.content) for token in self.specials.values() if token is not None}
        return dict(zip(self.tokens(ids), ids)) | {token: i for token, i in named.items() if i is not None}

    def _shown(self, ids: Iterable[int]) -> list[int]:
        """Ids without those that stand for no text, and those that a larger model knows and the vocabulary does not."""
        v = self.vocabulary
        pads = self.specials.get("pad") is not None or self.tokens([v.pad])[0] in SPECIALS["pad"]
        hidden = {v.bos, v.eos, v.cls, v.sep, *v.languages} | ({v.pad} if pads else set())
        return [i for i in map(int, ids) if i not in hidden and 0 <= i < self.vocabulary.size]


def any_of(tokens: Iterable[str]) -> str:
    """A regular expression whose group is one of some tokens; of several that begin at a place the longest.

    Without tokens it matches nothing.
    """
    return f"({'|'.join(map(re.escape, sorted(tokens, key=len, reverse=True))) or '(?!)'})"


def _trimmed(text: str, offsets_Nx2: np.ndarray) -> np.ndarray:
    """Offsets without the white space at both ends; of white space alone the place after it."""
    is_space = np.array([c.isspace() for c in text] + [False], bool)
    place = np.arange(len(is_space))
    # The nearest place from each one on, or up to it, where there is no white space.
    following = np.minimum.accumulate(np.where(is_space, len(text), place)[::-1])[::-1]
    preceding = np.maximum.accumulate(np.where(is_space, 0, place + 1))
    start, end = offsets_Nx2.astype(np.int64).T
    start = np.minimum(following[start], np.maximum(end, start))
    return np.stack([start, np.maximum(start, np.where(end > 0, preceding[end - 1], 0))], -1)
