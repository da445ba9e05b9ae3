"""SentencePiece models, and what each architecture does around its own: cleaning before, further ids behind."""

from __future__ import annotations

import dataclasses
import functools
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_pb2
from tokenizers import PreTokenizedString, Regex

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import added_tokens, declared, scripts, vocabulary_files
from jaxpt.data.tokenizers import sentencepiece_models as models
from jaxpt.data.tokenizers.added_tokens import AddedToken, Finder
from jaxpt.data.tokenizers.base import DEFAULT_EXTRA_IDS, SPECIALS, Encoded, Tokenizer, cached_method
from jaxpt.data.tokenizers.sentencepiece_styles import PLAIN, STYLES, XLM_R_STARTS, Style, style_of
from jaxpt.errors import UserError

_SENTINEL = "<extra_id_"


class _Part(NamedTuple):
    """A part of a text: an added token, or what is between two of them."""

    text: str
    start: int
    id: int | None
    """The added token's."""
    has_prefix: bool
    """Whether the model puts a space before it."""


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model with sentinels added at its end, in SeqIO's layout."""

    kind = "sentencepiece"
    takes_languages = True
    byte_text = "characters"

    @classmethod
    def planned(cls, config: TokenizerConfig, vocab_size: int) -> Vocabulary:
        return Vocabulary(vocab_size, eos=1, unk=2, sentinels=_sentinels(config))

    @classmethod
    def least(cls, config: TokenizerConfig) -> int:
        return 3 + _sentinels(config)

    @classmethod
    def train(
        cls, texts: Sequence[str], config: TokenizerConfig, vocab_size: int, languages: Sequence[str] = ()
    ) -> Tokenizer:
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_sentences(texts), model_writer=model, model_type="unigram",
                vocab_size=vocab_size - _sentinels(config), hard_vocab_limit=False, character_coverage=0.9995,
                pad_id=0, eos_id=1, unk_id=2, bos_id=-1, max_sentence_length=1 << 16,
                normalization_rule_name="nmt_nfkc_cf" if config.lowercase else "nmt_nfkc",
                control_symbols=list(languages), minloglevel=2,
                num_threads=4,  # the pieces depend on the number of threads: it is fixed
            )  # fmt: skip
        except RuntimeError as error:
            raise UserError(f"data.tokenizer.vocab_size: {vocab_size}: {str(error).splitlines()[-1]}") from None
        return cls(model.getvalue(), _sentinels(config))

    @classmethod
    def load(
        cls, files: Sequence[Path], settings: dict[str, Any], lowercase: bool | None, extra_ids: int | None
    ) -> Tokenizer:
        style = style_of(files[0], settings, settings.get("model_type"))
        saved = settings.get("extra_ids")
        requested = saved if extra_ids is None else extra_ids
        sentinels = (DEFAULT_EXTRA_IDS if style.takes_sentinels else 0) if requested is None else int(requested)
        tokenizer = cls(files[0].read_bytes(), sentinels, str(files[0]), style)
        if (has := tokenizer.vocabulary.sentinels) != sentinels and extra_ids not in (None, 0):
            raise UserError(f"{files[0]}: has {has} sentinels, data.tokenizer.extra_ids is {extra_ids}")
        if requested is None and tokenizer.appended:
            beside = f"no {vocabulary_files.SETTINGS} says extra_ids"
            tokenizer.assumed = (
                f"{files[0]}: {beside}; assumed {sentinels} sentinels behind the model's pieces, as T5 has"
            )
        return tokenizer

    def __init__(
        self,
        model: bytes,
        extra_ids: int = DEFAULT_EXTRA_IDS,
        path: str | None = None,
        style: Style = PLAIN,
        added: Sequence[str] = (),
        declared: Sequence[AddedToken] = (),
    ) -> None:
        """Takes a serialized model.

        Args:
          model: its bytes.
          extra_ids: sentinels to put behind its pieces; none where it has sentinels among them, as mT5's.
          path: the file it came from.
          style: what its architecture does around it.
          added: tokens of `with_tokens`.
          declared: tokens of `with_declared`.

        Raises:
          UserError: not a SentencePiece model, or a declared token gets another id than its file says.
        """
        self.path, self.style, self._model, self.added = path, style, model, tuple(added)
        name = path or "tokenizer"
        proto = models.parsed(model, name)
        if option := models.unknown_option(proto):
            raise UserError(f"{name}: a SentencePiece model of {option} is not known; wants unigram or bpe")
        if style.first and (starts := [p.piece for p in proto.pieces[:3]]) != XLM_R_STARTS:
            raise UserError(f"{name}: wants to start with {XLM_R_STARTS} to have XLM-R's ids, starts with {starts}")
        inside, _ = added_tokens.sentinels(models.ids(proto), name)
        self.appended = 0 if inside else extra_ids
        if style.prefix == "none":
            proto.normalizer_spec.add_dummy_prefix = False
        models.extend(proto, style, self.appended)
        sentinels, sentinels_end = added_tokens.sentinels(models.ids(proto), name)
        self.declared = tuple(added_tokens.numbered(declared, models.ids(proto), len(proto.pieces)))
        models.add(proto, [*(token.content for token in self.declared), *self.added])
        self._sp = models.processor(proto, name)
        if proto.trainer_spec.model_type == proto.trainer_spec.BPE and style == PLAIN and not self.appended:
            self.style = STYLES["llama"]
        self._cleaning = style.cleaning()
        self.lowercase = style.lowercase or proto.normalizer_spec.name.endswith("_cf")
        self._proto, ids = proto, models.ids(proto)
        added_ids = {token: ids[token] for token in self.added}
        self._read = [token for token in self.declared if not token.special]
        self._read += [AddedToken(token, i) for token, i in added_ids.items()]
        of_model = {part: getattr(self._sp, f"{part}_id")() for part in ("unk", "bos", "eos")}
        # Of fairseq's vocabularies <s> and </s> stand for [CLS] and [SEP], of no others.
        order = slice(None, None, -1) if style.first else slice(2)
        spelled = {part: SPECIALS[part][order] for part in ("cls", "sep", "mask")}
        self.vocabulary = added_tokens.vocabulary(
            len(proto.pieces), added_ids, sentinels, sentinels_end, pad=max(self._sp.pad_id(), 0), eod=ids.get("<eod>"),
            **{part: i if i >= 0 else None for part, i in of_model.items()},
            **{part: next((ids[token] for token in tokens if token in ids), None) for part, tokens in spelled.items()},
        )  # fmt: skip

    def with_tokens(self, tokens: Sequence[str]) -> Tokenizer:
        """As `Tokenizer.with_tokens`; the text between two of them is tokenized by itself, as `tokenizers` does."""
        added = tuple(dict.fromkeys((*self.added, *tokens)))
        return SentencePieceTokenizer(self._model, self.appended, self.path, self.style, added, self.declared)

    def with_declared(self, tokens: Sequence[AddedToken]) -> Tokenizer:
        if not tokens:
            return self
        extended = SentencePieceTokenizer(self._model, self.appended, self.path, self.style, self.added, tokens)
        extended.assumed = self.assumed
        return extended

    def token_id(self, token: str) -> int | None:
        pieces = (token, f"▁{token}") if added_tokens.is_sentinel(token) else (token,)
        ids = zip(map(self._sp.piece_to_id, pieces), pieces)
        return next((i for i, piece in ids if self._sp.id_to_piece(i) == piece), None)

    def encode(self, text: str, special: bool = False) -> list[int]:
        return self.encode_batch([text], special)[0]

    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        parts = self._around(texts, special, self._encode_plain)
        return [[i for part, ids in of_text for i in ([part.id] if ids is None else ids)] for of_text in parts]

    def encode_rendered(self, text: str) -> Encoded:
        return Encoded(*self._encode_with_offsets([text], special=True)[0])

    def _encode_with_offsets(self, texts: Sequence[str], special: bool = False) -> list[tuple[list[int], Any]]:
        encodings = []
        for of_text in self._around(texts, special, self._with_offsets):
            ids, spans = [], [np.zeros((0, 2), np.int64)]
            for part, encoding in of_text:
                part_ids, part_spans = encoding or ([part.id], np.array([(0, len(part.text))]))
                ids += part_ids
                spans.append(part_spans + part.start)
            encodings.append((ids, np.concatenate(spans)))
        return encodings

    @cached_method
    def _finder(self, special: bool) -> Finder | None:
        """Finds added tokens in a text, `special` ones also or not; None where there are none."""
        tokens = {token.content: token for token in self._read}
        if special:
            flags = {token.content: token for token in self.specials.values() if token is not None}
            for content, i in self._written().items():
                tokens.setdefault(content, dataclasses.replace(flags.get(content, AddedToken(content)), id=i))
            tokens |= {token.content: token for token in self.declared}
        normalizer = models.characters(self._proto, self._cleaning)
        return Finder([*tokens.values()], normalizer) if tokens else None

    def _around(
        self, texts: Sequence[str], special: bool, encode: Callable[[list[str], bool], list[Any]]
    ) -> list[list[tuple[_Part, Any]]]:
        """The parts of each text, with what `encode` gives for those that are no added tokens."""
        finder, encoded = self._finder(special), {}
        parts = [self._parts(finder, text) for text in texts]
        for prefix in (False, True):
            between = [p.text for of_text in parts for p in of_text if p.id is None and p.has_prefix is prefix]
            encoded[prefix] = iter(encode(between, prefix) if between else ())
        return [[(p, next(encoded[p.has_prefix]) if p.id is None else None) for p in of_text] for of_text in parts]

    def _parts(self, finder: Finder | None, text: str) -> list[_Part]:
        """Added tokens, and the texts between them."""
        parts, at = [], 0
        for match in [*(finder(text) if finder else ()), None]:
            end = len(text) if match is None else match.start
            if between := text[at:end]:
                starts = at == 0 and not between.startswith((" ", "▁"))
                parts.append(_Part(between, at, None, self.style.prefix != "first" or starts))
            if match is not None:
                parts.append(_Part(text[match.start : match.end], match.start, match.id, True))
                at = match.end
        return parts

    @cached_method
    def _gaps(self, prefix: bool) -> re.Pattern[str]:
        """Matches where a text lacks the space before a sentinel: the model's pieces start with it."""
        spec = self._proto.normalizer_spec
        before = r"\s" if spec.name.startswith("nmt_") else " "  # other rules keep tabs
        pieces = (self._proto.pieces[i].piece for i in self.vocabulary.sentinel_ids)
        names = "|".join(re.escape(piece[1:]) for piece in pieces if piece.startswith("▁"))
        at_start = "" if prefix and spec.add_dummy_prefix else "^|"  # where the model puts no space itself
        return re.compile(f"(?:{at_start}(?<=[^{before}]))(?={names or '(?!)'})")

    def _encode_plain(self, texts: list[str], prefix: bool) -> list[list[int]]:
        if self._cleaning is not None:
            texts = [self._cleaning.normalize_str(text) for text in texts]
        texts = [self._gaps(prefix).sub(" ", text) if _SENTINEL in text else text for text in texts]
        return (self._sp if prefix else self._bare).encode(texts, num_threads=1)

    @functools.cached_property
    def _bare(self) -> Any:
        """The model that puts no space before a text."""
        proto = type(self._proto)()
        proto.CopyFrom(self._proto)
        proto.normalizer_spec.add_dummy_prefix = False
        return models.processor(proto, self.path or "tokenizer")

    def _with_offsets(self, texts: list[str], prefix: bool) -> list[tuple[list[int], np.ndarray]]:
        cleaned = [_spaced(*_cleaned(text, self._cleaning), self._gaps(prefix)) for text in texts]
        model = self._sp if prefix else self._bare
        protos = model.encode([text for text, _ in cleaned], out_type="serialized_proto", num_threads=1)
        encodings = []
        for (text, origin), proto in zip(cleaned, protos):
            pieces = sentencepiece_pb2.SentencePieceText.FromString(proto).pieces
            spans = _characters(text, np.array([(p.begin, p.end) for p in pieces], np.int64).reshape(-1, 2))
            spans = _shared(spans, [p.piece for p in pieces], len(text))
            encodings.append(([p.id for p in pieces], spans if origin is None else _through(spans, origin)))
        return encodings

    def decode(self, ids: Iterable[int]) -> str:
        return self._showing.decode(self._shown(ids))

    @functools.cached_property
    def _showing(self) -> Any:
        """The model that shows the mask in a text; it is a control symbol otherwise, which stands for no text."""
        mask = self.vocabulary.mask
        if mask is None or not self._sp.is_control(mask):
            return self._sp
        proto = type(self._proto)()
        proto.CopyFrom(self._proto)
        proto.pieces[mask].type = proto.SentencePiece.USER_DEFINED
        return models.processor(proto, self.path or "tokenizer")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        pieces = [self._sp.id_to_piece(int(i)) if 0 <= i < self.vocabulary.size else f"<{i}>" for i in ids]
        return [p.removeprefix("▁") if p.startswith("▁<extra_id_") else p for p in pieces]

    def _spelled(self, i: int) -> bytes | None:
        return scripts.fallback_byte(self._sp.id_to_piece(i)) if self._sp.is_byte(i) else None

    @cached_method
    def _written(self) -> dict[str, int]:
        control = [*filter(self._sp.is_control, range(self.vocabulary.size)), self._sp.unk_id()]
        added_ids = dict(self.vocabulary.added)
        return super()._written() | {self._sp.id_to_piece(i): i for i in control} | added_ids

    def resolved(self) -> dict[str, Any]:
        legacy = {"legacy": self.style.prefix == "every"} if self.style.name == "llama" else {}
        return super().resolved() | legacy

    def save(self, directory: str | Path) -> None:
        style = self.style
        settings = {"extra_ids": self.appended, vocabulary_files.STYLE: style.name, **self._settings()}
        if style.cleans:
            settings["keep_accents"] = style.keeps_accents
        if self.declared:
            settings[declared.DECODER] = {str(token.id): token.tree() for token in self.declared}
        # Not T5's template without sentinels: its class appends EOS to every text, a decoder's prompt too.
        template = "" if style == PLAIN and not self.vocabulary.sentinels else style.template
        settings |= self.resolved()
        if style.name == "llama":
            settings |= {"add_prefix_space": False} if style.prefix == "none" else {}
            if self.carried.get("add_bos_token") and self.vocabulary.bos is not None:
                template = f"{self.tokens([self.vocabulary.bos])[0]} $A"
        # PreTrainedTokenizerFast takes all from tokenizer.json.
        has_class = template == style.template and self._has_its_class()
        name = style.tokenizer_class if has_class else "PreTrainedTokenizerFast"
        tokens = [*self.declared, *(AddedToken(token, special=True) for token in self.added)]
        rust = models.to_rust(
            self._proto, self._sp.unk_id(), self._cleaning, template, tokens, first_only=style.prefix == "first"
        )
        # Written always: other families' classes do not look for the model, and T5's misses symbols kept whole in it.
        files: dict[str, str | bytes] = {style.file: self._model, "tokenizer.json": rust.to_str()}
        self._write(directory, files, name, settings)
        self.path = str(Path(directory) / style.file)

    def _has_its_class(self) -> bool:
        """Whether the class of `transformers` gives our ids: each has its steps and the unknown id in its code."""
        named = {piece.piece for piece in self._proto.pieces}
        return (
            models.is_standard(self._proto)
            and self._sp.unk_id() == self.style.unk
            and named >= {"<unk>", "<pad>", *self.style.template.split()} - {"$A"}
            and not (self.style.name == "xlnet" and self.style.keeps_accents)
        )

    @property
    def text_version(self) -> int:
        return 2 if self.vocabulary.sentinels else 1

    @property
    def label_version(self) -> int:
        return 2

    def digest(self) -> str:
        rules: list[Any] = [(self.style.lowercase, self.style.keeps_accents)] if self._cleaning is not None else []
        rules += [self.declared] if self.declared else []
        rules += [self.style.prefix] if self.style.prefix != "every" else []
        return vocabulary_files.digest_of(
            self._proto.SerializeToString(deterministic=True) + "".join(map(repr, rules)).encode()
        )


def _characters(text: str, spans_Nx2: np.ndarray) -> np.ndarray:
    """Spans of bytes as spans of characters: those of which a span has a byte."""
    raw = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    starts = np.concatenate([[0], np.cumsum((raw & 0xC0) != 0x80)])  # characters that begin before each byte
    begin, end = spans_Nx2.T
    within = np.append((raw & 0xC0) == 0x80, False)
    return np.stack([starts[begin] - within[begin], starts[end]], -1)


def _shared(spans_Nx2: np.ndarray, pieces: Sequence[str], size: int) -> np.ndarray:
    """Spans in which each part of a character has it: SentencePiece gives it to the last part alone, be they its bytes
    or the "1⁄2" of "½"."""
    start, end = spans_Nx2.T
    is_part = (start == end) & np.array([piece != "▁" for piece in pieces], bool)  # the model's space is no part
    return np.stack([start, np.where(is_part, np.minimum(start + 1, size), end)], -1)


def _cleaned(text: str, cleaning: Any) -> tuple[str, np.ndarray | None]:
    """A cleaned text, and for each of its characters (start, end) in the text that was given: [characters, 2]; None
    where every character has its own place."""
    if cleaning is None:
        return text, None
    if text.isascii() and "``" not in text and "''" not in text:  # at most case is folded
        return cleaning.normalize_str(text), None
    parts = PreTokenizedString(text)
    parts.normalize(cleaning.normalize)
    parts.split(lambda _, part: part.split(Regex("(?m)."), "isolated"))
    splits = parts.get_splits("original", "char")
    return "".join(part for part, _, _ in splits), np.array([span for _, span, _ in splits], np.int64).reshape(-1, 2)


def _spaced(text: str, origin: np.ndarray | None, gaps: re.Pattern[str]) -> tuple[str, np.ndarray | None]:
    """As `_cleaned`, with a space wherever `gaps` matches; it stands for no character."""
    at = [match.start() for match in gaps.finditer(text)] if _SENTINEL in text else []
    if not at:
        return text, origin
    if origin is None:
        origin = np.arange(len(text))[:, None] + np.array([0, 1])
    return gaps.sub(" ", text), np.insert(origin, at, origin[at, :1], axis=0)


def _through(spans_Nx2: np.ndarray, origin_Cx2: np.ndarray) -> np.ndarray:
    """Spans of a cleaned text's characters as spans of the text that was given."""
    last = origin_Cx2[-1:, 1] if len(origin_Cx2) else np.zeros(1, np.int64)
    begin, end = spans_Nx2.T
    starts = np.append(origin_Cx2[:, 0], last)[begin]
    ends = np.append(origin_Cx2[:, 1], last)[np.maximum(end - 1, 0)]
    return np.stack([starts, np.where(end > begin, ends, starts)], -1)


def _sentences(texts: Sequence[str]) -> Iterator[str]:
    """Lines, the longest cut at a space: SentencePiece leaves out sentences longer than its limit."""
    for text in texts:
        for line in text.splitlines():
            while line:
                cut = line.rfind(" ", 0, 4096) if len(line) > 4096 else -1
                head, line = (line[:cut], line[cut + 1 :]) if cut > 0 else (line[:4096], line[4096:])
                yield head


def _sentinels(config: TokenizerConfig) -> int:
    return DEFAULT_EXTRA_IDS if config.extra_ids is None else config.extra_ids
