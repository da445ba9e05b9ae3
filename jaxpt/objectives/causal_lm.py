"""Causal language modelling: every token is predicted from those before it.

    text     a b c d
    inputs   a b c
    targets  b c d

Documents are laid end to end, each closed by EOS, and cut into windows that overlap in one token, so that every
token but the first is a target exactly once. Paper (GPT-2): https://openai.com/research/better-language-models
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError
from jaxpt.objectives.base import Call, DecoderLoss, Pipeline, Vocabulary

if TYPE_CHECKING:
    import numpy as np

    from jaxpt.models.base import Bound
    from jaxpt.models.output import Output
    from jaxpt.objectives.base import Batch


class DecoderLM(DecoderLoss):
    """Base of objectives whose one loss is the cross-entropy of a decoder's next tokens."""

    family: ClassVar[str] = "decoder"
    baseline: ClassVar[str] = "bigram"
    target_name: ClassVar[str] = "all target tokens"

    def features(self, length: int) -> dict[str, tuple[tuple[int, ...], str]]:
        names = ("decoder_input_tokens", "decoder_target_tokens", "decoder_segment_ids", "decoder_positions")
        return {**dict.fromkeys(names, ((length,), "int32")), "decoder_loss_weights": ((length,), "float32")}

    def eval_mask(self, batch: dict[str, np.ndarray], vocabulary: Vocabulary) -> np.ndarray:
        return batch["decoder_loss_weights"]

    def output(self, model: Bound, batch: Batch) -> Output:
        prefix = {"prefix": batch["decoder_prefix"] > 0} if "decoder_prefix" in batch else {}
        return model.decode(
            batch["decoder_input_tokens"],
            segment_ids=batch["decoder_segment_ids"],
            positions=batch["decoder_positions"],
            **prefix,
        )


class CausalLM(DecoderLM):
    """Hyperparameters of causal language modelling."""

    kind: Literal["causal_lm"] = "causal_lm"
    join_documents: bool = True
    """Cut windows from the documents laid end to end; false: no window crosses a document's end."""
    separator: bool = True
    """Put EOS after every document."""
    reset_at_documents: bool = False
    """Documents that share a window do not see each other, and positions start again in each; the EOS between two
    belongs to the one after it, so that every token is still a target."""

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.separator and vocabulary.eos is None:
            raise UserError("causal_lm with separator: true needs a vocabulary with an end-of-text token")
        if self.reset_at_documents and not self.separator:
            raise UserError("objective.reset_at_documents: true finds documents by their EOS; set separator: true")

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        separator = vocabulary.eos if self.separator else None
        cut = {"length": length + 1, "join": self.join_documents, "separator": separator, "overlap": 1, "shortest": 2}
        opening = {"opening": vocabulary.eos} if self.reset_at_documents else {}
        return Pipeline(
            prepare=(Call("documents.tokenize"), Call("windows.cut", cut)),
            present=(Call("features.decoder", {"length": length, **opening}),),
        )

    def max_packed_lengths(self, lengths: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"decoder_input_tokens": lengths["tokens"] - 1}

    def text_tokens(self, records: int, tokens: int) -> int:
        return tokens - records  # windows overlap in one token
