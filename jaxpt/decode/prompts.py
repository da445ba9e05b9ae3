"""Texts as a model was trained to read them: prompts, and contexts with their continuations, as ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt.config import Config, ModelConfig
from jaxpt.data import chat_template
from jaxpt.data.calls import Vocabulary
from jaxpt.data.labelled.text_pairs import separator_ids
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.decode import embed
from jaxpt.decode.embed import Embeddings, Rows
from jaxpt.decode.engine import Prompt
from jaxpt.errors import UserError
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective
from jaxpt.objectives.formats import Format, Languages, Mode
from jaxpt.objectives.text_to_text import TextToText

_RUST = "tokenizer.json"
_BOS_CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
"""Classes of tokenizers that put BOS first where no file says otherwise."""


@dataclasses.dataclass(frozen=True)
class PromptEncoder:
    """From texts to ids, for one model."""

    model: ModelConfig
    objective: Objective
    """The one that the model was trained with: it says how a text begins and ends."""
    tokenizer: Tokenizer
    bos: int | None = None
    """The id that the tokenizer puts before a decoder's text; None if it puts none."""
    languages: Languages | None = None
    """Those that are read and written (mBART)."""
    start: int | None = None
    """What generation begins with, where the model's files name it: the decoder of an encoder-decoder, an empty prompt
    of a decoder."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Ids of the special tokens."""
        return self.tokenizer.vocabulary

    def prompt(self, text: str, special: bool = True) -> Prompt:
        """What is read before an answer.

        Args:
          text: any text.
          special: read special tokens that the text spells out as such.

        Returns:
          Of a decoder the ids, after BOS where its tokenizer puts one; of an encoder-decoder the encoder's input and
          the decoder's first tokens.

        Raises:
          UserError: the model is an encoder.
        """
        ids = self.tokenizer.encode(text, special=special)
        if self.model.family == "encoder":
            raise UserError(f"{self.model.kind} is an encoder: it fills masks and embeds, but does not generate")
        if self.model.family == "decoder" and isinstance(self.objective, TextToText):
            before, _ = self.objective.ends(self.vocabulary)
            return Prompt([*before, *ids, *separator_ids(self.tokenizer, self.objective.separator)])
        if self.model.family == "decoder":
            return Prompt(self.opened(ids) or self._opening())
        return self._encoder_decoder_prompt(ids)

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of a context and its continuation, cut from the ids of both together where one text holds both.

        White space at the end of the context belongs to the continuation.
        """
        encode = self.tokenizer.encode
        stripped = context.rstrip()
        context, continuation = stripped, context[len(stripped) :] + continuation
        if self.model.family == "encoder_decoder":
            return encode(context, special=True), encode(continuation, special=True)
        if isinstance(self.objective, TextToText):
            return list(self.prompt(context).tokens), encode(continuation, special=True)
        before, whole = encode(context, special=True), encode(context + continuation, special=True)
        before, after = whole[: len(before)], whole[len(before) :]
        if not after or not continuation:
            before, after = encode(context, special=True), encode(continuation, special=True)
        return (self.opened(before) if self.model.family == "decoder" else before), after

    def opened(self, ids: Sequence[int]) -> list[int]:
        """A decoder's text after BOS, where its tokenizer puts one and the text has none."""
        return list(ids) if self.bos is None or list(ids[:1]) == [self.bos] else [self.bos, *ids]

    def embed(self, network: Network, params: Any, ids: Sequence[Sequence[int]], **options: Any) -> Embeddings | None:
        """Vectors of texts, with BOS and the languages of this model; see `jaxpt.decode.embed`."""
        return embed.embed(network, params, self.objective, self.vocabulary, ids, **self._reading, **options)

    def lay(self, network: Network, ids: Sequence[Sequence[int]], spans: Sequence[Any] | None = None) -> Rows:
        """The rows of which `embed` makes vectors."""
        return embed.lay(network, self.objective, self.vocabulary, ids, spans=spans, **self._reading)

    @property
    def _reading(self) -> dict[str, Any]:
        return {"bos": self.bos, "languages": self.languages}

    def format(self, mode: Mode | None = None) -> Format:
        """The special tokens around a text."""
        return self.objective.text_format(self.model, self.vocabulary, mode=mode, languages=self.languages)

    def is_mode(self, ids: Sequence[int]) -> bool:
        """Whether the first id is one of UL2's modes."""
        return len(ids) > 0 and ids[0] in self.format().modes

    def _opening(self) -> list[int]:
        """What an empty prompt becomes: the files' BOS, the vocabulary's if decoders read it, or EOS."""
        v = self.vocabulary
        return next(([i] for i in (self.start, v.decoder_bos, v.eos) if i is not None), [])

    def _encoder_decoder_prompt(self, ids: list[int]) -> Prompt:
        """UL2 continues a text as the span of a sentinel at its end; where the text has sentinels, it fills them."""
        v = self.vocabulary
        has_sentinel = any(i in v.sentinel_ids for i in ids)
        layout, blank = self.format(), []
        if layout.modes and not self.is_mode(ids):
            layout, blank = self.format("NLU" if has_sentinel else "S2S"), [] if has_sentinel else [v.first_sentinel]
        return Prompt([*self.decoder_start(), *blank], layout.wrap([*ids, *blank]))

    def decoder_start(self) -> list[int]:
        """What the decoder of an encoder-decoder reads first."""
        return list(self.format().decoder_start) if self.start is None else [self.start]


def of_run(config: Config, tokenizer: Tokenizer) -> PromptEncoder:
    """The prompt encoder of a run, whose tokenizer is in its directory."""
    bos, languages = bos_of(tokenizer, tokenizer_folder(config.run_dir)), tokenizer.vocabulary.languages
    single = Languages(languages[0], languages[0]) if len(languages) == 1 else None
    return PromptEncoder(config.model, config.objective, tokenizer, bos, single)


def bos_of(tokenizer: Tokenizer, folder: Path | None) -> int | None:
    """The id that the tokenizer's own class puts before a text; OPT's is `</s>`.

    A tokenizer.json says what is put around a text; without one, or where it does not, tokenizer_config.json does.

    Args:
      tokenizer: the model's.
      folder: where its files are; None: it has none.
    """
    if folder is None:
        return tokenizer.vocabulary.bos if tokenizer.carried.get("add_bos_token") else None
    settings, around = vocabulary_files.read_settings(folder), tokens_around(folder)
    named = next(iter(around or ()), None)
    puts = settings.get("add_bos_token") if around is None else named is not None
    if not isinstance(puts, bool):
        name = (settings.get("tokenizer_class") or "").removesuffix("Fast")
        puts = name in _BOS_CLASSES and not (folder / _RUST).is_file()
    bos = named or chat_template.special_tokens(folder, tokenizer).get("bos_token")
    return tokenizer.token_id(bos) if puts and bos else None


def eos_of(tokenizer: Tokenizer, folder: Path | None, named: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Ids that end a text: those that the model's files name, else the EOS of the tokenizer.

    Args:
      tokenizer: the model's.
      folder: where its files are; None: it has none.
      named: `eos` of `jaxpt.hf.generation.read`.
    """
    if named:
        return named
    eos = chat_template.special_tokens(folder, tokenizer).get("eos_token")
    ids = (tokenizer.vocabulary.eos, eos and tokenizer.token_id(eos))
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def tokenizer_folder(run_dir: str | Path) -> Path:
    """Where a run keeps its tokenizer."""
    return Path(run_dir) / "tokenizer"


def tokens_around(folder: Path) -> list[str | None] | None:
    """What a tokenizer.json puts around a text: ["<s>", None, "</s>"], where None is the text.

    Args:
      folder: where it is.

    Returns:
      None where there is no such file, or where it does not say it.
    """
    step = vocabulary_files.read_settings(folder, _RUST).get("post_processor")
    if step is None:
        return None
    steps: Iterable[Mapping[str, Any]] = step.get("processors", [step])
    single = next((processor["single"] for processor in steps if processor.get("type") == "TemplateProcessing"), [])
    return [piece.get("SpecialToken", {}).get("id") for piece in single]
