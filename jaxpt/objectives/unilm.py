"""UniLM's objective: masked LM of pairs of texts with four kinds of attention masks, in one encoder.

    bidirectional         [CLS] a b [SEP] c d [SEP]   all tokens; with next-sentence prediction
    sequence_to_sequence  [CLS] a b [SEP] c d [SEP]   bidirectional in the first text, causal in the second
    left_to_right         [CLS] a b [SEP] c d [SEP]   each token and those before it
    right_to_left         [CLS] a b [SEP] c d [SEP]   each token and those after it

15 % of the tokens of both texts are selected as in BERT, but one draw of five selects two or three adjacent tokens;
what is over the number then is given up at random. With sequence_to_sequence the last [SEP] may be masked too, so the
model learns to stop. The masks are encoded as ranks (`encoder_ranks`): a token attends to tokens of equal or lower
rank.

The released code contains only the fine-tuning. The adjacent tokens, what is given up, the masked [SEP] and the token
types are from it: 0 and 1 bidirectional, 2 left to right, 4 and 5 sequence to sequence (3 is unused there; jaxpt uses
it for right to left). Pairs whose second text was drawn from another document are always bidirectional, because they
exist only for next-sentence prediction. This includes the pair of a document's last sentence. Paper:
https://arxiv.org/abs/1905.03197
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any, Literal

import jax
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.base import Batch
from jaxpt.objectives.masked_lm import MaskedLM

KINDS = ("bidirectional", "sequence_to_sequence", "left_to_right", "right_to_left")
Weight = Annotated[float, Field(ge=0)]


class UniLM(MaskedLM):
    """Hyperparameters of UniLM; the defaults are the paper's."""

    kind: Literal["unilm"] = "unilm"
    bidirectional: Weight = 2.0
    """Rate of pairs with this mask, relative to the other masks."""
    sequence_to_sequence: Weight = 2.0
    left_to_right: Weight = 1.0
    right_to_left: Weight = 1.0
    unit: Literal["run"] = "run"
    """Each draw selects a run of adjacent tokens."""
    run_probability: Fraction = 0.2
    """Probability that a draw selects 2 … max_words adjacent tokens (uniform) instead of one."""
    types_of_masks: bool = True
    """Each mask has separate token types (`model.token_types: 6`); false: 0 in the first text, 1 in the second."""

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
    def num_token_types(self) -> int:
        return 6 if self.types_of_masks else 2

    @property
    def random_share(self) -> float:
        """Fraction of pairs with a random second text: half of the bidirectional ones."""
        return self.shares()[0] / 2 if self.next_sentence else 0.0

    def data_spec(self, length: int) -> DataSpec:
        masked = super().data_spec(length)
        of_masks = {"encoder_ranks": ((length,), "int32"), "masked_kinds": ((self.predictions(length),), "int32")}

        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            inner, rest = masked.transforms(vocabulary, seed), 1 - self.random_share
            bidirectional, *others = self.shares()
            shares = [share / rest for share in (bidirectional - self.random_share, *others)]
            draw = {"shares": shares, "types_of_masks": self.types_of_masks, "next_sentence": self.next_sentence}
            return Transforms(inner.offline, (Call(preprocessors.unilm.draw_mask, draw), *inner.online))

        return dataclasses.replace(
            masked,
            features=masked.features | of_masks,
            transforms=transforms,
            overhead_tokens=3,  # [CLS] and two [SEP], also without next_sentence
            num_passes=self.dupe_factor,  # of pairs, also without next_sentence
            static_mask_copies=1 if self.static_masking else None,  # each pass has different pairs
        )

    def _offline(self, length: int, special: dict[str, Any], seed: int) -> tuple[Call, ...]:
        pairs = {
            "length": length,
            "short_probability": self.short_probability,
            "dupe_factor": self.dupe_factor,
            "seed": seed,
            "random_share": self.random_share,
            "least": 2,
        }
        make = Call(preprocessors.sentence_pairs.make, {**pairs, **special})
        return Call(preprocessors.documents.tokenize_sentences), make

    def metric_weights(self, batch: Batch) -> dict[str, jax.Array]:
        weights, kinds = batch["masked_weights"], batch["masked_kinds"]
        return {f"{name}_loss": weights * (kinds == kind) for kind, name in enumerate(KINDS) if getattr(self, name)}

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if not any(getattr(self, kind) for kind in KINDS):
            raise UserError(f"objective.{KINDS[0]}: all four rates are 0; the paper's are 2, 2, 1 and 1")
        if self.next_sentence and not self.bidirectional:
            raise UserError(
                "objective.bidirectional: 0 leaves no pairs for next_sentence; set objective.next_sentence=false"
            )
        for name, only in (("sentence_order", False), ("inputs", None)):
            if getattr(self, name) != only:
                raise UserError(f"objective.{name} is not supported by unilm, whose inputs are BERT's pairs; remove it")
        super().check(model, length, vocabulary)
        if "ranks" not in inspect.signature(type(model.build()).encode).parameters:
            raise UserError(
                f"model.kind: {model.kind} does not support objective.kind: unilm: its encode has no argument ranks; "
                "use model.kind: bert, roberta, albert or distilbert"
            )
        min_types, types = self.num_token_types, getattr(model, "token_types", 0)
        if types < min_types and (types or self.types_of_masks):
            raise UserError(
                f"model.token_types: {types} is too small for the masks' token types; set model.token_types={min_types}"
                + (" or objective.types_of_masks=false" if self.types_of_masks else " (or 0: none)")
            )
