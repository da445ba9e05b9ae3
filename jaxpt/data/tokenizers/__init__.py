"""Text to token ids and back: SentencePiece (T5, ALBERT, XLM-R), WordPiece (BERT) and byte-level BPE (GPT-2).

    kind           ids                                             trained by, run by
    sentencepiece  0 <pad>  1 </s>  2 <unk>  …  sentinels at the end   sentencepiece
    wordpiece      0 [PAD]  1 [UNK]  2 [CLS]  3 [SEP]  4 [MASK]  …     tokenizers (Rust)
    bpe            …  <|endoftext|> is the last                        tokenizers (Rust)

The ids are those of a vocabulary trained here; a published one keeps its own.

Training is deterministic. Nothing here needs TensorFlow: generation imports this module alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import rust_tokenizers, sentencepiece_tokenizers, training, vocabulary_files
from jaxpt.data.tokenizers.base import BERT_SPECIALS, DEFAULT_EXTRA_IDS, Tokenizer
from jaxpt.errors import UserError

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
      lowercase: whether it must fold case; for `vocab.txt` and `vocab.json` without `tokenizer_config.json`, whether
        to. By default what that file says; else a `vocab.txt` without upper-case letters folds (see `assumed`).
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
    found, files = vocabulary_files.find(Path(path), kind)
    vocabulary_files.verify(files[0].parent)
    if empty := next((file for file in files if not file.stat().st_size), None):
        raise UserError(f"{empty}: is empty; wants a {found or 'tokenizer'} file")
    try:
        tokenizer = _read(found, files, lowercase, extra_ids)
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
        size = tokenizer.vocabulary.size
        raise UserError(f"{path}: {size} token ids{extra}, but model.vocab_size is {max_size}; it wants {size} or more")
    if languages:
        ids = {piece: i for i, piece in enumerate(tokenizer.tokens(range(tokenizer.vocabulary.size)))}
        if missing := [name for name in languages if name not in ids]:
            raise UserError(f"{path}: no token {missing[0]!r} (data.language) in this vocabulary")
        tokenizer.vocabulary = dataclasses.replace(tokenizer.vocabulary, languages=tuple(ids[x] for x in languages))
    return tokenizer


def _read(kind: str | None, files: list[Path], lowercase: bool | None, extra_ids: int | None) -> Tokenizer:
    settings = vocabulary_files.read_settings(files[0].parent)
    if kind == "sentencepiece":
        model_type = vocabulary_files.read_settings(files[0].parent, "config.json").get("model_type")
        style = sentencepiece_tokenizers.style_of(files[0], settings, model_type)
        wanted = settings.get("extra_ids") if extra_ids is None else extra_ids
        sentinels = (DEFAULT_EXTRA_IDS if style.takes_sentinels else 0) if wanted is None else int(wanted)
        model = files[0].read_bytes()
        tokenizer = sentencepiece_tokenizers.SentencePieceTokenizer(model, sentinels, str(files[0]), style)
        if wanted is None and sentinels:
            beside = f"no {vocabulary_files.SETTINGS} says extra_ids"
            tokenizer.assumed = (
                f"{files[0]}: {beside}; assumed {sentinels} sentinels behind the model's pieces, as T5 has"
            )
        return tokenizer
    said = settings.get("do_lower_case", lowercase)
    if kind == "wordpiece":
        vocab = {line: i for i, line in enumerate(files[0].read_text("utf-8").removesuffix("\n").split("\n"))}
        if "[UNK]" not in vocab:
            raise UserError(f"{files[0]}: no [UNK] line; wants a WordPiece vocabulary, one token a line")
        uncased = _is_uncased(vocab)
        if uncased and said is False and "do_lower_case" not in settings:
            raise UserError(
                f"{files[0]}: holds no upper-case letter, data.tokenizer.lowercase is false; set it to true, or say "
                f'{{"do_lower_case": false}} in {vocabulary_files.SETTINGS} beside it'
            )
        tokenizer = rust_tokenizers.wordpiece(vocab, uncased if said is None else bool(said))
        if said is None:
            folds, has = ("folds case", "no") if uncased else ("keeps case", "an")
            tokenizer.assumed = (
                f"{files[0]}: no {vocabulary_files.SETTINGS} says do_lower_case; assumed that it {folds}, as it holds "
                f"{has} upper-case letter"
            )
        return tokenizer
    if kind == "bpe":
        lines = files[1].read_text("utf-8").split("\n")
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        return rust_tokenizers.bpe(json.loads(files[0].read_text("utf-8")), merges, bool(said))
    tokenizer = rust_tokenizers.read(files[0])
    if extra_ids is not None and tokenizer.kind == "sentencepiece" and tokenizer.vocabulary.sentinels != extra_ids:
        has = tokenizer.vocabulary.sentinels
        raise UserError(f"{files[0]}: has {has} sentinels, data.tokenizer.extra_ids is {extra_ids}")
    return tokenizer


def _is_uncased(vocab: Iterable[str]) -> bool:
    """Whether pieces hold letters that have case, and all in lower case; those in brackets are special tokens."""
    pieces = [piece for piece in vocab if not re.fullmatch(r"\[.*\]", piece)]
    return any(p != p.upper() for p in pieces) and all(p == p.lower() for p in pieces)


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
    of_kind = {"control_symbols": languages} if languages else {}
    tokenizer = getattr(training, config.kind)(kept, config.lowercase, vocab_size, _extra(config), **of_kind)
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
