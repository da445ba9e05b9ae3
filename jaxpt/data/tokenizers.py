"""Text to token ids and back: SentencePiece (T5, ALBERT, XLM-R), WordPiece (BERT) and byte-level BPE (GPT-2).

    kind           ids                                             trained by, run by
    sentencepiece  0 <pad>  1 </s>  2 <unk>  …  sentinels at the end   sentencepiece
    wordpiece      0 [PAD]  1 [UNK]  2 [CLS]  3 [SEP]  4 [MASK]  …     tokenizers (Rust)
    bpe            …  <|endoftext|> is the last                        tokenizers (Rust)

The ids are those of a vocabulary trained here; a published one keeps its own.

Training is deterministic. Nothing here needs TensorFlow: generation imports this module alone.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt.config import TokenizerConfig
from jaxpt.data import scripts
from jaxpt.errors import UserError
from jaxpt.objectives.base import Vocabulary

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
# A directory is searched in this order: the first is the most exact.
_FILES = (
    ("sentencepiece", ("spiece.model",)),
    ("sentencepiece", ("sentencepiece.model",)),
    ("sentencepiece", ("tokenizer.model",)),
    ("sentencepiece", ("sentencepiece.bpe.model",)),
    (None, ("tokenizer.json",)),
    ("wordpiece", ("vocab.txt",)),
    ("bpe", ("vocab.json", "merges.txt")),
    ("bpe", ("encoder.json", "vocab.bpe")),
)


class Tokenizer(abc.ABC):
    """What all three kinds offer.

    Attributes:
      kind: "sentencepiece", "wordpiece" or "bpe".
      lowercase: whether case is folded.
      vocabulary: the ids that objectives need to know.
    """

    kind: str
    lowercase: bool
    vocabulary: Vocabulary

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


# ---- loading --------------------------------------------------------------------------------------------------------


def load(
    path: str | Path,
    kind: str | None = None,
    *,
    lowercase: bool | None = None,
    extra_ids: int | None = None,
    max_size: int | None = None,
    languages: Sequence[str] = (),
) -> Tokenizer:
    """Reads a vocabulary.

    Args:
      path: a `.model`, `vocab.txt`, `tokenizer.json`, or a directory with one of these or `vocab.json` + `merges.txt`.
      kind: the kind it must be; whatever it is by default.
      lowercase: whether it must fold case; for `vocab.txt` and `vocab.json`, whether to. By default what
        `tokenizer_config.json` beside it says, else false.
      extra_ids: sentinels of a SentencePiece model; by default what `tokenizer_config.json` says, else 100. Where that
        file or `config.json` names ALBERT, XLNet, XLM-R or Llama, its rules hold and there are none.
      max_size: more ids than this are an error (`model.vocab_size`).
      languages: tokens that it must hold.

    Returns:
      The tokenizer.

    Raises:
      UserError: no such file, a damaged one, another kind or case than wanted, too many ids, or a language without a
        token.
    """
    found, files = _find(Path(path), kind)
    settings = _read_settings(files[0].parent, "tokenizer_config.json")
    if lowercase is not None:
        settings = settings | {"do_lower_case": lowercase}
    try:
        tokenizer = _read(found, files, settings, extra_ids)
    except UserError:
        raise
    except Exception as error:  # the Rust library raises bare Exceptions
        raise UserError(
            f"{files[0]}: damaged, or no {found or 'tokenizer'} file ({str(error).splitlines()[0]})"
        ) from None
    if kind is not None and tokenizer.kind != kind:
        raise UserError(f"{files[0]}: holds a {tokenizer.kind} vocabulary, data.tokenizer.kind is {kind}")
    if lowercase is not None and tokenizer.lowercase != lowercase:
        now, wanted = ("folds", "false") if tokenizer.lowercase else ("keeps", "true")
        raise UserError(f"{files[0]}: this vocabulary {now} case, data.tokenizer.lowercase is {wanted}")
    if max_size is not None and tokenizer.vocabulary.size > max_size:
        sentinels = tokenizer.vocabulary.sentinels
        extra = f" (with data.tokenizer.extra_ids: {sentinels})" if sentinels else ""
        raise UserError(f"{path}: {tokenizer.vocabulary.size} token ids{extra}, but model.vocab_size is {max_size}")
    if languages:
        ids = {piece: i for i, piece in enumerate(tokenizer.tokens(range(tokenizer.vocabulary.size)))}
        if missing := [name for name in languages if name not in ids]:
            raise UserError(f"{path}: no token {missing[0]!r} (data.language) in this vocabulary")
        tokenizer.vocabulary = dataclasses.replace(tokenizer.vocabulary, languages=tuple(ids[x] for x in languages))
    return tokenizer


def _find(path: Path, kind: str | None) -> tuple[str | None, list[Path]]:
    """The kind (None: the file says) and the files of a vocabulary."""
    if path.is_dir():
        for found, names in _FILES:
            files = [path / name for name in names]
            if all(f.is_file() for f in files) and (kind is None or found in (None, kind)):
                return found, files
        wanted = "spiece.model, tokenizer.json, vocab.txt, or vocab.json with merges.txt"
        raise UserError(f"{path}: no {kind or 'known'} vocabulary in this directory; wants {wanted}")
    if not path.is_file():
        raise UserError(f"{path}: no such vocabulary file or directory")
    for found, names in _FILES:
        if path.name in names:
            files = [path.parent / name for name in names]
            missing = [f.name for f in files if not f.is_file()]
            if missing:
                raise UserError(f"{path}: wants {missing[0]} beside it")
            return found, files
    suffixes = {".model": "sentencepiece", ".txt": "wordpiece", ".json": None}
    if path.suffix not in suffixes:
        raise UserError(f"{path}: wants a .model, vocab.txt, tokenizer.json, or vocab.json with merges.txt beside it")
    return suffixes[path.suffix], [path]


def _read(kind: str | None, files: list[Path], settings: dict[str, Any], extra_ids: int | None) -> Tokenizer:
    from jaxpt.data import rust_tokenizers, sentencepiece_tokenizers

    fold = bool(settings.get("do_lower_case", False))
    if kind == "sentencepiece":
        model_type = _read_settings(files[0].parent, "config.json").get("model_type")
        style = sentencepiece_tokenizers.style_of(files[0], settings, model_type)
        if extra_ids is None:
            extra_ids = int(settings.get("extra_ids", DEFAULT_EXTRA_IDS if style.takes_sentinels else 0))
        return sentencepiece_tokenizers.SentencePieceTokenizer(files[0].read_bytes(), extra_ids, str(files[0]), style)
    if kind == "wordpiece":
        vocab = {line: i for i, line in enumerate(files[0].read_text("utf-8").removesuffix("\n").split("\n"))}
        if "[UNK]" not in vocab:
            raise UserError(f"{files[0]}: no [UNK] line; wants a WordPiece vocabulary, one token a line")
        return rust_tokenizers.wordpiece(vocab, fold)
    if kind == "bpe":
        lines = files[1].read_text("utf-8").split("\n")
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        return rust_tokenizers.bpe(json.loads(files[0].read_text("utf-8")), merges, fold)
    tokenizer = rust_tokenizers.read(files[0])
    if extra_ids is not None and tokenizer.kind == "sentencepiece" and tokenizer.vocabulary.sentinels != extra_ids:
        has = tokenizer.vocabulary.sentinels
        raise UserError(f"{files[0]}: has {has} sentinels, data.tokenizer.extra_ids is {extra_ids}")
    return tokenizer


# ---- training -------------------------------------------------------------------------------------------------------


def train(
    texts: Iterable[str],
    config: TokenizerConfig,
    vocab_size: int,
    out_dir: str | Path | None = None,
    languages: Sequence[str] = (),
) -> Tokenizer:
    """Trains a vocabulary, and saves it where a directory is given.

    Args:
      texts: documents; about the first `config.characters` characters are used.
      config: kind, case, sentinels.
      vocab_size: ids wanted, special ones included. A small corpus may give fewer.
      out_dir: directory for the files, or None.
      languages: tokens that no text gives, one for each language (SentencePiece).

    Returns:
      The tokenizer. The same texts give the same one.

    Raises:
      UserError: too few ids for the kind, or no text.
    """
    kept = _first(texts, config.characters)
    if not kept:
        raise UserError("data.tokenizer: no text to train a vocabulary on")
    if languages and config.kind != "sentencepiece":
        raise UserError(
            f"data.tokenizer.kind: a {config.kind} vocabulary is not trained with tokens of languages; take "
            "sentencepiece, or name a vocabulary that holds them with data.tokenizer.path"
        )
    least = {"sentencepiece": 3 + len(languages) + _extra(config), "wordpiece": len(BERT_SPECIALS), "bpe": 257}[
        config.kind
    ]
    if vocab_size <= least:
        raise UserError(f"data.tokenizer.vocab_size: {vocab_size} is too small, {config.kind} needs more than {least}")
    from jaxpt.data import tokenizer_training

    of_kind = {"control_symbols": languages} if languages else {}
    tokenizer = getattr(tokenizer_training, config.kind)(kept, config.lowercase, vocab_size, _extra(config), **of_kind)
    if out_dir is not None:
        tokenizer.save(out_dir)
    return tokenizer


def planned(config: TokenizerConfig, vocab_size: int) -> Vocabulary:
    """What is known of a vocabulary before it is trained: its special ids, and the size that is wanted.

    Args:
      config: kind and sentinels.
      vocab_size: ids wanted, special ones included.

    Returns:
      The ids of `train`'s tokenizer; a small corpus may give it a smaller size.

    Example:
      >>> planned(TokenizerConfig(kind="wordpiece"), 100).mask
      4
    """
    if config.kind == "sentencepiece":
        return Vocabulary(vocab_size, eos=1, unk=2, sentinels=_extra(config))
    if config.kind == "wordpiece":
        return Vocabulary(vocab_size, **{name: n for n, name in enumerate(("pad", "unk", "cls", "sep", "mask"))})
    return Vocabulary(vocab_size, bos=vocab_size - 1, eos=vocab_size - 1)


def _extra(config: TokenizerConfig) -> int:
    return DEFAULT_EXTRA_IDS if config.extra_ids is None else config.extra_ids


def _first(texts: Iterable[str], characters: int) -> list[str]:
    kept, total = [], 0
    for text in texts:
        if total >= characters:
            break
        kept.append(text[: characters - total])
        total += len(kept[-1])
    return kept


# ---- files ----------------------------------------------------------------------------------------------------------


def settings_file(name: str, values: dict[str, Any]) -> str:
    return json.dumps({"tokenizer_class": name, **values}, indent=1)


def _read_settings(directory: Path, name: str) -> dict[str, Any]:
    path = directory / name
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    return settings if isinstance(settings, dict) else {}


def write_files(directory: str | Path, files: dict[str, str | bytes]) -> None:
    """Each file appears whole or not at all."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        temporary = Path(directory) / f".{name}.{os.getpid()}"
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(Path(directory) / name)


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
