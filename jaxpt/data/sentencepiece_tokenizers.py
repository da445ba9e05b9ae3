"""SentencePiece models, and what each architecture does around its own: cleaning before, further ids behind."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxpt.data.tokenizers import DEFAULT_EXTRA_IDS, Tokenizer, digest_of, settings_file, write_files
from jaxpt.errors import UserError
from jaxpt.objectives.base import Vocabulary


@dataclasses.dataclass(frozen=True)
class Style:
    """What an architecture does around its SentencePiece model.

    T5 appends sentinels. ALBERT and XLNet make ``quotes'' plain and strip accents before they tokenize; ALBERT folds
    case. XLM-R has fairseq's ids: `<s> <pad> </s> <unk>` first, whatever the model has in their place, `<mask>` last.
    """

    tokenizer_class: str = "T5Tokenizer"
    file: str = "spiece.model"
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
        return self.tokenizer_class == "T5Tokenizer"

    def cleaning(self) -> Any:
        """The steps before the model's own normalizer, those of `transformers`."""
        from tokenizers import normalizers

        accents = [] if self.keeps_accents else [normalizers.NFKD(), normalizers.StripAccents()]
        quotes = [normalizers.Replace(mark, '"') for mark in ("``", "''")]
        return normalizers.Sequence([*quotes, *accents, *[normalizers.Lowercase()] * self.lowercase])


PLAIN = Style()
STYLES = {
    "albert": Style("AlbertTokenizer", cleans=True, lowercase=True),
    "xlnet": Style("XLNetTokenizer", cleans=True),
    "xlmroberta": Style(
        "XLMRobertaTokenizer", "sentencepiece.bpe.model", first=("<s>", "<pad>", "</s>", "<unk>"), last=("<mask>",)
    ),
    "llama": Style("LlamaTokenizer", "tokenizer.model"),
}


def style_of(file: Path, settings: dict[str, Any], model_type: str | None) -> Style:
    """The style of a model's file.

    Args:
      file: its path; the name `sentencepiece.bpe.model` is XLM-R's alone.
      settings: tokenizer_config.json beside it.
      model_type: config.json's, where there is one.

    Returns:
      The style; `PLAIN` where nothing says otherwise.

    Raises:
      UserError: mBART's, whose language codes stand between the pieces and `<mask>`.
    """
    name = re.sub("Tokenizer(Fast)?$", "", settings.get("tokenizer_class") or model_type or "")
    name = name.lower().replace("-", "").replace("_", "")
    if name.startswith("mbart"):
        raise UserError(f"{file}: mBART's language codes are not known here; wants its tokenizer.json")
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

    def __init__(
        self, model: bytes, extra_ids: int = DEFAULT_EXTRA_IDS, path: str | None = None, style: Style = PLAIN
    ) -> None:
        """Takes a serialized model; `path` is the file it came from.

        Raises:
          UserError: not a SentencePiece model.
        """
        import sentencepiece
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2

        self.path, self.style, self._model = path, style, model
        try:
            proto = sentencepiece_model_pb2.ModelProto.FromString(model)
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
            self._sp = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        except (DecodeError, RuntimeError):
            raise UserError(f"{path or 'tokenizer'}: not a SentencePiece model") from None
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

        fairseq = bool(style.first)  # <s> and </s> stand for [CLS] and [SEP]
        self.vocabulary = Vocabulary(
            size=self._sp.get_piece_size(), pad=max(self._sp.pad_id(), 0), unk=valid(self._sp.unk_id()),
            bos=valid(self._sp.bos_id()), eos=valid(self._sp.eos_id()),
            cls=named(*["<s>"] * fairseq, "[CLS]", "<cls>"), sep=named(*["</s>"] * fairseq, "[SEP]", "<sep>"),
            mask=named(*self.style.last[-1:], "[MASK]", "<mask>"), sentinels=extra_ids,
        )  # fmt: skip

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if self._cleaning is not None:
            texts = [self._cleaning.normalize_str(text) for text in texts]
        return self._sp.encode(list(texts), num_threads=1)

    def decode(self, ids: Iterable[int]) -> str:
        return self._sp.decode(self._shown(ids))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        pieces = [self._sp.id_to_piece(int(i)) if 0 <= i < self.vocabulary.size else f"<{i}>" for i in ids]
        return [p.removeprefix("▁") if p.startswith("▁<extra_id_") else p for p in pieces]

    def save(self, directory: str | Path) -> None:
        settings: dict[str, Any] = {"extra_ids": self.vocabulary.sentinels, "do_lower_case": self.lowercase}
        if self.style.cleans:
            settings["keep_accents"] = self.style.keeps_accents
        name = settings_file(self.style.tokenizer_class, settings)
        files: dict[str, str | bytes] = {self.style.file: self._model, "tokenizer_config.json": name}
        if self.style.cleans:
            # From the model alone, `transformers` would put a space behind each symbol that the model keeps whole.
            files["tokenizer.json"] = self._rust()
        write_files(directory, files)
        self.path = str(Path(directory) / self.style.file)

    def _rust(self) -> str:
        """The same as a tokenizer.json."""
        from sentencepiece import sentencepiece_model_pb2
        from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
        from tokenizers import Tokenizer as Rust

        proto = sentencepiece_model_pb2.ModelProto.FromString(self._full)
        rust = Rust(models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=self.vocabulary.unk))
        rust.normalizer = normalizers.Sequence(
            [
                self._cleaning,
                normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
                normalizers.Replace(Regex(" {2,}"), " "),
            ]
        )
        rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
        rust.decoder = decoders.Metaspace()
        special = (proto.SentencePiece.UNKNOWN, proto.SentencePiece.CONTROL)
        rust.add_special_tokens([p.piece for p in proto.pieces if p.type in special])
        return rust.to_str()

    def digest(self) -> str:
        if not self.style.cleans:
            return digest_of(self._full)
        return digest_of(self._full + repr((self.style.lowercase, self.style.keeps_accents)).encode())
