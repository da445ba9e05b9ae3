"""`jaxpt tokenizer`: trains a vocabulary on a recipe's text, shows what one makes of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.data.tokenizers.base import SPECIALS
from jaxpt.errors import UserError, escaped
from jaxpt.runtime.disk import is_utf_8
from jaxpt.runtime.terminal import print_table

if TYPE_CHECKING:
    from jaxpt.config import Config


def train(config: Config, out: str) -> None:
    """Trains a recipe's vocabulary on its training split.

    Args:
      config: the recipe; `data.tokenizer` says which kind and how many ids (`model.vocab_size` by default).
      out: directory to write it to.

    Raises:
      UserError: the text cannot be read, or is too little for the kind.
    """
    from jaxpt.data import parts
    from jaxpt.data.checks import trained_size
    from jaxpt.data.parts import languages_of
    from jaxpt.data.sources.base import interleaved_texts
    from jaxpt.data.sources.opening import open_source

    settings = config.data.tokenizer
    sources = [open_source(part.config.data, task=part.config.task) for part in parts.parts(config)]
    size, languages = trained_size(config), languages_of(sources)
    tokenizer = tokenizers.train(interleaved_texts(sources), settings, size, out, languages)
    print(f"wrote {out}: {tokenizer.kind}, {tokenizer.vocabulary.size:,} ids")


def extend(config: Config, out: str, tokens: int) -> None:
    """Extends a recipe's vocabulary by pieces that its training split has often.

    Args:
      config: the recipe; `data.tokenizer.path`, or the model of `init_from.path`, has the vocabulary.
      out: directory to write the extended one to.
      tokens: how many pieces it is to have more.

    Raises:
      UserError: no vocabulary is named, it is no byte-level BPE, or the text cannot be read.
    """
    from jaxpt.data import parts
    from jaxpt.data.sources.base import interleaved_texts
    from jaxpt.data.sources.opening import open_source
    from jaxpt.data.tokenizers import extension

    settings = config.data.tokenizer
    if settings.path is None:
        raise UserError("data.tokenizer.path is missing: the vocabulary to extend")
    tokenizer = tokenizers.load(settings.path, settings.kind, extra_ids=settings.extra_ids)
    sources = [open_source(part.config.data, task=part.config.task) for part in parts.parts(config)]
    texts = tokenizers.first(interleaved_texts(sources), settings.characters)
    extended = extension.extend(tokenizer, texts, tokens)
    extended.save(out)
    more, sample = extended.vocabulary.size - tokenizer.vocabulary.size, texts[:1000]
    before, after = (sum(map(len, t.encode_batch(sample))) for t in (tokenizer, extended))
    print(f"wrote {out}: {extended.kind}, {extended.vocabulary.size:,} ids, {more:,} of them new")
    print(f"{len(sample):,} texts have {before:,} tokens without them, {after:,} with them")


def inspect(path: str, text: str | None = None) -> None:
    """Prints a vocabulary's size and special ids, and the tokens of a text.

    Args:
      path: a vocabulary's file or directory.
      text: what to tokenize.

    Raises:
      UserError: no vocabulary there, or a text that is not UTF-8.
    """
    if not is_utf_8(text or ""):
        raise UserError("TEXT: not UTF-8; wants text in UTF-8")
    named = vocabulary_files.read_settings(Path(path)).get("kind")  # whoever names the directory means its code, too
    tokenizer = tokenizers.load(path, named if isinstance(named, str) and "." in named else None)
    print(f"{path}: {tokenizer.kind}")
    vocabulary = tokenizer.vocabulary
    rows = [("size", f"{vocabulary.size:,}", ""), ("lowercase", "yes" if tokenizer.lowercase else "no", "")]
    for name in SPECIALS:
        token_id = getattr(vocabulary, name)
        rows.append((name, "-", "") if token_id is None else (name, f"{token_id:,}", tokenizer.tokens([token_id])[0]))
    rows.append(("sentinels", f"{vocabulary.sentinels:,}", ""))
    print_table(("", "", ""), rows + [("added", f"{token_id:,}", token) for token, token_id in vocabulary.added])
    if tokenizer.assumed:
        print(tokenizer.assumed)
    if text is not None:
        ids = tokenizer.encode(text, special=True)
        print_table(("token", "id"), zip(tokenizer.tokens(ids), map(str, ids)))
        print(f"{len(ids)} tokens; decoded: {escaped(tokenizer.decode(ids))}")
