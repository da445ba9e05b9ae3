"""`jaxpt tokenizer`: trains a vocabulary on a recipe's text, shows what one makes of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.data.tokenizers.base import SPECIALS

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
    from jaxpt.data.sources.base import interleaved_texts, languages_of
    from jaxpt.data.sources.opening import open_source

    settings, sources = config.data.tokenizer, [open_source(part.config.data) for part in parts.parts(config)]
    size, languages = trained_size(config), languages_of(sources)
    tokenizer = tokenizers.train(interleaved_texts(sources), settings, size, out, languages)
    print(f"wrote {out}: {tokenizer.kind}, {tokenizer.vocabulary.size:,} ids")


def inspect(path: str, text: str | None = None) -> None:
    """Prints a vocabulary's size and special ids, and the tokens of a text.

    Args:
      path: a vocabulary's file or directory.
      text: what to tokenize.

    Raises:
      UserError: no vocabulary there.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    named = vocabulary_files.read_settings(Path(path)).get("kind")  # whoever names the directory means its code, too
    tokenizer = tokenizers.load(path, named if isinstance(named, str) and "." in named else None)
    vocabulary = tokenizer.vocabulary
    table = Table(show_header=False)
    table.add_row("size", f"{vocabulary.size:,}")
    table.add_row("lowercase", "yes" if tokenizer.lowercase else "no")
    for name in SPECIALS:
        value = getattr(vocabulary, name)
        table.add_row(name, *(("-",) if value is None else (f"{value:,}", Text(tokenizer.tokens([value])[0]))))
    table.add_row("sentinels", f"{vocabulary.sentinels:,}")
    for token, i in vocabulary.added:
        table.add_row("added", f"{i:,}", Text(token))
    console = Console(highlight=False)
    console.print(Text(f"{path}: {tokenizer.kind}"), soft_wrap=True)
    console.print(table)
    if tokenizer.assumed:
        console.print(Text(tokenizer.assumed), soft_wrap=True)
    if text is not None:
        ids = tokenizer.encode(text, special=True)
        rows = Table("token", "id")
        for piece, number in zip(tokenizer.tokens(ids), ids):
            rows.add_row(Text(repr(piece)[1:-1]), str(number))
        console.print(rows)
        again = tokenizer.decode(ids)
        console.print(Text(f"{len(ids)} tokens; decoded: {again}"))
