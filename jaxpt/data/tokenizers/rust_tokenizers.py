"""WordPiece (BERT), byte-level BPE (GPT-2) and whatever else a tokenizer.json holds, run by `tokenizers` (Rust)."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jaxpt.data.tokenizers import added_tokens, scripts, vocabulary_files
from jaxpt.data.tokenizers.added_tokens import AddedToken
from jaxpt.data.tokenizers.base import (
    BART_TOKENS,
    BERT_TOKENS,
    END_OF_TEXT,
    SPECIALS,
    Encoded,
    Tokenizer,
    cached_method,
)
from jaxpt.data.tokenizers.declared import WITHOUT_CLASS, class_name
from jaxpt.errors import UserError

BERT_CLASSES = ("bert", "distilbert", "electra")
GPT2_CLASSES = ("gpt2", "opt", "roberta", "bart", "longformer", "led")
_BERT_OPTIONS = {"lowercase": "do_lower_case", "handle_chinese_chars": "tokenize_chinese_chars"}


class RustTokenizer(Tokenizer):
    """Any tokenizer that Hugging Face's `tokenizers` runs."""

    def __init__(
        self, tokenizer: Any, kind: str, sentinels: int = 0, sentinels_end: int = 0, added: Sequence[str] = ()
    ) -> None:
        """Takes a `tokenizers.Tokenizer`; special tokens are found by their usual names.

        Args:
          tokenizer: the library's.
          kind: "wordpiece", "bpe" or "sentencepiece".
          sentinels: how many sentinels it has.
          sentinels_end: the id behind them.
          added: tokens of `with_tokens`.
        """
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
        all_ids = tokenizer.get_vocab(with_added_tokens=True)
        size = max(all_ids.values(), default=-1) + 1
        added_ids = {token: tokenizer.token_to_id(token) for token in self.added}
        self.vocabulary = added_tokens.vocabulary(
            size, added_ids, sentinels, sentinels_end, hides_word_starts=self._hides_word_starts(all_ids),
            **(ids | {"pad": ids["pad"] or 0, "eod": tokenizer.token_to_id("<eod>")}),
        )  # fmt: skip

    def with_tokens(self, tokens: Sequence[str]) -> Tokenizer:
        # Not special for the library, which then reads them in every text. `save` says that they are.
        return self._extended([AddedToken(token) for token in tokens], tuple(tokens))

    def with_declared(self, tokens: Sequence[AddedToken]) -> Tokenizer:
        return self._extended(tokens)

    def _extended(self, tokens: Sequence[AddedToken], added: Sequence[str] = ()) -> RustTokenizer:
        """The tokenizer with further tokens.

        Args:
          tokens: those with an id must be numbered; their flags count before those that the library knows.
          added: those of them that are of `with_tokens`; they count before those that the library adds already.

        Raises:
          UserError: the library gives one another id.
        """
        tree, size = _tree(self), self.vocabulary.size
        known = {token["content"]: token for token in tree["added_tokens"]}
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        counting = {token.content for token in tokens if added or token.id is not None}
        for token in added_tokens.numbered(tokens, ids, size):
            if token.content in counting or token.content not in known:
                known[token.content] = {"id": token.id, **token.tree()}
        tree["added_tokens"] = sorted(known.values(), key=lambda token: token["id"])
        rust, v = library.Tokenizer.from_str(json.dumps(tree)), self.vocabulary
        if any(rust.token_to_id(token["content"]) != token["id"] for token in known.values()):
            where = "data.tokenizer.add_tokens" if added else repr(tokens[0].content)
            raise UserError(f"{where}: tokens cannot be added to a vocabulary with gaps in its ids")
        all_added = tuple(dict.fromkeys((*self.added, *added)))
        return RustTokenizer(rust, self.kind, v.sentinels, v.sentinel_ids.stop, all_added)

    @property
    def library(self) -> Any:
        """The library's tokenizer."""
        return self._tokenizer

    def token_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def special_token(self, i: int) -> AddedToken | None:
        token = self._tokenizer.get_added_tokens_decoder().get(i)
        return AddedToken(token.content, special=True) if token is not None and token.special else None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self._plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        encodings = self._plain.encode_batch(list(texts), add_special_tokens=False)
        return [(e.ids, np.array(e.offsets, np.int64)) for e in encodings]

    def encode(self, text: str, special: bool = False) -> list[int]:
        return self._with_specials.encode(text, add_special_tokens=False).ids if special else super().encode(text)

    def encode_rendered(self, text: str) -> Encoded:
        encoding = self._with_specials.encode(text, add_special_tokens=False)
        return Encoded(encoding.ids, np.array(encoding.offsets, np.int64).reshape(-1, 2))

    @functools.cached_property
    def _spelled_specials(self) -> set[str]:
        """Special tokens that the model would take for pieces where a text spells them: a unigram model's search knows
        all of its pieces, and a BPE of SentencePiece with symbols takes what is between two of them for one."""
        model = self._tokenizer.model
        has_symbols = getattr(model, "ignore_merges", False) and self.byte_text != "all"
        if not (isinstance(model, models.Unigram) or has_symbols):
            return set()
        added = self._tokenizer.get_added_tokens_decoder().values()
        read = {token.content for token in added if not token.special}
        special = {token.content for token in added} | self._written().keys()
        return (special - read) & self._tokenizer.get_vocab(with_added_tokens=False).keys()

    @functools.cached_property
    def _plain(self) -> Any:
        """The library's tokenizer for text in which special tokens are text: they are no pieces, but keep their ids."""
        if not self._spelled_specials:
            return self._tokenizer
        tree = _tree(self)
        model, hidden = tree["model"], {name: f"\uffff{name}" for name in self._spelled_specials}  # in no text
        if model["type"] == "BPE":
            model["vocab"] = {hidden.get(piece, piece): i for piece, i in model["vocab"].items()}
            model["merges"] = [pair for pair in model["merges"] if hidden.keys().isdisjoint((*pair, "".join(pair)))]
            model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
        else:
            model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
        tree["added_tokens"] = [t for t in tree["added_tokens"] if t["content"] not in self._spelled_specials]
        tree["post_processor"] = None
        plain = library.Tokenizer.from_str(json.dumps(tree))
        plain.encode_special_tokens = True
        return plain

    @functools.cached_property
    def _with_specials(self) -> Any:
        """A copy of the library's tokenizer that finds special tokens, also those that the library does not add: it
        knows which white space beside them belongs to them."""
        rust = library.Tokenizer.from_str(self._tokenizer.to_str())
        written = {self._tokenizer.id_to_token(i) for i in self._written().values()}
        if not written <= {token.content for token in rust.get_added_tokens_decoder().values()}:
            named = {token.content: token for token in self.specials.values() if token}
            tokens = (named.get(token, AddedToken(token)) for token in sorted(written))
            rust.add_special_tokens([library.AddedToken(**token.tree()) for token in tokens])
        return rust

    @functools.cached_property
    def _misread(self) -> dict[int, str]:
        """Added tokens of a byte-level vocabulary that the library decodes to other texts: in "größe" it takes the ö
        for the byte F6. Pieces of the model are not among them, since their letters do stand for bytes."""
        if self.byte_text != "all":
            return {}
        added, model = self._tokenizer.get_added_tokens_decoder(), self._tokenizer.model
        texts = {i: token.content for i, token in added.items() if model.id_to_token(i) is None}
        return {i: text for i, text in texts.items() if scripts.gpt2_bytes(text) != text.encode()}

    def decode(self, ids: Iterable[int]) -> str:
        ids = self._shown(ids)
        if self._misread.keys().isdisjoint(ids):
            return self._tokenizer.decode(ids, skip_special_tokens=False)
        return b"".join(map(self._spelled, ids)).decode("utf-8", "replace")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._piece(int(i)) for i in ids]

    @cached_method
    def _piece(self, i: int) -> str:
        piece = self._tokenizer.id_to_token(i)
        if piece is None or self.kind == "wordpiece" or i in self._misread:
            return piece or f"<{i}>"
        text = self._tokenizer.decode([i], skip_special_tokens=False)
        return piece if "\ufffd" in text else text  # part of a character: as the vocabulary spells its bytes

    def pieces(self, ids: Iterable[int]) -> list[str]:
        pieces = [self._tokenizer.id_to_token(int(i)) or f"<{i}>" for i in ids]
        return [p.removeprefix("▁") if added_tokens.is_sentinel(p) else p for p in pieces]

    def _hides_word_starts(self, ids: Mapping[str, int]) -> bool:
        """Whether a piece that starts a word is decoded without the space before it."""
        if self.kind == "wordpiece" or self.byte_text == "all":
            return False
        words = (p for p in ids if p.startswith("▁") and p[1:2].isalpha() and not scripts.is_unspaced(p[1:]))
        word = next(words, None)
        return word is not None and not self._piece(ids[word])[:1].isspace()

    def word_starts(self) -> np.ndarray:
        if suffix := getattr(self._tokenizer.model, "end_of_word_suffix", None):
            raise UserError(
                f"data.tokenizer: the pieces of this vocabulary say where a word ends ({suffix}), not where it starts: "
                "no unit of whole words; choose one of pieces, or another vocabulary"
            )
        return super().word_starts()

    def _spelled(self, i: int) -> bytes | None:
        piece = self._tokenizer.id_to_token(i)
        if piece is None:
            return b""
        if self.byte_text == "all":
            return piece.encode() if i in self._misread else scripts.gpt2_bytes(piece)
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
        name, options = self._class_of(tree, vocab)
        self._write(directory, files, name, self._settings() | options)

    def _class_of(self, tree: dict[str, Any], vocab: dict[str, int]) -> tuple[str, dict[str, bool]]:
        """The class of `transformers` that does what we do, with its options in tokenizer_config.json.

        Those of BERT, GPT-2 and RoBERTa take the pieces alone from a tokenizer.json and bring their own steps, template
        and names of special tokens; PreTrainedTokenizerFast takes all of it.
        """
        normalizer, pre_tokenizer = tree["normalizer"] or {}, tree["pre_tokenizer"] or {}
        if self.kind == "wordpiece" and vocab.keys() >= set(BERT_TOKENS.values()):
            accents, chinese = normalizer.get("strip_accents"), normalizer.get("handle_chinese_chars", True)
            like = wordpiece({"[UNK]": 0}, self.lowercase, strip_accents=accents, chinese_chars=chinese)
            if _steps(tree) == _steps(_tree(like)):
                options = {} if accents is None else {"strip_accents": accents}
                return "BertTokenizer", options if chinese else {**options, "tokenize_chinese_chars": False}
        elif self.kind == "bpe":
            has_prefix = pre_tokenizer.get("add_prefix_space", False)
            options = {"add_prefix_space": True} if has_prefix else {}
            if _steps(tree) == _steps(_tree(bpe({}, [], lowercase=False, add_prefix_space=has_prefix))):
                if vocab.keys() >= set(BART_TOKENS.values()):
                    return "RobertaTokenizer", options
                if END_OF_TEXT in vocab:
                    return "GPT2Tokenizer", options
        return "PreTrainedTokenizerFast", {}

    @property
    def text_version(self) -> int:
        return 2 if self._spelled_specials else 1

    def digest(self) -> str:
        return vocabulary_files.digest_of(self._tokenizer.to_str().encode())


def read(path: Path, settings: Mapping[str, Any] = MappingProxyType({})) -> RustTokenizer:
    """The tokenizer of a tokenizer.json.

    Args:
      path: the file.
      settings: tokenizer_config.json beside it.

    Raises:
      UserError: of another kind than WordPiece, BPE and SentencePiece's unigram model, or with sentinels elsewhere than
        at its end.
    """
    tree = json.loads(path.read_text("utf-8"))
    override(tree, settings)
    ids = {token["content"]: token["id"] for token in tree.get("added_tokens", ())}
    for token in tree.get("added_tokens", ()):  # sentinels are read in running text, as T5 does
        token["special"] = token["special"] and not token["content"].startswith("<extra_id_")
    rust = library.Tokenizer.from_str(json.dumps(tree))
    kinds = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "sentencepiece"}
    model = type(rust.model).__name__
    if model not in kinds:
        raise UserError(f"{path}: holds a {model} model; wants WordPiece, BPE or Unigram")
    sentinel_range = added_tokens.sentinels(rust.get_vocab(with_added_tokens=True), path)
    added = [token for token in settings.get(vocabulary_files.ADDED, ()) if token in ids]
    return RustTokenizer(rust, kinds[model], *sentinel_range, added)


def override(tree: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Changes those steps of a tokenizer.json that a class of `transformers` takes from tokenizer_config.json.

    Args:
      tree: the file's value.
      settings: tokenizer_config.json, with the class and the model's type.
    """
    if settings.get("model_type") in WITHOUT_CLASS:
        return
    name = class_name(settings.get("tokenizer_class") or "")
    steps = tree.get("normalizer") or {}
    if name in BERT_CLASSES and steps.get("type") == "BertNormalizer":
        steps |= {key: settings[option] for key, option in _BERT_OPTIONS.items() if settings.get(option) is not None}
        if "strip_accents" in settings:  # null: as case is folded
            steps["strip_accents"] = settings["strip_accents"]
    steps = tree.get("pre_tokenizer") or {}
    if name in GPT2_CLASSES and steps.get("type") == "ByteLevel" and settings.get("add_prefix_space") is not None:
        steps["add_prefix_space"] = settings["add_prefix_space"]
    options = [settings.get(key) for key in ("legacy", "add_prefix_space")]
    if name == "llama" and tree["model"].get("byte_fallback") and options != [None, None]:
        scheme = "never" if options[1] is False else "always" if options[0] else "first"
        metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
        tree |= {"normalizer": None, "pre_tokenizer": metaspace}


def wordpiece(
    vocab: dict[str, int],
    lowercase: bool,
    *,
    strip_accents: bool | None = None,
    chinese_chars: bool = True,
    unk: str = "[UNK]",
) -> RustTokenizer:
    """BERT's tokenizer over a vocabulary.

    Args:
      vocab: {piece: id}.
      lowercase: whether case is folded.
      strip_accents: whether accents are left out; None: where case is folded.
      chinese_chars: whether each Chinese character is a word.
      unk: the token of words that have no pieces.
    """
    rust = library.Tokenizer(models.WordPiece(vocab, unk_token=unk, max_input_chars_per_word=100))
    rust.normalizer, rust.pre_tokenizer = bert_steps(lowercase, strip_accents, chinese_chars)
    rust.decoder = decoders.WordPiece()
    known = [token for token in BERT_TOKENS.values() if token in vocab]
    rust.add_special_tokens(known)
    if (len(known) < len(BERT_TOKENS) or unk != "[UNK]") and {"[CLS]", "[SEP]"} <= vocab.keys():  # BERT's class has all
        rust.post_processor = processors.BertProcessing(*((token, vocab[token]) for token in ("[SEP]", "[CLS]")))
    return RustTokenizer(rust, "wordpiece")


def bert_steps(lowercase: bool, strip_accents: bool | None = None, chinese_chars: bool = True) -> tuple[Any, Any]:
    steps = {"lowercase": lowercase, "strip_accents": strip_accents, "handle_chinese_chars": chinese_chars}
    return normalizers.BertNormalizer(**steps), pre_tokenizers.BertPreTokenizer()


def bpe(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    lowercase: bool,
    *,
    add_prefix_space: bool = False,
    special: Sequence[str] | None = None,
) -> RustTokenizer:
    """GPT-2's tokenizer over a vocabulary.

    Args:
      vocab: {piece: id}.
      merges: pairs of pieces, the first to be merged first.
      lowercase: whether case is folded.
      add_prefix_space: whether a space is put before a text.
      special: special tokens, where files or a class name them. By default those with the usual names; where no piece
        ends a text (RoBERTa: </s>), <|endoftext|> is added.
    """
    rust = library.Tokenizer(models.BPE(vocab, merges))
    rust.normalizer, rust.pre_tokenizer = gpt2_steps(lowercase, add_prefix_space)
    rust.decoder = decoders.ByteLevel()
    known = [token for token in special or (*BART_TOKENS.values(), END_OF_TEXT) if token in vocab]
    has_end = {"</s>", END_OF_TEXT} & set(known) or (special and END_OF_TEXT not in special)
    rust.add_special_tokens(known if has_end else [*known, END_OF_TEXT])
    if lowercase and {"<s>", "</s>", "<mask>"} <= set(known):  # GPT-2's class and RoBERTa's know no folding of case
        ends = (("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]))
        rust.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return RustTokenizer(rust, "bpe")


def openai_gpt(vocab: dict[str, int], merges: list[tuple[str, str]], unk: str = "<unk>") -> RustTokenizer:
    """GPT-1's tokenizer over a vocabulary: BERT's words in lower case, whose last pieces end with "</w>"."""
    rust = library.Tokenizer(models.BPE(vocab, merges, unk_token=unk, end_of_word_suffix="</w>"))
    rust.normalizer, rust.pre_tokenizer = bert_steps(lowercase=True)
    rust.decoder = decoders.BPEDecoder(suffix="</w>")
    rust.add_special_tokens([unk] if unk in vocab else [])
    return RustTokenizer(rust, "bpe")


def gpt2_steps(lowercase: bool, add_prefix_space: bool = False) -> tuple[Any, Any]:
    fold = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    return fold if lowercase else None, pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)


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
