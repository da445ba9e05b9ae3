"""How the texts of a network begin and end: the special tokens that its objective puts around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jaxpt.config import ModelConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.spec import DataSpec
from jaxpt.errors import UserError

LENGTH = 64
"""Of the windows that formats are read from; the special tokens do not depend on it."""
Mode = Literal["NLU", "NLG", "S2S"]
"""UL2's modes."""


@dataclasses.dataclass(frozen=True)
class Languages:
    """The tokens of the languages that a model reads and writes (mBART)."""

    source: int
    target: int
    source_first: bool = False
    """The source language begins the encoder's input, and the target language follows the decoder's start (mBART-50).
    Else the source language ends the encoder's input, and the target language is the decoder's start."""


@dataclasses.dataclass(frozen=True)
class Format:
    """The special tokens around a text, of an encoder-decoder around the encoder's input, and what the decoder reads
    first.

    Example:
      >>> Format(before=(2,), after=(3,)).wrap([7, 8])
      [2, 7, 8, 3]
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    decoder_start: tuple[int, ...] = ()
    """Decoder inputs before the first token of text: the start token, and BOS (BART)."""
    blank: Literal["mask", "sentinels", "middle"] | None = None
    """What stands for a missing span in the encoder's input; `middle`: a decoder fills the middle of a text (FIM);
    None: the model was not trained to fill spans."""
    permutes: bool = False
    """The model predicts by a query stream (XLNet)."""
    prefix_lm: bool = False
    """The decoder's attention is bidirectional in the context."""
    modes: tuple[int, ...] = ()
    """The tokens of which one begins the encoder's input and says how the text was corrupted (UL2)."""

    @property
    def cls(self) -> Literal["first", "last"] | None:
        """Which token represents the whole text: XLNet's CLS is the last one."""
        return "last" if self.permutes else "first" if self.before else None

    def wrap(self, ids: Sequence[int]) -> list[int]:
        """The text with its special tokens."""
        return [*self.before, *ids, *self.after]

    def token_types(self, length: int) -> list[int]:
        """Token types of a wrapped text with `length` tokens: all 0, but 2 at XLNet's CLS."""
        return [0] * (length - 1) + [2] if self.permutes else [0] * length


def encoder_format(model: ModelConfig, vocabulary: Vocabulary) -> Format:
    """[CLS] text [SEP]; text [SEP] [CLS] of a model with a query stream; the text alone of a model of words.

    Raises:
      UserError: the vocabulary has no such special token.
    """
    if model.text_layout == "words":
        return Format()
    for name in ("cls", "sep"):
        if getattr(vocabulary, name) is None:
            raise UserError(f"model.kind: {model.kind} needs a vocabulary with [{name.upper()}]")
    if hasattr(model.build(), "streams"):
        return Format(after=(vocabulary.sep, vocabulary.cls), permutes=True)
    return Format(before=(vocabulary.cls,), after=(vocabulary.sep,))


def encoder_decoder_format(spec: DataSpec, vocabulary: Vocabulary) -> Format:
    """The special tokens that an objective's preprocessors are given as `bos`, `eos` and `start`."""
    transforms, ids = spec.transforms(vocabulary, 0), dict[str, int]()
    calls = (*transforms.offline, *transforms.online)
    for call in calls:
        ids |= {name: call.kwargs[name] for name in ("bos", "eos", "start") if call.kwargs.get(name) is not None}
    if spec.max_target_tokens is not None and vocabulary.eos is not None:
        ids.setdefault("eos", vocabulary.eos)  # examples of a Task end with EOS, as T5's do
    before, after, start = ((ids[name],) if name in ids else () for name in ("bos", "eos", "start"))
    has_sentinels = vocabulary.sentinels > 0 and any("first_sentinel" in call.kwargs for call in calls)
    return Format(before, after, (*start, *before), "sentinels" if has_sentinels else None)
