"""WordPiece (BERT), byte-level BPE (GPT-2) and whatever else a tokenizer.json holds, run by `tokenizers` (Rust)."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import scripts, vocabulary_files
from jaxpt.data.tokenizers.base import BERT_SPECIALS, END_OF_TEXT, SPECIALS, Encoded, Tokenizer, behind
from jaxpt.errors import UserError

BPE_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # RoBERTa's, BART's


class RustTokenizer(Tokenizer):
    """Any tokenizer that Hugging Face's `tokenizers` runs."""

    def __init__(self, tokenizer: Any, kind: str, sentinels: int = 0, added: Sequence[str] = ()) -> None:
        """Takes a `tokenizers.Tokenizer`; special tokens are found by their usual names."""
        self.kind, self._tokenizer, self.added = kind, tokenizer, tuple(added)
        # Special tokens that a document happens to spell out are text like any other.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        tree = _tree(self)
        self.lowercase = _folds_case(tree["normalizer"])
        self.byte_text = _byte_text(tree["decoder"])
        ids = {
            name: next((i for t in spellings if (i := tokenizer.token_to_id(t)) is not None), None)
            for name, spellings in SPECIALS.items()
        }
        size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        own = {token: tokenizer.token_to_id(token) for token in self.added}
        self.vocabulary = Vocabulary(
            size=size, sentinels=sentinels, added=tuple(own.items()), behind=behind(size, own),
            **(ids | {"pad": ids["pad"] or 0, "eod": tokenizer.token_to_id("<eod>")}),
        )  # fmt: skip

    def with_tokens(self, tokens: Sequence[str]) -> Tokenizer:
        from tokenizers import Tokenizer as Rust

        tree, size = _tree(self), self.vocabulary.size
        known = {token["content"]: token for token in tree["added_tokens"]}
        for token in tokens:
            i = self._tokenizer.token_to_id(token)
            i, size = (size, size + 1) if i is None else (i, size)
            # Not special for the library: such tokens are plain text in a document. `save` says that they are.
            matching = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
            known[token] = {"id": i, "content": token, **matching}
        tree["added_tokens"] = sorted(known.values(), key=lambda token: token["id"])
        rust, added = Rust.from_str(json.dumps(tree)), dict.fromkeys((*self.added, *tokens))
        if any(rust.token_to_id(token["content"]) != token["id"] for token in known.values()):
            raise UserError("data.tokenizer.add_tokens: tokens cannot be added to a vocabulary with gaps in its ids")
        return RustTokenizer(rust, self.kind, self.vocabulary.sentinels, tuple(added))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [(e.ids, np.array(e.offsets, np.int64)) for e in found]

    def encode(self, text: str, special: bool = False) -> list[int]:
        return self._encode_special(text).ids if special and self._reads_special() else super().encode(text, special)

    def encode_rendered(self, text: str) -> Encoded:
        if not self._reads_special():
            return super().encode_rendered(text)
        found = self._encode_special(text)
        return Encoded(found.ids, np.array(found.offsets, np.int64).reshape(-1, 2))

    def _reads_special(self) -> bool:
        """True if the library finds all special tokens in a text."""
        added = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        return added >= self._written().keys()

    def _encode_special(self, text: str) -> Any:
        self._tokenizer.encode_special_tokens = False  # the library knows which white space beside them belongs to them
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        finally:
            self._tokenizer.encode_special_tokens = True

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(self._shown(ids), skip_special_tokens=False)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._piece(int(i)) for i in ids]

    @functools.cache  # noqa: B019 (a tokenizer lives as long as the program)
    def _piece(self, i: int) -> str:
        piece = self._tokenizer.id_to_token(i)
        if piece is None or self.kind == "wordpiece":
            return piece or f"<{i}>"
        text = self._tokenizer.decode([i], skip_special_tokens=False)
        return piece if "\ufffd" in text else text  # part of a character: as the vocabulary spells its bytes

    def _spelled(self, i: int) -> bytes | None:
        piece = self._tokenizer.id_to_token(i)
        if piece is None:
            return b""
        if self.byte_text == "all":
            return scripts.gpt2_bytes(piece)
        return scripts.fallback_byte(piece) if self.byte_text == "runs" else None

    def save(self, directory: str | Path) -> None:
        tree = _tree(self)
        for token in tree["added_tokens"]:
            token["special"] |= token["content"] in self.added
        vocab = dict(sorted(self._tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1]))
        vocab = {token: i for token, i in vocab.items() if i < self.vocabulary.size - self.vocabulary.behind}
        files = {"tokenizer.json": json.dumps(tree, ensure_ascii=False, indent=1)}
        if self.kind == "wordpiece" and list(vocab.values()) == list(range(len(vocab))):  # a line's number is its id
            files["vocab.txt"] = "".join(f"{token}\n" for token in vocab)
        elif self.kind == "bpe" and "ByteLevel" in str(tree["pre_tokenizer"]):
            merges = (" ".join(m) if isinstance(m, list) else m for m in tree["model"]["merges"])
            files["vocab.json"] = json.dumps(vocab, ensure_ascii=False)
            files["merges.txt"] = "#version: 0.2\n" + "".join(f"{m}\n" for m in merges)
        name = self._class_of(tree, vocab)
        # Named always: the classes that take all from tokenizer.json know no special token by themselves.
        ids = {part: getattr(self.vocabulary, part) for part in SPECIALS}
        named = {part: self._tokenizer.id_to_token(i) for part, i in ids.items() if i is not None}
        settings: dict[str, Any] = {"do_lower_case": self.lowercase}
        settings |= {vocabulary_files.ADDED: list(self.added)} if self.added else {}
        settings |= {f"{part}_token": token for part, token in named.items() if token in SPECIALS[part]}
        written = vocabulary_files.settings_file(name, settings, self.chat_templates)
        vocabulary_files.write(directory, files | {vocabulary_files.SETTINGS: written})

    def _class_of(self, tree: dict[str, Any], vocab: dict[str, int]) -> str:
        """The class of `transformers` that does what we do.

        Those of BERT, GPT-2 and RoBERTa take the pieces alone from a tokenizer.json and bring their own steps and
        names of special tokens; PreTrainedTokenizerFast takes all of it.
        """
        if self.kind == "wordpiece" and set(BERT_SPECIALS) <= vocab.keys():
            if _steps(tree) == _steps(_tree(wordpiece({"[UNK]": 0}, self.lowercase))):
                return "BertTokenizer"
        elif self.kind == "bpe" and _steps(tree) == _steps(_tree(bpe({}, [], lowercase=False))):
            if set(BPE_SPECIALS) <= vocab.keys():
                return "RobertaTokenizer"
            if END_OF_TEXT in vocab:
                return "GPT2Tokenizer"
        return "PreTrainedTokenizerFast"

    def digest(self) -> str:
        return vocabulary_files.digest_of(self._tokenizer.to_str().encode())


def read(path: Path, added: Sequence[str] = ()) -> RustTokenizer:
    """The tokenizer of a tokenizer.json.

    Args:
      path: the file.
      added: those of its tokens that `with_tokens` made.

    Raises:
      UserError: of another kind than WordPiece, BPE and SentencePiece's unigram model, or with sentinels elsewhere than
        at its end.
    """
    from tokenizers import Tokenizer as Rust

    tree = json.loads(path.read_text("utf-8"))
    ids = {token["content"]: token["id"] for token in tree.get("added_tokens", ())}
    sentinels = sum(bool(re.fullmatch(r"<extra_id_\d+>", content)) for content in ids)
    for token in tree.get("added_tokens", ()):  # sentinels are read in running text, as T5 does
        token["special"] = token["special"] and not token["content"].startswith("<extra_id_")
    rust = Rust.from_str(json.dumps(tree))
    kinds = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "sentencepiece"}
    model = type(rust.model).__name__
    if model not in kinds:
        raise UserError(f"{path}: holds a {model} model; wants WordPiece, BPE or Unigram")
    tokenizer = RustTokenizer(rust, kinds[model], sentinels, [token for token in added if token in ids])
    first = tokenizer.vocabulary.first_sentinel
    if any(ids.get(f"<extra_id_{i}>") != first - i for i in range(sentinels)):
        raise UserError(f"{path}: wants its {sentinels} sentinels at the end, <extra_id_0> the last")
    return tokenizer


def wordpiece(vocab: dict[str, int], lowercase: bool) -> RustTokenizer:
    """BERT's tokenizer over a vocabulary."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import decoders, models

    rust = Rust(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    rust.normalizer, rust.pre_tokenizer = bert_steps(lowercase)
    rust.decoder = decoders.WordPiece()
    rust.add_special_tokens([t for t in BERT_SPECIALS if t in vocab])
    return RustTokenizer(rust, "wordpiece")


def bert_steps(lowercase: bool) -> tuple[Any, Any]:
    from tokenizers import normalizers, pre_tokenizers

    return normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()


def bpe(vocab: dict[str, int], merges: list[tuple[str, str]], lowercase: bool) -> RustTokenizer:
    """GPT-2's tokenizer over a vocabulary; <|endoftext|> is added where no token ends a text (RoBERTa: </s>)."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import decoders, models, processors

    rust = Rust(models.BPE(vocab, merges))
    rust.normalizer, rust.pre_tokenizer = gpt2_steps(lowercase)
    rust.decoder = decoders.ByteLevel()
    known = [token for token in (*BPE_SPECIALS, END_OF_TEXT) if token in vocab]
    rust.add_special_tokens(known if {"</s>", END_OF_TEXT} & set(known) else [*known, END_OF_TEXT])
    if lowercase and {"<s>", "</s>", "<mask>"} <= set(known):  # GPT-2's class and RoBERTa's know no folding of case
        ends = (("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]))
        rust.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return RustTokenizer(rust, "bpe")


def gpt2_steps(lowercase: bool) -> tuple[Any, Any]:
    from tokenizers import normalizers, pre_tokenizers

    fold = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    return fold if lowercase else None, pre_tokenizers.ByteLevel(add_prefix_space=False)


def _tree(tokenizer: RustTokenizer) -> dict[str, Any]:
    """Its tokenizer.json."""
    return json.loads(tokenizer._tokenizer.to_str())


def _steps(tree: dict[str, Any]) -> list[Any]:
    """What a tokenizer.json does to a text, its pieces aside."""
    model = {key: value for key, value in tree["model"].items() if key not in ("vocab", "merges")}
    return [tree["normalizer"], tree["pre_tokenizer"], tree["decoder"], model]


def _folds_case(normalizer: dict[str, Any] | None) -> bool:
    if not normalizer:
        return False
    parts = normalizer.get("normalizers", [normalizer])
    return any(p.get("type") == "Lowercase" or p.get("lowercase") is True for p in parts)


def _byte_text(decoder: dict[str, Any] | None) -> Literal["all", "runs"] | None:
    """`Tokenizer.byte_text` of a tokenizer.json's decoder."""
    if (decoder or {}).get("type") == "ByteLevel":
        return "all"
    return "runs" if "'ByteFallback'" in str(decoder) else None
