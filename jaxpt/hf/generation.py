"""Ids that stop or steer generation, from the files of a directory.

An EOS and a start token are those of generation_config.json, else of config.json, else of the tokenizer's files. What
is forced and suppressed stands in generation_config.json, or, where there is no such file, in config.json: as in
Transformers. What is given on the command line comes before all of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxpt import errors
from jaxpt.errors import UserError, shown
from jaxpt.hf import origin

_FORCED = {
    "forced_bos_token_id": "forced_first", "forced_eos_token_id": "forced_last", "suppress_tokens": "suppress",
    "begin_suppress_tokens": "suppress_first",
}  # fmt: skip
"""{their key: field of `Options`}."""
_SEARCH = {
    "do_sample": False, "num_beams": 1, "num_beam_groups": 1, "penalty_alpha": None, "max_length": 20,
    "max_new_tokens": None, "min_length": 0, "min_new_tokens": None, "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None, "sequence_bias": None, "guidance_scale": None,
    "forced_decoder_ids": None, "stop_strings": None,
}  # fmt: skip
"""Settings of search that jaxpt does not take from a file, with the values that change nothing."""
_DEPENDENT = {
    "num_beams": {"length_penalty": 1.0, "early_stopping": False},
    "do_sample": {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "typical_p": 1.0},
}
"""The same of settings that change nothing without beams, or without sampling."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a directory's files say about generation."""

    eos: tuple[int, ...] = ()
    """Ids that end a text; () if no file names one."""
    bos: int | None = None
    """The id that an empty text begins with."""
    decoder_start: int | None = None
    """The first input of an encoder-decoder's decoder."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of `Options`: what is forced, suppressed and never completed."""
    search: tuple[str, ...] = ()
    """Settings of search that are kept, and not applied: "num_beams: 4"."""


def read(folder: Path, vocab_size: int) -> Generation:
    """Reads generation_config.json and config.json.

    Args:
      folder: result of `origin.folder_of`.
      vocab_size: number of the model's ids; others in the files are passed over with a note.

    Returns:
      What they say; nothing where there are no files.

    Raises:
      UserError: a value that is no id, or no list of ids.
    """
    sources = [_File(folder / name, keys, vocab_size) for name in (origin.GENERATION, origin.CONFIG)
               if (keys := origin.read(folder, name)) is not None]  # fmt: skip
    if not sources:
        return Generation()
    first = sources[0]
    options = {ours: forced_ids for theirs, ours in _FORCED.items() if (forced_ids := first.ids(theirs))}
    options |= {"forced_first": first.one("forced_bos_token_id")} if "forced_first" in options else {}
    options |= {"bad_words": words} if (words := first.words("bad_words_ids")) else {}
    return Generation(
        eos=next((ids for source in sources if (ids := source.ids("eos_token_id"))), ()),
        bos=next((i for source in sources if (i := source.one("bos_token_id")) is not None), None),
        decoder_start=next((i for source in sources if (i := source.one("decoder_start_token_id")) is not None), None),
        options=options,
        search=_search_settings(first.keys),
    )


def _search_settings(keys: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings of search that change something."""

    def changing(plain: Mapping[str, Any]) -> list[str]:
        return [key for key, x in plain.items() if keys.get(key) not in (None, x)]

    names = changing(_SEARCH)
    names += [key for name in names for key in changing(_DEPENDENT.get(name, {}))]
    return tuple(f"{key}: {json.dumps(keys[key])}" for key in names)


@dataclasses.dataclass(frozen=True)
class _File:
    """A file, whose ids are looked at as they are asked for."""

    path: Path
    keys: Mapping[str, Any]
    vocab_size: int

    def ids(self, key: str) -> tuple[int, ...]:
        """An id, or a list of ids; those that the model has."""
        value = self.keys.get(key)
        return tuple(dict.fromkeys(self._known(key, value if isinstance(value, list) else [value])))

    def one(self, key: str) -> int | None:
        """An id.

        Raises:
          UserError: there are several.
        """
        ids = self.ids(key)
        if len(ids) > 1:
            raise UserError(f"{self.path}: {key}: wants one id, got {shown(list(ids))}")
        return ids[0] if ids else None

    def words(self, key: str) -> tuple[tuple[int, ...], ...]:
        """Sequences of ids; those of which the model has all ids."""
        words = self.keys.get(key) or []
        if not isinstance(words, list) or not all(isinstance(word, list) and word for word in words):
            raise UserError(f"{self.path}: {key}: wants a list of lists of ids, got {shown(words)}")
        return tuple(tuple(word) for word in words if len(self._known(key, word)) == len(word))

    def _known(self, key: str, values: list[Any]) -> list[int]:
        values = [value for value in values if value is not None]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in values):
            raise UserError(f"{self.path}: {key}: wants an id, or a list of ids, got {shown(self.keys[key])}")
        known = [i for i in values if 0 <= i < self.vocab_size]
        if unknown := [i for i in values if i not in known]:
            errors.note(f"{self.path}: {key}: {unknown[0]} is passed over: the model has the ids 0 to "
                        f"{self.vocab_size - 1}")  # fmt: skip
        return known
