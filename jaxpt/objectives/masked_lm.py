"""BERT's objective: guess the tokens that were masked, and whether the second text follows the first.

    text     [CLS] the cat sat [SEP] it purred [SEP]
    inputs   [CLS] the [MASK] sat [SEP] it purred [SEP]      masked_positions 2, masked_targets cat, label 0

15 % of the tokens are chosen; of these 80 % become [MASK], 10 % a random token, 10 % stay. All chosen positions carry
loss. The total is the masked-LM cross-entropy plus the next-sentence cross-entropy.
Paper: https://arxiv.org/abs/1810.04805
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from jaxpt.config import Fraction, ModelConfig, PositiveInt
from jaxpt.errors import UserError
from jaxpt.objectives.base import Call, Objective, Pipeline, Vocabulary

if TYPE_CHECKING:
    import flax.linen as nn
    import jax
    import numpy as np

    from jaxpt.objectives.base import Batch, Metrics


class MaskedLM(Objective):
    """Hyperparameters of masked LM with next-sentence prediction; the defaults are BERT's."""

    family: ClassVar[str] = "encoder"
    baseline: ClassVar[str] = "unigram"
    probe_name: ClassVar[str] = "positions replaced by [MASK]"

    kind: Literal["masked_lm"] = "masked_lm"
    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of tokens chosen, special ones counted in the length."""
    max_predictions: PositiveInt | None = None
    """Most tokens chosen in an example; ceil(mask_rate · length) by default (20 at 128, 77 at 512, as BERT)."""
    mask_probability: Fraction = 0.8
    """Share of the chosen tokens that become [MASK]."""
    random_probability: Fraction = 0.1
    """Share of the chosen tokens that become a random token; the rest stay."""
    next_sentence: bool = True
    """Pairs of texts and the next-sentence loss; false: windows of running text, [CLS] … [SEP]."""
    short_probability: Fraction = 0.1
    """Chance, once for each document and pass, that its pairs are shorter than `data.length`."""
    dupe_factor: PositiveInt = 10
    """Passes over the documents, each with other pairs."""
    static_masking: bool = False
    """Draw masks once (BERT's data): those of each pass, or of `dupe_factor` copies of running text that epochs take in
    turn; false: new ones in every epoch (RoBERTa's dynamic masking)."""
    join_documents: bool = True
    """Without next_sentence, cut windows from the documents laid end to end; false: none crosses a document's end."""

    def predictions(self, length: int) -> int:
        """Size of the masked features."""
        return self.max_predictions or math.ceil(self.mask_rate * length)

    def coefficients(self) -> dict[str, float]:
        return {"masked_lm": 1.0, "next_sentence": 1.0} if self.next_sentence else {"masked_lm": 1.0}

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        for name in ("cls", "sep", "mask"):
            if getattr(vocabulary, name) is None:
                wanted = f"masked_lm needs a vocabulary with [{name.upper()}]"
                raise UserError(f"{wanted}; data.tokenizer.kind: wordpiece has it")
        if self.next_sentence and not getattr(model, "next_sentence", False):
            raise UserError(f"model.kind: {model.kind} has no next-sentence head; set objective.next_sentence=false")
        if length < 8:
            raise UserError(f"data.length: {length} is too short for masked_lm, at least 8 is needed")
        if self.predictions(length) > length - 3:
            n = self.predictions(length)
            raise UserError(f"objective.max_predictions: {n} is more than fit into data.length {length}")
        if self.mask_probability + self.random_probability > 1:
            raise UserError("objective.mask_probability + objective.random_probability is more than 1")

    def features(self, length: int) -> dict[str, tuple[tuple[int, ...], str]]:
        n = self.predictions(length)
        sequence = ("encoder_input_tokens", "encoder_token_types", "encoder_segment_ids", "encoder_positions")
        masked = {"masked_positions": "int32", "masked_targets": "int32", "masked_weights": "float32"}
        pairs = {"next_sentence_labels": "int32", "next_sentence_weights": "float32"}
        return {
            **dict.fromkeys(sequence, ((length,), "int32")),
            **{name: ((n,), dtype) for name, dtype in masked.items()},
            **{name: ((), dtype) for name, dtype in pairs.items() if self.next_sentence},
        }

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        special = {"cls": vocabulary.cls, "sep": vocabulary.sep}
        pairs = {
            "length": length,
            "short_probability": self.short_probability,
            "dupe_factor": self.dupe_factor,
            "seed": seed,
        }
        prepare = (
            (Call("documents.tokenize_sentences"), Call("sentence_pairs.make", {**pairs, **special}))
            if self.next_sentence
            else (
                Call("documents.tokenize"),
                Call("windows.cut", {"length": length - 2, "join": self.join_documents}),
                Call("windows.enclose", special),
            )
        )
        mask = {
            "rate": self.mask_rate,
            "max_predictions": self.predictions(length),
            "mask": vocabulary.mask,
            "mask_probability": self.mask_probability,
            "random_probability": self.random_probability,
            "vocab_size": vocabulary.size,
            **special,
        }
        return Pipeline(
            prepare=prepare,
            present=(
                Call("masked_lm.mask", mask),
                Call("features.encoder", {"length": length, "max_predictions": self.predictions(length)}),
            ),
        )

    def footprint(self, lengths: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        import numpy as np

        tokens = lengths["tokens"]
        masked = np.minimum(np.maximum(np.round(self.mask_rate * tokens), 1), np.maximum(tokens - 2, 0))
        return {"encoder_input_tokens": tokens, "masked_positions": masked.astype(np.int64)}

    def check_packing(self) -> None:
        if self.next_sentence:
            raise UserError("data.packing: a row has one next-sentence label; set objective.next_sentence: false")

    def copies(self) -> int | None:
        if not self.static_masking:
            return None
        return 1 if self.next_sentence else self.dupe_factor  # each pass has pairs of its own

    def probe(self, batch: dict[str, np.ndarray], vocabulary: Vocabulary) -> np.ndarray:
        import numpy as np

        at_masked = np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], axis=1)
        return batch["masked_weights"] * (at_masked == vocabulary.mask)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        sums = {"masked_lm": batch["masked_weights"].sum()}
        return sums | {"next_sentence": batch["next_sentence_weights"].sum()} if self.next_sentence else sums

    def loss(
        self, model: nn.Module, params: Any, batch: Batch, rngs: dict[str, jax.Array] | None = None
    ) -> tuple[dict[str, jax.Array], Metrics]:
        import jax.numpy as jnp

        from jaxpt.losses import cross_entropy, token_loss
        from jaxpt.objectives.base import apply

        hidden = apply(
            model,
            params,
            "encode",
            batch["encoder_input_tokens"],
            token_types=batch["encoder_token_types"],
            segment_ids=batch["encoder_segment_ids"],
            positions=batch["encoder_positions"],
            rngs=rngs,
        )
        # Only the chosen positions go through the vocabulary projection.
        chosen = jnp.take_along_axis(hidden, batch["masked_positions"][..., None], axis=1)
        total, metrics = token_loss(
            lambda x: apply(model, params, "logits", x, padded=True),
            chosen,
            batch["masked_targets"],
            batch["masked_weights"],
            probe_weights=batch.get("probe_weights"),
            z_loss=self.z_loss,
            chunk=self.loss_chunk,
        )
        sums = {"masked_lm": total}
        if self.next_sentence:
            logits = apply(model, params, "next_sentence", hidden, rngs=rngs)
            labels, weights = batch["next_sentence_labels"], batch["next_sentence_weights"]
            sums["next_sentence"] = (cross_entropy(logits, labels) * weights).sum()
            correct = (logits.argmax(-1) == labels) * weights
            metrics["next_sentence_accuracy"] = (correct.sum(), weights.sum())
        return sums, metrics
