"""SentencePiece models, and what each architecture does around its own: cleaning before, further ids behind."""

from __future__ import annotations

import dataclasses
import functools
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import scripts, sentencepiece_rust, vocabulary_files
from jaxpt.data.tokenizers.base import DEFAULT_EXTRA_IDS, SPECIALS, Tokenizer, any_of, behind
from jaxpt.errors import UserError


@dataclasses.dataclass(frozen=True)
class Style:
    """What an architecture does around its SentencePiece model.

    T5 appends sentinels. ALBERT and XLNet make ``quotes'' plain and strip accents before they tokenize; ALBERT folds
    case. XLM-R has fairseq's ids: `<s> <pad> </s> <unk>` first, whatever the model has in their place, `<mask>` last.
    DeBERTa v2 and v3 have `[MASK]` last.
    """

    name: str = "t5"
    tokenizer_class: str = "T5Tokenizer"
    file: str = "spiece.model"
    unk: int | None = 2
    """The id that this class of `transformers` gives to unknown pieces, whatever the model says; None: it is not used,
    as it has other steps than the model."""
    template: str = "$A </s>"
    """What the class puts around a text; it needs these tokens."""
    cleans: bool = False
    lowercase: bool = False
    keeps_accents: bool = False
    first: tuple[str, ...] = ()
    """Instead of the model's first three pieces."""
    last: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the ids are those of the model, sentinels aside."""
        return not (self.cleans or self.first or self.last)

    @property
    def takes_sentinels(self) -> bool:
        """Whether sentinels are added where nobody says how many."""
        return self.name == "t5"

    def cleaning(self) -> Any:
        """The steps before the model's own normalizer, those of `transformers`."""
        from tokenizers import normalizers

        accents = [] if self.keeps_accents else [normalizers.NFKD(), normalizers.StripAccents()]
        quotes = [normalizers.Replace(mark, '"') for mark in ("``", "''")]
        return normalizers.Sequence([*quotes, *accents, *[normalizers.Lowercase()] * self.lowercase])


PLAIN = Style()
STYLES = {
    "albert": Style("albert", "AlbertTokenizer", unk=1, template="[CLS] $A [SEP]", cleans=True, lowercase=True),
    "xlnet": Style("xlnet", "XLNetTokenizer", unk=0, template="$A <sep> <cls>", cleans=True),
    "xlmroberta": Style(
        "xlmroberta", "XLMRobertaTokenizer", "sentencepiece.bpe.model", unk=3, template="<s> $A </s>",
        first=("<s>", "<pad>", "</s>", "<unk>"), last=("<mask>",),
    ),
    "debertav2": Style(
        "debertav2", "DebertaV2Tokenizer", "spm.model", unk=3, template="[CLS] $A [SEP]", last=("[MASK]",)
    ),
    "llama": Style("llama", "LlamaTokenizer", "tokenizer.model", unk=None, template=""),
}  # fmt: skip
# Classes that take the model's ids as they are, and what `transformers` says where it names no class of its own.
_PLAIN = {
    "", "t5", "mt5", "umt5", "codellama", "bigbird", "rembert", "reformer", "gemma", "pretrained", "tokenizersbackend",
}  # fmt: skip
_XLM_R_STARTS = ["<unk>", "<s>", "</s>"]


def style_of(file: Path, settings: dict[str, Any], model_type: str | None) -> Style:
    """The style of a model's file.

    Args:
      file: its path; the name `sentencepiece.bpe.model` is XLM-R's alone.
      settings: tokenizer_config.json beside it.
      model_type: config.json's, where there is one.

    Returns:
      The style; `PLAIN` where nothing says otherwise.

    Raises:
      UserError: mBART's, whose language codes stand between the pieces and `<mask>`, or a class that is not known.
    """
    said = settings.get("tokenizer_class")
    name = re.sub("Tokenizer(Fast)?$", "", settings.get("sentencepiece_style") or said or model_type or "")
    name = name.lower().replace("-", "").replace("_", "")
    if name.startswith("mbart"):
        raise UserError(f"{file}: mBART's language codes are not known here; wants its tokenizer.json")
    if said and name not in STYLES.keys() | _PLAIN:
        raise UserError(f"{file}: the ids of a {said} may be others than the model's; wants its tokenizer.json")
    style = STYLES.get("xlmroberta" if file.name == STYLES["xlmroberta"].file else name, PLAIN)
    if style.cleans:
        accents = bool(settings.get("keep_accents", False))
        style = dataclasses.replace(
            style, lowercase=bool(settings.get("do_lower_case", style.lowercase)), keeps_accents=accents
        )
    return style


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
        import sentencepiece

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
        model_type = vocabulary_files.read_settings(files[0].parent, "config.json").get("model_type")
        style = style_of(files[0], settings, model_type)
        wanted = settings.get("extra_ids") if extra_ids is None else extra_ids
        sentinels = (DEFAULT_EXTRA_IDS if style.takes_sentinels else 0) if wanted is None else int(wanted)
        tokenizer = cls(files[0].read_bytes(), sentinels, str(files[0]), style)
        if wanted is None and sentinels:
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
    ) -> None:
        """Takes a serialized model; `path` is the file it came from, `added` are tokens of `with_tokens`.

        Raises:
          UserError: not a SentencePiece model.
        """
        import sentencepiece

        self.path, self.style, self._model, self.added = path, style, model, tuple(added)
        name = path or "tokenizer"
        proto = _parsed(model, name)
        if option := sentencepiece_rust.unknown_option(proto):
            raise UserError(f"{name}: a SentencePiece model of {option} is not known; wants unigram or bpe")
        if style.first and (starts := [p.piece for p in proto.pieces[:3]]) != _XLM_R_STARTS:
            raise UserError(f"{name}: wants to start with {_XLM_R_STARTS} to have XLM-R's ids, starts with {starts}")
        _extend(proto, style, extra_ids, self.added)
        try:
            self._sp = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        except RuntimeError:
            raise UserError(f"{name}: not a SentencePiece model") from None
        if proto.trainer_spec.model_type == proto.trainer_spec.BPE and style == PLAIN and not extra_ids:
            self.style = STYLES["llama"]
        self._cleaning = style.cleaning() if style.cleans else None
        self.lowercase = style.lowercase or proto.normalizer_spec.name.endswith("_cf")
        self._full = proto.SerializeToString(deterministic=True)

        def named(*spellings: str) -> int | None:
            ids = (self._sp.piece_to_id(piece) for piece in spellings)
            return next((i for i in ids if i != self._sp.unk_id()), None)

        def valid(i: int) -> int | None:
            return i if i >= 0 else None

        self._pad = valid(self._sp.pad_id())
        fairseq = bool(style.first)  # <s> and </s> stand for [CLS] and [SEP]
        ids = _ids(proto) if self.added else {}
        self._added = {token: ids[token] for token in self.added}
        size = self._sp.get_piece_size()
        self.vocabulary = Vocabulary(
            size=size, added=tuple(self._added.items()), behind=behind(size, self._added),
            pad=self._pad or 0, unk=valid(self._sp.unk_id()),
            bos=valid(self._sp.bos_id()), eos=valid(self._sp.eos_id()), eod=named("<eod>"),
            cls=named(*["<s>"] * fairseq, "[CLS]", "<cls>"), sep=named(*["</s>"] * fairseq, "[SEP]", "<sep>"),
            mask=named(*self.style.last[-1:], "[MASK]", "<mask>"), sentinels=extra_ids,
        )  # fmt: skip

    def with_tokens(self, tokens: Sequence[str]) -> Tokenizer:
        """As `Tokenizer.with_tokens`; the text between two of them is tokenized by itself, as `tokenizers` does."""
        added = tuple(dict.fromkeys((*self.added, *tokens)))
        return SentencePieceTokenizer(self._model, self.vocabulary.sentinels, self.path, self.style, added)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if not self._added:
            return self._encode_plain(texts)
        parts = [self._parts(text) for text in texts]
        ids = iter(self._encode_plain([part for of_text in parts for part in of_text if part not in self._added]))
        return [
            [i for part in of_text for i in ([self._added[part]] if part in self._added else next(ids))]
            for of_text in parts
        ]

    def _parts(self, text: str) -> list[str]:
        """Added tokens, and the texts between them."""
        return [part for part in re.split(any_of(self._added), text) if part]

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        if self._cleaning is not None:
            texts = [self._cleaning.normalize_str(text) for text in texts]
        return self._sp.encode(list(texts), num_threads=1)

    def _encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        if not self._added:
            return self._with_offsets(texts)
        found = []
        for text in texts:
            ids, spans, at = [], [np.zeros((0, 2), np.int64)], 0
            for part in self._parts(text):
                own = self._added.get(part)
                known = self._with_offsets([part])[0] if own is None else ([own], np.array([(0, len(part))]))
                ids += known[0]
                spans.append(known[1] + at)
                at += len(part)
            found.append((ids, np.concatenate(spans)))
        return found

    def _with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        from sentencepiece import sentencepiece_pb2

        cleaned = [_cleaned(text, self._cleaning) for text in texts]
        protos = self._sp.encode([text for text, _ in cleaned], out_type="serialized_proto", num_threads=1)
        found = []
        for (text, origin), proto in zip(cleaned, protos):
            pieces = sentencepiece_pb2.SentencePieceText.FromString(proto).pieces
            spans = _characters(text, np.array([(p.begin, p.end) for p in pieces], np.int64).reshape(-1, 2))
            found.append(([p.id for p in pieces], spans if origin is None else _through(spans, origin)))
        return found

    def decode(self, ids: Iterable[int]) -> str:
        return self._sp.decode(self._shown(ids))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        pieces = [self._sp.id_to_piece(int(i)) if 0 <= i < self.vocabulary.size else f"<{i}>" for i in ids]
        return [p.removeprefix("▁") if p.startswith("▁<extra_id_") else p for p in pieces]

    def _spelled(self, i: int) -> bytes | None:
        return scripts.fallback_byte(self._sp.id_to_piece(i)) if self._sp.is_byte(i) else None

    @functools.cache  # noqa: B019 (a tokenizer lives as long as the program)
    def _written(self) -> dict[str, int]:
        control = filter(self._sp.is_control, range(self.vocabulary.size))
        return super()._written() | {self._sp.id_to_piece(i): i for i in control} | self._added

    def save(self, directory: str | Path) -> None:
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(self._full)
        settings: dict[str, Any] = {"extra_ids": self.vocabulary.sentinels, "do_lower_case": self.lowercase}
        if self.style.cleans:
            settings["keep_accents"] = self.style.keeps_accents
        settings |= {vocabulary_files.ADDED: list(self.added)} if self.added else {}
        ids = {part: getattr(self.vocabulary, part) for part in SPECIALS} | {"pad": self._pad}
        settings |= {f"{part}_token": proto.pieces[i].piece for part, i in ids.items() if i is not None}
        name, template = self.style.tokenizer_class, self.style.template
        if self.style == PLAIN and not self.vocabulary.sentinels:
            template = ""  # not of a T5, whose class appends EOS to every text, a decoder's prompt too
        if template != self.style.template or not self._has_its_class(proto):
            name = "PreTrainedTokenizerFast"  # takes all from tokenizer.json
            settings |= {} if self.style == PLAIN else {"sentencepiece_style": self.style.name}
        rust = sentencepiece_rust.to_rust(proto, self._sp.unk_id(), self._cleaning, template, self.added)
        # Written always: other families' classes do not look for the model, and T5's misses symbols kept whole in it.
        files: dict[str, str | bytes] = {self.style.file: self._model, "tokenizer.json": rust.to_str()}
        files[vocabulary_files.SETTINGS] = vocabulary_files.settings_file(name, settings, self.chat_templates)
        vocabulary_files.write(directory, files)
        self.path = str(Path(directory) / self.style.file)

    def _has_its_class(self, proto: Any) -> bool:
        """Whether the class of `transformers` gives our ids: each has its steps and the unknown id in its code."""
        named = {piece.piece for piece in proto.pieces}
        return (
            sentencepiece_rust.is_standard(proto)
            and self._sp.unk_id() == self.style.unk
            and named >= {"<unk>", "<pad>", *self.style.template.split()} - {"$A"}
            and not (self.style.name == "xlnet" and self.style.keeps_accents)
        )

    def digest(self) -> str:
        if not self.style.cleans:
            return vocabulary_files.digest_of(self._full)
        return vocabulary_files.digest_of(self._full + repr((self.style.lowercase, self.style.keeps_accents)).encode())


def _characters(text: str, spans_Nx2: np.ndarray) -> np.ndarray:
    """Spans of bytes as spans of characters: those of which a span has a byte."""
    raw = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    starts = np.concatenate([[0], np.cumsum((raw & 0xC0) != 0x80)])  # characters that begin before each byte
    begin, end = spans_Nx2.T
    within = np.append((raw & 0xC0) == 0x80, False)
    return np.stack([starts[begin] - within[begin], starts[end]], -1)


def _cleaned(text: str, cleaning: Any) -> tuple[str, np.ndarray | None]:
    """A cleaned text, and for each of its characters (start, end) in the text that was given: [characters, 2]; None
    where every character has its own place."""
    from tokenizers import PreTokenizedString, Regex

    if cleaning is None:
        return text, None
    if text.isascii() and "``" not in text and "''" not in text:  # at most case is folded
        return cleaning.normalize_str(text), None
    parts = PreTokenizedString(text)
    parts.normalize(cleaning.normalize)
    parts.split(lambda _, part: part.split(Regex("(?m)."), "isolated"))
    found = parts.get_splits("original", "char")
    return "".join(part for part, _, _ in found), np.array([span for _, span, _ in found], np.int64).reshape(-1, 2)


def _through(spans_Nx2: np.ndarray, origin_Cx2: np.ndarray) -> np.ndarray:
    """Spans of a cleaned text's characters as spans of the text that was given."""
    last = origin_Cx2[-1:, 1] if len(origin_Cx2) else np.zeros(1, np.int64)
    begin, end = spans_Nx2.T
    starts = np.append(origin_Cx2[:, 0], last)[begin]
    ends = np.append(origin_Cx2[:, 1], last)[np.maximum(end - 1, 0)]
    return np.stack([starts, np.where(end > begin, ends, starts)], -1)


def _parsed(model: bytes, name: str) -> Any:
    """The model's protobuf.

    Raises:
      UserError: it is none, or the end of one is missing: all pieces come before the options.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    except DecodeError:
        raise UserError(f"{name}: not a SentencePiece model") from None
    if not proto.pieces or not proto.HasField("trainer_spec") or not proto.HasField("normalizer_spec"):
        raise UserError(f"{name}: truncated SentencePiece model: {len(proto.pieces)} pieces, options are missing")
    return proto


def _ids(proto: Any) -> dict[str, int]:
    """The id of each piece; sentinels are written as in running text."""
    return {p.piece.removeprefix("▁") if "<extra_id_" in p.piece else p.piece: i for i, p in enumerate(proto.pieces)}


def _extend(proto: Any, style: Style, extra_ids: int, added: Sequence[str]) -> None:
    """Puts into a model what an architecture has around it, and tokens that its own search does not find."""
    piece = proto.SentencePiece
    if style.first:
        kept = list(proto.pieces)[3:]
        del proto.pieces[:]
        for name in style.first:
            proto.pieces.add(piece=name, type=piece.UNKNOWN if name == "<unk>" else piece.CONTROL)
        proto.pieces.extend(kept)
    for name in style.last:
        proto.pieces.add(piece=name, type=piece.CONTROL)
    # Sentinel 0 is the last id. The pieces start with a space, as a sentinel in running text does.
    for i in reversed(range(extra_ids)):
        proto.pieces.add(piece=f"▁<extra_id_{i}>", score=0.0, type=piece.USER_DEFINED)
    known = _ids(proto) if added else {}
    for name in added:
        if name not in known:
            proto.pieces.add(piece=name, score=0.0, type=piece.UNUSED)


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
