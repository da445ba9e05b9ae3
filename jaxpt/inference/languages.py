"""The languages that an mBART model reads and writes: those that are named, else those of the model's files.

    class of the tokenizer   encoder                 decoder
    MBartTokenizer           … </s> en_XX            de_DE …
    MBart50Tokenizer         en_XX … </s>            </s> de_DE …

As in Transformers, the source language is `src_lang` of tokenizer_config.json, and by default en_XX.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from jaxpt.config.kinds import nearest
from jaxpt.data.tokenizers import declared
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.decode import prompts
from jaxpt.errors import UserError
from jaxpt.hf.generation import Generation
from jaxpt.objectives.formats import Languages

_TOKEN = re.compile("[a-z]{2,3}_[A-Z]{2}")
_CLASSES = {"mbart": False, "mbart50": True}
"""{class of a tokenizer: whether the source language comes first}."""
_DEFAULT = "en_XX"
"""The source language of these classes, where no file names another one."""


def name_languages(tokenizer: Tokenizer) -> dict[str, int]:
    """The languages of a vocabulary; where it does not know them yet, it gets those that its tokens name.

    Args:
      tokenizer: the model's.

    Returns:
      {token: id}.
    """
    v = tokenizer.vocabulary
    if not v.languages:
        pieces = enumerate(tokenizer.tokens(range(v.size)))
        languages = tuple(i for i, piece in pieces if _TOKEN.fullmatch(piece))
        v = tokenizer.vocabulary = dataclasses.replace(v, languages=languages)
    return dict(zip(tokenizer.tokens(v.languages), v.languages))


def choose(
    tokenizer: Tokenizer, generation: Generation, source: str | None, target: str | None, denoises: bool
) -> Languages | None:
    """The languages that a model reads and writes.

    Args:
      tokenizer: the model's.
      generation: what the model's files say.
      source: token of the language that is read, such as en_XX.
      target: token of the language that is written.
      denoises: the model was trained here, on texts whose source is their target.

    Returns:
      None where nothing says which language is written.

    Raises:
      UserError: the vocabulary has no such language.
    """
    ids = name_languages(tokenizer)
    named = {"source_language": source, "target_language": target}
    for key, name in named.items():
        if name is not None and not (isinstance(name, str) and name in ids):
            raise UserError(f"{key}: the vocabulary has no language {name!r}{nearest(str(name), list(ids))}")
    source_first, sources, targets = (False, [], []) if denoises else _of_files(tokenizer, ids)
    forced = (generation.decoder_start, generation.options.get("forced_first"))
    of_files = [i for i in (*forced, *(ids.get(str(name)) for name in targets)) if i in ids.values()]
    only = list(ids.values()) if len(ids) == 1 else []
    target_id = next(iter([ids[target]] if target is not None else [*of_files, *only]), None)
    if target_id is None:
        return None
    source_id = next((ids[name] for name in (source, *sources) if isinstance(name, str) and name in ids), target_id)
    return Languages(source_id, target_id, source_first)


def _of_files(tokenizer: Tokenizer, ids: Mapping[str, int]) -> tuple[bool, list[str | None], list[str | None]]:
    """(whether the source language comes first, source languages, target languages), the first that counts first."""
    if tokenizer.folder is None:
        return False, [], []
    declaration = declared.read(tokenizer.folder)
    kind = declared.class_name(declaration.tokenizer_class or declaration.model_type)
    around = prompts.tokens_around(tokenizer.folder) or []
    source_first = _CLASSES.get(kind, around[:1] and around[0] in ids)
    of_class = [_DEFAULT] if kind in _CLASSES else []
    settings = declaration.settings
    return bool(source_first), [settings.get("src_lang"), *of_class, *around], [settings.get("tgt_lang")]
