"""UniLM's objective: masked LM of pairs of texts, each under one of four attention masks, on one encoder.

    bidirectional         [CLS] a b [SEP] c d [SEP]   all see all; and next-sentence prediction
    sequence_to_sequence  [CLS] a b [SEP] c d [SEP]   the first text sees itself, the second all that stands before
    left_to_right         [CLS] a b [SEP] c d [SEP]   each token sees itself and those before it
    right_to_left         [CLS] a b [SEP] c d [SEP]   each token sees itself and those after it

15 % of the tokens of both texts are chosen as in BERT, but one draw of five takes two or three tokens in a row. Under
sequence_to_sequence the last [SEP] may be masked too: so the model learns to end. The masks are ranks
(`encoder_ranks`): a token sees those whose rank is at most its own.

The released code holds the fine-tuning alone; from it are the runs of tokens, the [SEP], and the token types: 0 and 1
bidirectional, 2 left to right, 4 and 5 sequence to sequence (3, right to left, is what they leave free). A text b that
was drawn from another document is there for next-sentence prediction alone: such a pair is always bidirectional. So is
one that is made of the last sentence of a document, to which BERT's rules add a drawn text.
Paper: https://arxiv.org/abs/1905.03197
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

import jax
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig
from jaxpt.data.calls import Call, Pipeline, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.objectives.base import Batch, Features
from jaxpt.objectives.masked_lm import MaskedLM, MaskedLMBatches, MaskedLMLoss

KINDS = ("bidirectional", "sequence_to_sequence", "left_to_right", "right_to_left")
Weight = Annotated[float, Field(ge=0)]


class UniLM(MaskedLM):
    """Hyperparameters of UniLM; the defaults are the paper's."""

    kind: Literal["unilm"] = "unilm"
    bidirectional: Weight = 2.0
    """Share of the pairs under this mask, in any unit, as those of the others."""
    sequence_to_sequence: Weight = 2.0
    left_to_right: Weight = 1.0
    right_to_left: Weight = 1.0
    unit: Literal["run"] = "run"
    """A run of tokens is chosen at a time."""
    run_probability: Fraction = 0.2
    """Chance that a draw takes 2 … max_words tokens in a row, each number as likely; else it takes one."""
    types_of_masks: bool = True
    """Each mask has token types of its own (`model.token_types: 6`); false: 0 in the first text, 1 in the second."""

    @property
    def batches(self) -> UniLMBatches:
        return UniLMBatches(self)

    @property
    def loss(self) -> UniLMLoss:
        return UniLMLoss(self)

    def shares(self) -> list[float]:
        """Probability of each mask, in the order of `KINDS`.

        Example:
          >>> [round(6 * share) for share in UniLM().shares()]
          [2, 2, 1, 1]
        """
        weights = [getattr(self, kind) for kind in KINDS]
        return [weight / sum(weights) for weight in weights]

    def word_shares(self) -> list[float]:
        """Probability of 1, 2, … tokens in a run.

        Example:
          >>> UniLM().word_shares()
          [0.8, 0.1, 0.1]
        """
        more = (self.max_words or 3) - 1
        return [1 - self.run_probability, *[self.run_probability / more] * more] if more else [1.0]

    @property
    def random_share(self) -> float:
        """Share of all pairs whose second text is drawn: half of the bidirectional ones."""
        return self.shares()[0] / 2 if self.next_sentence else 0.0

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if not any(getattr(self, kind) for kind in KINDS):
            raise UserError(f"objective.{KINDS[0]}: all four shares are 0; the paper's are 2, 2, 1 and 1")
        if self.next_sentence and not self.bidirectional:
            raise UserError("objective.bidirectional: 0 leaves no pair for next_sentence; set it to false")
        for name, only in (("sentence_order", False), ("inputs", None)):
            if getattr(self, name) != only:
                raise UserError(f"objective.{name} is not for unilm, whose inputs are BERT's pairs")
        super().check(model, length, vocabulary)
        if "ranks" not in inspect.signature(type(model.build()).encode).parameters:
            raise UserError(
                f"model.kind: {model.kind} does not go with objective.kind: unilm: its encode takes no ranks, which "
                "say what each token may see; that of bert, roberta, albert and distilbert does"
            )
        wanted, types = 6 if self.types_of_masks else 2, getattr(model, "token_types", 0)
        if types < wanted and (types or self.types_of_masks):
            raise UserError(
                f"model.token_types: {types} is too few for the masks' token types, set model.token_types={wanted}"
                + (" or objective.types_of_masks=false" if self.types_of_masks else " (or 0: none)")
            )


class UniLMBatches(MaskedLMBatches):
    """BERT's pairs, each under one of the attention masks."""

    h: UniLM

    def features(self, length: int) -> Features:
        of_masks = {"encoder_ranks": ((length,), "int32"), "masked_kinds": ((self.h.predictions(length),), "int32")}
        return super().features(length) | of_masks

    def _offline(self, length: int, special: dict[str, Any], seed: int) -> tuple[Call, ...]:
        pairs = {
            "length": length,
            "short_probability": self.h.short_probability,
            "dupe_factor": self.h.dupe_factor,
            "seed": seed,
            "random_share": self.h.random_share,
            "least": 2,
        }
        make = Call(preprocessors.sentence_pairs.make, {**pairs, **special})
        return Call(preprocessors.documents.tokenize_sentences), make

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        pipeline, rest = super().pipeline(length, vocabulary, seed), 1 - self.h.random_share
        bidirectional, *others = self.h.shares()
        shares = [share / rest for share in (bidirectional - self.h.random_share, *others)]
        draw = {"shares": shares, "types_of_masks": self.h.types_of_masks, "next_sentence": self.h.next_sentence}
        return Pipeline(pipeline.offline, (Call(preprocessors.unilm.draw_mask, draw), *pipeline.online))

    def text_tokens(self, records: int, tokens: int) -> int:
        return tokens - 3 * records  # [CLS] and two [SEP], also without next_sentence

    def static_mask_copies(self) -> int | None:
        return 1 if self.h.static_masking else None  # each pass has pairs of its own


class UniLMLoss(MaskedLMLoss):
    """BERT's loss; the cross-entropy under each attention mask is a metric."""

    h: UniLM

    def metric_weights(self, batch: Batch) -> dict[str, jax.Array]:
        weights, kinds = batch["masked_weights"], batch["masked_kinds"]
        return {f"{name}_loss": weights * (kinds == kind) for kind, name in enumerate(KINDS) if getattr(self.h, name)}
