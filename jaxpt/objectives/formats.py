"""How the texts of a network begin and end: the special tokens that its objective puts around them."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Literal

from jaxpt.config import ModelConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.objectives.bart import BartBatches
from jaxpt.objectives.base import Objective
from jaxpt.objectives.labelled import LabelledLoss
from jaxpt.objectives.mass import MassBatches
from jaxpt.objectives.mbart import MBartBatches
from jaxpt.objectives.text_to_text import TextToText
from jaxpt.objectives.translation_lm import TranslationLMBatches
from jaxpt.objectives.ul2 import UL2Batches, mode_ids

_LENGTH = 64  # of the windows; the special tokens do not depend on it


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
    blank: Literal["mask", "sentinels"] | None = None
    """What stands for a missing span in the encoder's input; None: the decoder was not trained to fill spans."""
    permutes: bool = False
    """The model predicts by a query stream (XLNet)."""
    prefix_lm: bool = False
    """The decoder's attention is bidirectional in the context."""

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


def text_format(
    objective: Objective,
    model: ModelConfig,
    vocabulary: Vocabulary,
    *,
    mode: Literal["NLU", "NLG", "S2S"] | None = None,
    language: int | None = None,
) -> Format:
    """The format of a network's texts, from its objective.

    Args:
      objective: the objective that the network was trained with.
      model: configuration of the backbone.
      vocabulary: vocabulary of the run.
      mode: UL2's mode, whose token begins the encoder's input; other objectives have none.
      language: the language's token (mBART).

    Returns:
      The format.

    Raises:
      UserError: the vocabulary has no such special token, or mBART's language is missing.
    """
    if model.family == "decoder":
        return Format(prefix_lm="decoder_prefix" in objective.batches.features(_LENGTH))
    if model.family == "encoder":
        return _of_encoder(objective, model, vocabulary)
    return _of_encoder_decoder(objective, vocabulary, mode, language)


def check_writes(objective: Objective, path: object) -> None:
    """Raises UserError where a head was trained, not the prediction of tokens.

    Args:
      objective: the objective that the network was trained with.
      path: the model, for the message.
    """
    if isinstance(objective.loss, LabelledLoss):
        raise UserError(
            f"{path}: was fine-tuned with objective.kind: {objective.kind}, so it answers by its head and writes no "
            f"text; use jaxpt predict {shlex.quote(str(path))} FILE --out P.jsonl"
        )


def predictor(objective: Objective, bound: Bound) -> Bound:
    """The bound network that predicts tokens: the whole network, or ELECTRA's generator.

    Args:
      objective: the objective that the network was trained with.
      bound: the bound network.

    Returns:
      A bound network with `logits`.

    Raises:
      UserError: an encoder without a masked-LM head or a query stream.
    """
    if bound.config.family != "encoder":
        return bound
    scorer = objective.loss.scorer(bound)
    if "masked_lm" not in scorer.heads and not hasattr(scorer, "streams"):
        raise UserError(
            f"model.kind: {bound.config.kind} has no masked-LM head here, so it predicts no tokens; use a pretrained "
            "model that has one, before it was fine-tuned"
        )
    return scorer


def _of_encoder(objective: Objective, model: ModelConfig, vocabulary: Vocabulary) -> Format:
    for name in ("cls", "sep"):
        if getattr(vocabulary, name) is None:
            raise UserError(f"model.kind: {model.kind} needs a vocabulary with [{name.upper()}]")
    if hasattr(model.build(), "streams"):
        return Format(after=(vocabulary.sep, vocabulary.cls), permutes=True)
    is_pair = isinstance(objective.batches, TranslationLMBatches)  # XLM's texts have [SEP] at both ends
    return Format(before=(vocabulary.sep if is_pair else vocabulary.cls,), after=(vocabulary.sep,))


def _of_encoder_decoder(objective: Objective, vocabulary: Vocabulary, mode: str | None, language: int | None) -> Format:
    if isinstance(objective, TextToText):
        return Format(*objective.ends(vocabulary), objective.decoder_start(vocabulary))
    batches, ids = objective.batches, {}
    transforms = batches.transforms(_LENGTH, vocabulary, 0)
    calls = (*transforms.offline, *transforms.online)
    for call in calls:
        ids |= {name: call.kwargs[name] for name in ("bos", "eos", "start") if call.kwargs.get(name) is not None}
    if batches.examples(_LENGTH) is not None and vocabulary.eos is not None:
        ids.setdefault("eos", vocabulary.eos)  # examples of a Task end with EOS, as T5's do
    before, after, start = ([ids[name]] if name in ids else [] for name in ("bos", "eos", "start"))
    decoder_start = [*start, *before]
    if isinstance(batches, UL2Batches) and mode is not None:
        before = [mode_ids(vocabulary)[mode]]
    if isinstance(batches, MassBatches):
        before = after  # EOS at both ends
    if isinstance(batches, MBartBatches):
        if language not in vocabulary.languages:
            raise UserError(f"language: {language} is not the token of a language; ids of them: {vocabulary.languages}")
        after, decoder_start = [*(after if batches.h.eos else ()), language], [language, *before]
    has_sentinels = vocabulary.sentinels > 0 and any("first_sentinel" in call.kwargs for call in calls)
    blank = "sentinels" if has_sentinels else "mask" if isinstance(batches, BartBatches) else None
    return Format(tuple(before), tuple(after), tuple(decoder_start), blank)
