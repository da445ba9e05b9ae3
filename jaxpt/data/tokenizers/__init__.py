"""Text to token ids and back: SentencePiece (T5, ALBERT, XLM-R), WordPiece (BERT) and byte-level BPE (GPT-2).

    kind           ids                                             trained by, run by
    sentencepiece  0 <pad>  1 </s>  2 <unk>  …  sentinels at the end   sentencepiece
    wordpiece      0 [PAD]  1 [UNK]  2 [CLS]  3 [SEP]  4 [MASK]  …     tokenizers (Rust)
    bpe            …  <|endoftext|> is the last                        tokenizers (Rust)

The ids are those of a vocabulary trained here; a published one keeps its own. Each kind is a module of this folder with
one subclass of `Tokenizer`; a dotted kind names anyone's own.

Training is deterministic. Nothing here needs TensorFlow: generation imports this module alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt.config import Config, TokenizerConfig
from jaxpt.config.kinds import resolve
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import declared, rust_tokenizers, vocabulary_files
from jaxpt.data.tokenizers.added_tokens import AddedToken
from jaxpt.data.tokenizers.base import SPECIALS, Tokenizer
from jaxpt.errors import UserError
from jaxpt.runtime import disk
from jaxpt.runtime.progress import Work, track

# ---- loading --------------------------------------------------------------------------------------------------------


def load(
    path: str | Path,
    kind: str | None = None,
    *,
    lowercase: bool | None = None,
    extra_ids: int | None = None,
    max_size: int | None = None,
    languages: Sequence[str] = (),
    add_tokens: Sequence[str] = (),
    model_dir: Path | None = None,
    pre_tokenizer: str | None = None,
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
      add_tokens: tokens to read besides; those that were saved with it are read in any case.
      model_dir: the model's directory, whose config.json counts where there is none beside the vocabulary.
      pre_tokenizer: what cuts a text into words, of `words` and `spelled_words`; by default what
        `tokenizer_config.json` says, else bert.

    Returns:
      The tokenizer.

    Raises:
      UserError: no such file, a damaged one, another kind or case than wanted, too many ids, or a language without a
        token.
    """
    file_kind, files = vocabulary_files.find(Path(path), kind)
    folder = files[0] if files[0].is_dir() else files[0].parent
    if empty := next((file for file in files if not file.stat().st_size), None):
        raise UserError(f"{empty}: is empty; wants a {file_kind or 'tokenizer'} file")
    try:
        declaration = declared.read(folder, model_dir)
        settings, is_ours = declaration.settings, file_kind in (None, "sentencepiece", "wordpiece", "bpe")
        options = declaration.effective if is_ours else dict(settings)
        options |= {"pre_tokenizer": pre_tokenizer} if pre_tokenizer else {}
        tokenizer = _read(file_kind, files, options, lowercase, extra_ids)
        added = [*settings.get(vocabulary_files.ADDED, ()), *add_tokens]
        if is_ours:
            tokenizer = _with_declared(tokenizer, declaration, files[0], added)
        elif added:
            tokenizer = add(tokenizer, added)
        tokenizer.folder, tokenizer.chat_templates = folder, vocabulary_files.read_chat_templates(folder)
    except UserError:
        raise
    except Exception as error:  # the Rust library raises bare Exceptions
        raise UserError(
            f"{files[0]}: damaged, or no {file_kind or 'tokenizer'} file ({str(error).splitlines()[0]})"
        ) from None
    if kind is not None and tokenizer.kind != kind:
        raise UserError(f"{files[0]}: holds a {tokenizer.kind} vocabulary, data.tokenizer.kind is {kind}")
    if lowercase is not None and tokenizer.lowercase != lowercase:
        now, expected = ("folds", "false") if tokenizer.lowercase else ("keeps", "true")
        raise UserError(f"{files[0]}: this vocabulary {now} case, data.tokenizer.lowercase is {expected}")
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


def _with_declared(
    tokenizer: Tokenizer, declaration: declared.Declared, file: Path, added: Sequence[str]
) -> Tokenizer:  # fmt: skip
    """The tokenizer with all that the files beside it say, and with `added` tokens, which they may name.

    Raises:
      UserError: an option that is not supported, or an added token that does not get its id.
    """
    declared.check_options(declaration, None if file.name == "tokenizer.json" else tokenizer.kind)
    lines = [tokenizer.assumed] if tokenizer.assumed else []
    try:
        tokenizer = tokenizer.with_declared(declaration.added)
    except UserError as error:
        raise UserError(f"{declaration.folder}: {error}") from None
    if added:
        tokenizer = tokenizer.with_tokens(tuple(dict.fromkeys(added)))
    specials, missing = _specials(tokenizer, declaration, file)
    lines += [
        f"{declaration.folder}: {part}_token {token} is not in the vocabulary; it has none" for part, token in missing
    ]
    if specials:
        tokenizer.name_specials(specials)
    elif file.suffix == ".json":
        names = [f"{part} {token.content}" for part, token in tokenizer.special_tokens().items() if part != "pad"]
        lines.append(f"{file}: no file names special tokens; taken by their usual names: {', '.join(names) or 'none'}")
    if declaration.flag("add_eos_token"):
        lines.append(f"{declaration.folder}: add_eos_token: the end of a text is put where the objective puts it")
    tokenizer.of_config = _of_config(declaration, specials) if file.suffix == ".json" else {}
    tokenizer.carried = declaration.carried
    tokenizer.assumed = "; ".join(lines) or None
    return tokenizer


def _specials(
    tokenizer: Tokenizer, declaration: declared.Declared, file: Path
) -> tuple[dict[str, AddedToken | None], list[tuple[str, str]]]:
    """Special tokens that the files or the class name, for `name_specials`; and (part, token) of those that files name
    and the vocabulary does not have."""
    of_class = {part: AddedToken(token, special=True) for part, token in declaration.specials_of_class.items()}
    named = dict(declaration.specials)
    for part, i in declaration.model_ids.items():
        if part not in {**named, **of_class} and (token := tokenizer.special_token(i)) is not None:
            named[part] = token
    if file.suffix == ".model":  # which says what it has itself
        named = {part: token for part, token in of_class.items() if getattr(tokenizer.vocabulary, part) is None} | named
    elif named or of_class:
        named = dict.fromkeys(SPECIALS) | of_class | named
    lacking = {part for part, token in named.items() if token is not None and tokenizer.token_id(token.content) is None}
    missing = [(part, named[part].content) for part in declaration.specials if part in lacking]
    return {part: None if part in lacking else token for part, token in named.items()}, missing


def _of_config(declaration: declared.Declared, specials: Mapping[str, AddedToken | None]) -> dict[str, Any]:
    """Keys of tokenizer_config.json that say what config.json says of a vocabulary."""
    parts = declaration.model_ids.keys() - declaration.specials.keys() - declaration.specials_of_class.keys()
    named = {f"{part}_token": token.content for part in sorted(parts) if (token := specials.get(part)) is not None}
    model_type = declaration.model_type
    return named | ({declared.MODEL_TYPE: model_type} if model_type in declared.WITHOUT_CLASS else {})


def _read(
    kind: str | None, files: list[Path], settings: dict[str, Any], lowercase: bool | None, extra_ids: int | None
) -> Tokenizer:
    if kind is not None:
        return tokenizer_class(kind).load(files, settings, lowercase, extra_ids)
    tokenizer = rust_tokenizers.read(files[0], settings)
    if extra_ids is not None and tokenizer.kind == "sentencepiece" and tokenizer.vocabulary.sentinels != extra_ids:
        has = tokenizer.vocabulary.sentinels
        raise UserError(f"{files[0]}: has {has} sentinels, data.tokenizer.extra_ids is {extra_ids}")
    return tokenizer


def add(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """A tokenizer with further tokens (`Tokenizer.with_tokens`), and all that was said of it.

    Args:
      tokenizer: without them, or with some of them.
      tokens: such as ["<|im_start|>"].

    Returns:
      The tokenizer; `vocabulary.added` has their ids.

    Raises:
      UserError: this kind of tokenizer takes none.
    """
    extended = tokenizer.with_tokens(tuple(dict.fromkeys(tokens)))
    extended.chat_templates, extended.assumed = tokenizer.chat_templates, tokenizer.assumed
    extended.carried, extended.of_config, extended.folder = tokenizer.carried, tokenizer.of_config, tokenizer.folder
    if tokenizer.specials:
        extended.name_specials(tokenizer.specials)
    extended.vocabulary = dataclasses.replace(extended.vocabulary, languages=tokenizer.vocabulary.languages)
    return extended


def tokenizer_class(kind: str) -> type[Tokenizer]:
    """The class that `data.tokenizer.kind` names.

    Raises:
      UserError: no such module, or not exactly one kind of tokenizer in it.
    """
    return resolve(kind, __name__, Tokenizer, "data.tokenizer")


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
      vocab_size: ids wanted, special ones included, `config.add_tokens` aside. A small corpus may give fewer.
      out_dir: directory for the files, or None.
      languages: tokens that no text gives, one for each language (SentencePiece).

    Returns:
      The tokenizer. The same texts give the same one.

    Raises:
      UserError: too few ids for the kind, or no text.
    """
    documents = first(texts, config.characters)
    if not documents:
        raise UserError("data.tokenizer: no text to train a vocabulary on")
    cls = tokenizer_class(config.kind)
    if languages and not cls.takes_languages:
        raise UserError(
            f"data.tokenizer.kind: a {config.kind} vocabulary is not trained with tokens of languages; take "
            "sentencepiece, or name a vocabulary that holds them with data.tokenizer.path"
        )
    min_size = cls.least(config) + len(languages)
    if vocab_size <= min_size:
        raise UserError(
            f"data.tokenizer.vocab_size: {vocab_size} is too small, {config.kind} needs more than {min_size}"
        )
    doing = f"training a {config.kind} vocabulary of {vocab_size:,} ids"
    total = sum(map(len, documents))
    scale, unit = _unit(total)
    with track(doing, total / scale, unit) as work:
        tokenizer = cls.train(_Counted(documents, work, scale), config, vocab_size, languages)
    tokenizer = add(tokenizer, config.add_tokens) if config.add_tokens else tokenizer
    if out_dir is not None:
        tokenizer.save(out_dir)
    return tokenizer


def planned(config: TokenizerConfig, vocab_size: int) -> Vocabulary:
    """What is known of a vocabulary before it is trained: its special ids, and the size that is wanted.

    Args:
      config: kind, sentinels and `add_tokens`.
      vocab_size: ids wanted, special ones included, `add_tokens` aside.

    Returns:
      The ids of `train`'s tokenizer; a small corpus may give it a smaller size.

    Example:
      >>> planned(TokenizerConfig(kind="wordpiece"), 100).mask
      4
    """
    vocabulary, tokens = tokenizer_class(config.kind).planned(config, vocab_size), config.add_tokens
    added = tuple((token, vocabulary.size + n) for n, token in enumerate(tokens))
    ids, named = dict(added), {part: getattr(vocabulary, part) for part in ("cls", "sep", "mask")}
    for part in [part for part, i in named.items() if i is None]:
        named[part] = next((ids[token] for token in SPECIALS[part][:2] if token in ids), None)
    size = vocabulary.size + len(tokens)
    return dataclasses.replace(vocabulary, size=size, added=added, behind=len(tokens), **named)


def _unit(characters: int) -> tuple[int, str]:
    """What so many characters are counted in: in millions a small text would be 0 of 0.

    Example:
      >>> _unit(20_000_000), _unit(300_000), _unit(4_000)
      ((1000000, 'million characters'), (1000, 'thousand characters'), (1, 'characters'))
    """
    if characters >= 10_000_000:
        return 1_000_000, "million characters"
    return (1_000, "thousand characters") if characters >= 10_000 else (1, "characters")


class _Counted(list[str]):
    """Texts, of which it is shown how many were read."""

    def __init__(self, texts: Iterable[str], work: Work, scale: int) -> None:
        super().__init__(texts)
        self._work, self._scale = work, scale

    def __iter__(self) -> Iterator[str]:
        done = 0
        for text in super().__iter__():
            yield text
            done += len(text)
            self._work.at(done / self._scale)


def first(texts: Iterable[str], characters: int) -> list[str]:
    """Texts up to about so many characters, while they are counted."""
    documents, total = [], 0
    scale, unit = _unit(characters)
    with track("reading text for the vocabulary", characters / scale, unit) as work:
        for text in texts:
            if total >= characters:
                break
            documents.append(text[: characters - total])
            total += len(documents[-1])
            work.at(total / scale)
    return documents


# ---- keeping a copy ------------------------------------------------------------------------------------------------


def publish(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes a vocabulary; the directory appears whole or not at all, and another process's is kept."""
    with contextlib.suppress(FileExistsError), disk.whole_directory(directory) as temporary:
        tokenizer.save(temporary)


def check_same(config: Config, own: Tokenizer, words: str) -> None:
    """Raises UserError where the vocabulary of `data.tokenizer.path` is another one.

    Args:
      config: the run's configuration in one phase.
      own: the vocabulary that it has to be.
      words: whose this is, and what to do about it, for the message.
    """
    settings = config.data.tokenizer
    if settings.path is None:
        return
    options = {"lowercase": settings.lowercase, "extra_ids": settings.extra_ids, "add_tokens": settings.add_tokens}
    tokenizer = load(settings.path, settings.kind, **options)
    ids = range(own.vocabulary.size)
    if tokenizer.vocabulary.size != own.vocabulary.size or tokenizer.pieces(ids) != own.pieces(ids):
        raise UserError(f"data.tokenizer.path: {settings.path}: is not the vocabulary {words}")
