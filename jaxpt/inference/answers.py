"""What a model makes of prompts: generated texts, or candidates for what is missing in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from jaxpt import errors
from jaxpt.decode.engine import Prompt
from jaxpt.errors import UserError
from jaxpt.inference import filling, loaded, opening
from jaxpt.inference.filling import Candidates
from jaxpt.inference.text import Completion, OnText
from jaxpt.runtime import hub

CANDIDATES = 5
"""Of an encoder, for each mask."""


class Answer(Protocol):
    """The answer to a prompt."""

    is_streamed: bool

    def values(self) -> dict[str, Any]:
        """The fields in a file of results."""

    def lines(self) -> list[str]:
        """The lines on the screen."""


@dataclasses.dataclass(frozen=True)
class Texts:
    """Generated texts."""

    completions: Sequence[Completion]
    is_streamed = True
    fields = ("completions", "finish")

    def values(self) -> dict[str, Any]:
        return {"completions": [c.text for c in self.completions], "finish": [c.finish for c in self.completions]}

    def lines(self) -> list[str]:
        if len(self.completions) == 1:
            return [self.completions[0].text]
        return [f"{n}: {completion.text}" for n, completion in enumerate(self.completions, 1)]


@dataclasses.dataclass(frozen=True)
class Fills:
    """Candidates for each mask or span that is missing."""

    missing: Sequence[Candidates]
    is_streamed = False
    fields = ("fills",)

    def values(self) -> dict[str, Any]:
        return {"fills": [[{"text": text, "probability": p} for text, p in candidates] for candidates in self.missing]}

    def lines(self) -> list[str]:
        lines = (", ".join(f"{text!r} {p:.3f}" for text, p in candidates) for candidates in self.missing)
        return [f"{n}: {line}" for n, line in enumerate(lines, 1)]


class Answers:
    """A model with settings.

    Attributes:
      name: the path, as it was given.
      identity: directory and checkpoint; of a model of the hub its revision's in the cache.
    """

    def __init__(self, path: str, settings: Mapping[str, Any], batch_size: int, **languages: str) -> None:
        """Loads the model.

        Args:
          path: RUN_DIR or HF_DIR.
          settings: of `Options`.
          batch_size: rows that are decoded at a time.
          **languages: `source_language` and `target_language` of `jaxpt.load`.

        Raises:
          UserError: it cannot be loaded, or a setting is not for it.
        """
        self.name, self._settings = path, dict(settings)
        chosen, step = opening.resolve_checkpoint(path)
        self._model = loaded.load(chosen, batch_size=batch_size, **languages)
        self._is_encoder = self._model.family == "encoder"
        self.identity = [str(hub.local(path).resolve()), step]
        if self._is_encoder and (wrong := [name for name in settings if name != "top_k"]):
            option = f"--{wrong[0].replace('_', '-')}"
            raise UserError(f"{option}: has no effect on {path}, an encoder, which fills masks; leave it out")
        ids = self._model.network.config.vocab_size
        if self._is_encoder and not 1 <= settings.get("top_k", 1) <= ids:
            raise UserError(f"top_k is {settings['top_k']}: must be from 1 to {ids}, the size of the vocabulary")
        self._options = None if self._is_encoder else self._model.options(**settings)
        if self._options is not None and self._model.unapplied:
            errors.note(f"{path}: its settings of search are not applied: {', '.join(self._model.unapplied)}")

    def check(self, texts: Sequence[str], where: str) -> None:
        """Checks all prompts, so that none is wrong after others took their time; says if positions limit their texts.

        Args:
          texts: prompts.
          where: what their numbers follow in a message.

        Raises:
          UserError: a prompt that is empty or too long, without a mask for an encoder, or with more missing than the
            model fills.
        """
        for number, text in enumerate(texts, 1):
            try:
                self._check(text)
            except UserError as error:
                raise UserError(f"{where} {number}: {str(error).removeprefix('prompt 0: ')}") from None
        self._note_positions(texts)

    def _note_positions(self, texts: Sequence[str]) -> None:
        """Says that texts end before the number of tokens that was asked for; the last one needs no position."""
        limit, wanted = self._model.network.config.position_limit, self._settings.get("max_new_tokens")
        if limit is None or wanted is None:
            return
        continued = [text for text in texts if not self._model.fills(text)]
        rooms = [limit + 1 - len(self._model.prompt_ids(text).tokens) for text in continued]
        if cut := [room for room in rooms if room < wanted]:
            errors.note(f"the model has {limit} positions: a text ends after at most {max(cut)} new tokens")

    def _check(self, text: str) -> None:
        model = self._model
        if self._options is not None:
            prompt = filling.prompt(model, text) if model.fills(text) else model.prompt_ids(text)
            return model.check([prompt], self._options)
        filling.check(model)  # which says why a model predicts no tokens
        if not model.fills(text):
            mask = model.vocabulary.mask
            hint = "" if mask is None else f": write {model.tokenizer.tokens([mask])[0]} where a word is missing"
            raise UserError(
                f"has no mask, and {self.name} is an encoder, which fills masks and does not generate{hint}"
            )
        size = len(model.reader.format().wrap(model.tokenizer.encode(text, special=True)))
        limit = model.network.config.position_limit
        if limit is not None and size > limit:
            raise UserError(f"it has {size} tokens, but the model has {limit} positions; shorten it")
        return None

    def count(self, text: str) -> int:
        """How many texts a prompt gets on the screen."""
        return 1 if self._options is None or self._model.fills(text) else self._options.samples

    def fields(self, texts: Sequence[str]) -> list[str]:
        """The fields that the answers to these prompts have in a file."""
        classes = {Fills if self._model.fills(text) else Texts for text in texts}
        return [name for answer in (Texts, Fills) if answer in classes for name in answer.fields]

    def answers(
        self, texts: Sequence[str], first: int = 0, on_text: OnText | None = None
    ) -> Iterator[tuple[int, Answer]]:
        """Answers prompts.

        Args:
          texts: prompts.
          first: number of the first one among all, on which its samples depend.
          on_text: is given generated text while it comes.

        Yields:
          (index in `texts`, answer), in the order in which they are complete.
        """
        model = self._model
        is_filled = [model.fills(text) for text in texts]
        blanks = [i for i, filled in enumerate(is_filled) if filled]
        others = [i for i, filled in enumerate(is_filled) if not filled]
        for i, fills in zip(blanks, self._fill([texts[i] for i in blanks], [first + i for i in blanks])):
            yield i, Fills(fills)
        if not others:
            return
        prompts: list[Prompt] = [model.prompt_ids(texts[i])._replace(row=first + i) for i in others]
        callback = None if on_text is None else lambda n, sample, text: on_text(others[n], sample, text)
        for n, completions in model.generate_iter(prompts, self._options, on_text=callback):
            yield others[n], Texts(completions)

    def _fill(self, texts: list[str], rows: list[int]) -> list[list[Candidates]]:
        if not texts:
            return []
        if self._is_encoder:
            return self._model.fill(texts, self._settings.get("top_k", CANDIDATES))
        return filling.fill(self._model, texts, CANDIDATES, self._settings, rows)
