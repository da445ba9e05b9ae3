"""A SentencePiece model: its protobuf, what is added to it, and the same ids by `tokenizers` (Rust), in a
tokenizer.json, which Hugging Face's classes read."""

from __future__ import annotations

import copyreg
import re
from collections.abc import Sequence
from typing import Any

import sentencepiece
import tokenizers as library
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from jaxpt.data.tokenizers.added_tokens import AddedToken
from jaxpt.data.tokenizers.sentencepiece_styles import Style
from jaxpt.errors import UserError

_SYMBOL_SCORE = 13 / 128
"""SentencePiece's score of a user-defined symbol, for each character but the first, whatever its model says. It is 0.1
there; sums of this number are exact, so that equal ways stay equal."""
_STAND_INS = 0x10F000
"""The first of some characters for private use: they stand for symbols while a text is normalized."""


def _from_bytes(model: bytes) -> Any:
    return sentencepiece_model_pb2.ModelProto.FromString(model)


# The class says that it is of a module that is not there, so that pickle cannot send it to other processes by name.
copyreg.pickle(sentencepiece_model_pb2.ModelProto, lambda proto: (_from_bytes, (proto.SerializeToString(),)))


def parsed(model: bytes, name: str) -> Any:
    """The model's protobuf.

    Raises:
      UserError: it is none, or the end of one is missing: all pieces come before the options.
    """
    try:
        proto = _from_bytes(model)
    except DecodeError:
        raise UserError(f"{name}: not a SentencePiece model") from None
    if not proto.pieces or not proto.HasField("trainer_spec") or not proto.HasField("normalizer_spec"):
        raise UserError(f"{name}: truncated SentencePiece model: {len(proto.pieces)} pieces, options are missing")
    return proto


def ids(proto: Any) -> dict[str, int]:
    """The id of each piece; sentinels are written as in running text."""
    return {p.piece.removeprefix("▁") if "<extra_id_" in p.piece else p.piece: i for i, p in enumerate(proto.pieces)}


def processor(proto: Any, name: str) -> Any:
    """SentencePiece's own program of a model.

    Raises:
      UserError: it takes it for damaged.
    """
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    except RuntimeError:
        raise UserError(f"{name}: not a SentencePiece model") from None


def extend(proto: Any, style: Style, extra_ids: int) -> None:
    """Puts into a model what an architecture has around it."""
    piece = proto.SentencePiece
    if style.first:
        pieces = list(proto.pieces)[3:]
        del proto.pieces[:]
        for name in style.first:
            proto.pieces.add(piece=name, type=piece.UNKNOWN if name == "<unk>" else piece.CONTROL)
        proto.pieces.extend(pieces)
    for name in style.last:
        proto.pieces.add(piece=name, type=piece.CONTROL)
    # Sentinel 0 is the last id. The pieces start with a space, as a sentinel in running text does.
    for i in reversed(range(extra_ids)):
        proto.pieces.add(piece=f"▁<extra_id_{i}>", score=0.0, type=piece.USER_DEFINED)


def add(proto: Any, tokens: Sequence[str]) -> None:
    """Puts tokens behind a model's pieces that its own search does not find."""
    known = ids(proto) if tokens else {}
    for name in dict.fromkeys(tokens):
        if name not in known:
            proto.pieces.add(piece=name, score=0.0, type=proto.SentencePiece.UNUSED)


def unknown_option(proto: Any) -> str | None:
    """An option of a model that a tokenizer.json cannot carry, None where there is none."""
    spec = proto.trainer_spec
    if spec.model_type not in (spec.UNIGRAM, spec.BPE):
        return f"model_type {spec.ModelType.Name(spec.model_type).lower()}"
    if spec.treat_whitespace_as_suffix:
        return "treat_whitespace_as_suffix"
    return None if proto.normalizer_spec.escape_whitespaces else "escape_whitespaces false"


def is_standard(proto: Any) -> bool:
    """Whether the options are those that T5's class and its like have written into their code."""
    spec, normalizer = proto.trainer_spec, proto.normalizer_spec
    spaces = normalizer.add_dummy_prefix and normalizer.remove_extra_whitespaces and spec.split_by_whitespace
    # The "nmt_" rules make every kind of white space a space; others leave tabs to the model.
    plain = spec.model_type == spec.UNIGRAM and not spec.byte_fallback and normalizer.name.startswith("nmt_")
    return bool(spaces and plain and not _protected(proto))


def to_rust(
    proto: Any,
    unk: int,
    cleaning: Any = None,
    template: str = "",
    added: Sequence[AddedToken] = (),
    first_only: bool = False,
) -> Any:
    """The tokenizer of a model.

    Args:
      proto: the model with all that was added to it.
      unk: the id of unknown pieces.
      cleaning: a step before the model's own normalizer.
      template: what is put around a text, such as "[CLS] $A [SEP]".
      added: tokens that are found before the model reads a text; those that are pieces of type UNUSED are the model's
        last.
      first_only: put a space before the first text between such tokens only, and only where it has none.

    Returns:
      A `tokenizers.Tokenizer`.
    """
    new = {p.piece for p in proto.pieces if p.type == p.UNUSED} & {token.content for token in added}
    pieces = [re.sub("^▁(?=<extra_id_)", "", p.piece) for p in proto.pieces if p.piece not in new]
    rust = library.Tokenizer(_model(proto, pieces, unk))
    scheme = "never" if not proto.normalizer_spec.add_dummy_prefix else "first" if first_only else "always"
    rust.normalizer = _normalizer(proto, cleaning, scheme)
    # Not in the normalizer: a token that is looked for in the normalized text would be one with a space before it.
    rust.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    symbols = [p.piece for p in proto.pieces if p.type == p.USER_DEFINED and not p.piece.startswith("▁<extra_id_")]
    if symbols and proto.trainer_spec.model_type == proto.trainer_spec.BPE:  # no merge leads to these
        longest_first = "|".join(re.escape(symbol) for symbol in sorted(symbols, key=len, reverse=True))
        split = pre_tokenizers.Split(Regex(longest_first), "isolated")
        rust.pre_tokenizer = pre_tokenizers.Sequence([rust.pre_tokenizer, split])
    strip = [decoders.Strip(" ", 1, 0)] * proto.normalizer_spec.add_dummy_prefix
    rust.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    special = [name for name, p in zip(pieces, proto.pieces) if p.type in (p.UNKNOWN, p.CONTROL)]
    sentinels = [name for name in pieces if re.fullmatch(r"<extra_id_\d+>", name)]
    tokens = {name: library.AddedToken(name, normalized=False, special=True) for name in [*special, *sentinels]}
    tokens |= {token.content: library.AddedToken(**token.tree()) for token in added}
    for token in tokens.values():  # in their order, which gives the ids
        (rust.add_special_tokens if token.special else rust.add_tokens)([token])
    around = {name: rust.token_to_id(name) for name in template.split() if name != "$A"}
    if around and None not in around.values():
        rust.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(around.items()))
    return rust


def _model(proto: Any, pieces: Sequence[str], unk: int) -> Any:
    spec = proto.trainer_spec
    if spec.model_type == spec.UNIGRAM:
        scores = [_SYMBOL_SCORE * (len(p.piece) - 1) if p.type == p.USER_DEFINED else p.score for p in proto.pieces]
        return models.Unigram(list(zip(pieces, scores)), unk_id=unk, byte_fallback=spec.byte_fallback)
    symbols = any(p.type == p.USER_DEFINED for p in proto.pieces)
    return models.BPE(
        {name: i for i, name in enumerate(pieces)}, _merges(proto), unk_token=pieces[unk], fuse_unk=True,
        byte_fallback=spec.byte_fallback, ignore_merges=symbols,
    )  # fmt: skip


def _merges(proto: Any) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, that of the best score first, as SentencePiece merges them."""
    scores = {p.piece: p.score for p in proto.pieces if p.type == p.NORMAL}
    best_first = sorted(scores, key=lambda piece: -scores[piece])
    cuts = ((piece[:at], piece[at:]) for piece in best_first for at in range(1, len(piece)))
    return [(left, right) for left, right in cuts if left in scores and right in scores]


def characters(proto: Any, cleaning: Any) -> Any:
    """The step that changes single characters; None where there is none.

    Args:
      proto: the model.
      cleaning: a step before it, or None.
    """
    steps = _character_steps(proto, cleaning)
    return normalizers.Sequence(steps) if steps else None


def _character_steps(proto: Any, cleaning: Any) -> list[Any]:
    charsmap = proto.normalizer_spec.precompiled_charsmap
    steps = [*filter(None, [cleaning])]
    if not charsmap:
        return steps
    pairs = [(symbol, chr(_STAND_INS + n)) for n, symbol in enumerate(_protected(proto))]
    hide = [normalizers.Replace(symbol, stand_in) for symbol, stand_in in pairs]
    show = [normalizers.Replace(stand_in, symbol) for symbol, stand_in in pairs]
    return [*steps, *hide, normalizers.Precompiled(charsmap), *show]


def _protected(proto: Any) -> list[str]:
    """User-defined symbols that the model's normalizer would change, the longest first: it leaves them as they are."""
    charsmap = proto.normalizer_spec.precompiled_charsmap
    symbols = [p.piece for p in proto.pieces if p.type == p.USER_DEFINED and not p.piece.startswith("▁<extra_id_")]
    if not (charsmap and symbols):
        return []
    normalize = normalizers.Precompiled(charsmap).normalize_str
    return sorted((symbol for symbol in symbols if normalize(symbol) != symbol), key=len, reverse=True)


def _normalizer(proto: Any, cleaning: Any, scheme: str) -> Any:
    spec, steps = proto.normalizer_spec, _character_steps(proto, cleaning)
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +|[ ▁]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if scheme == "always":  # also where a text has a space itself
        steps.append(normalizers.Replace(Regex(r"\A[ ▁]"), "▁▁"))
    return normalizers.Sequence(steps)
