"""XLNet's objective: predict some tokens of a text in a random order, each from all those before it in that order.

    text     the running text goes on  A of it [SEP] B [SEP] [CLS]        types 0 … 0 1 1 2
    ranks     -1     0     -1   -1  2                                     "running" sees the, text, goes; "on" sees all

About one token in six is a target; the others are context to all. A query stream, which knows a target's place and not
the token, predicts it from the content stream of lower ranks. With memory, the states of the text before a row's are
seen too: row b of a batch goes on with row b of the batch before, `reuse_length` tokens further on.
`jaxpt.data.preprocessors.permutation_lm` has the rules. XLNet's program feeds half of the rows reversed (`bi_data`,
written for TPUs): here all run forward. Paper: https://arxiv.org/abs/1906.08237
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Pipeline, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.losses import token_loss
from jaxpt.models.base import Bound
from jaxpt.models.network import Network
from jaxpt.objectives.base import Arrays, Batch, Batches, Features, Judge, Loss, Metrics, Objective


class PermutationLM(Objective):
    """Hyperparameters of permutation LM; the defaults are XLNet's."""

    family: ClassVar[str] = "encoder"

    kind: Literal["permutation_lm"] = "permutation_lm"
    num_predict: PositiveInt | None = None
    """Tokens chosen in an example, SEP and CLS among them, which carry no loss; by default length / `context`, rounded
    down (85 at 512, XLNet's)."""
    max_ngram: PositiveInt = 5
    """Most tokens of an n-gram; n is drawn with p ∝ 1/n."""
    context: PositiveInt = 6
    """Tokens of context around an n-gram for each of its tokens (K, XLNet's `mask_alpha`)."""
    reuse_length: PositiveInt | None = None
    """The first so many tokens are the running text, which is permuted by itself and goes into the memory, and by which
    the next record is further on; half of the length by default (256 at 512)."""
    permutation_size: PositiveInt | None = None
    """Tokens that are permuted together; the smaller part of the length by default (256 at 512)."""
    inputs: Literal["pairs", "windows"] = "pairs"
    """`pairs`: running text with A, then B, which goes on from A or (50 %) is drawn from the corpus, as in XLNet's
    data, though nothing is asked about it; `windows`: running text alone, then SEP and CLS."""
    memory: bool = True
    """Carry the model's memory (`model.memory_length`, `model.reuse_length`) from batch to batch, each row its own.
    Where a row comes to the end of a document or of an epoch, the old memory stays, as in XLNet's program. False:
    records in random order, no memory."""

    @property
    def batches(self) -> PermutationLMBatches:
        return PermutationLMBatches(self)

    @property
    def loss(self) -> PermutationLMLoss:
        return PermutationLMLoss(self)

    @property
    def judge(self) -> PermutationLMJudge:
        return PermutationLMJudge(self)

    def predictions(self, length: int) -> int:
        """Size of the masked features."""
        return self.num_predict or length // self.context

    def reused(self, length: int) -> int:
        """Tokens of running text."""
        return self.reuse_length or length // 2

    def permuted(self, length: int) -> int:
        """Tokens that are permuted together."""
        return self.permutation_size or min(self.reused(length), length - self.reused(length))

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        for name in ("cls", "sep"):
            if getattr(vocabulary, name) is None:
                wanted = f"{self.kind} needs a vocabulary with [{name.upper()}]"
                raise UserError(f"{wanted}; data.tokenizer.kind: wordpiece has it")
        self.check_model(model)
        if length < 12:
            raise UserError(f"data.length: {length} is too short for {self.kind}, at least 12 is needed")
        reuse = self.reused(length)
        if reuse > length - 5:
            raise UserError(
                f"objective.reuse_length: {reuse} leaves no room for A, B, SEP, SEP and CLS in data.length {length}"
            )
        if self.predictions(length) > length - 3:
            n = self.predictions(length)
            raise UserError(f"objective.num_predict: {n} is more than fit into data.length {length}")
        if self.permuted(length) > min(reuse, length - reuse):
            raise UserError(
                f"objective.permutation_size: {self.permuted(length)} is more than the smaller of the parts permuted "
                f"by themselves, {reuse} and {length - reuse} tokens"
            )
        if self.memory and model.reuse_length != reuse:
            raise UserError(
                f"model.reuse_length: {model.reuse_length} must be the {reuse} tokens by which a row goes on "
                "(objective.reuse_length, by default half of data.length): the memory holds the text before"
            )

    def check_model(self, model: ModelConfig) -> None:
        """Raises UserError where the model has no two streams, or no memory of one size."""
        if not hasattr(model.build(), "streams"):
            raise UserError(
                f"model.kind: {model.kind} has one stream, objective.kind: {self.kind} needs a content and a query "
                "stream; model.kind: xlnet has them"
            )
        if self.memory and model.memory_length is None:
            raise UserError(
                "objective.memory wants model.memory_length (XLNet: 384 at data.length 512); "
                "objective.memory=false does without"
            )


class PermutationLMBatches(Batches):
    """Running text, its tokens in a random order of prediction."""

    h: PermutationLM

    def features(self, length: int) -> Features:
        n = self.h.predictions(length)
        sequence = ("encoder_input_tokens", "encoder_token_types", "encoder_segment_ids", "encoder_order")
        masked = {"masked_positions": "int32", "masked_targets": "int32", "masked_weights": "float32"}
        return {
            **dict.fromkeys(sequence, ((length,), "int32")),
            **{name: ((n,), dtype) for name, dtype in masked.items()},
        }

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        special = {"cls": vocabulary.cls, "sep": vocabulary.sep}
        reuse = self.h.reused(length)
        permute = {
            "reuse": reuse,
            "predictions": self.h.predictions(length),
            "permutation_size": self.h.permuted(length),
            "max_ngram": self.h.max_ngram,
            "context": self.h.context,
        }
        return Pipeline(
            offline=self._offline(length, vocabulary.eos, special, seed),
            online=(
                Call(preprocessors.permutation_lm.permute, permute | special),
                Call(preprocessors.features.encoder, {"length": length, "max_predictions": self.h.predictions(length)}),
            ),
        )

    def _offline(self, length: int, separator: int | None, special: dict[str, Any], seed: int) -> tuple[Call, ...]:
        """From documents to records."""
        reuse = self.h.reused(length)
        if self.h.inputs == "pairs":
            pairs = {"length": length, "reuse": reuse, "seed": seed, "separator": separator}
            segments = Call(preprocessors.permutation_lm.segments, pairs | special)
            return Call(preprocessors.documents.tokenize_sentences), segments
        room = length - 2
        overlap = room - reuse if self.h.memory else 0
        windows = {"length": room, "join": True, "separator": separator, "overlap": overlap, "shortest": room}
        cut, close = Call(preprocessors.windows.cut, windows), Call(preprocessors.permutation_lm.close, special)
        return Call(preprocessors.documents.tokenize), cut, close

    def check_packing(self) -> None:
        raise UserError(f"data.packing: objective.kind: {self.h.kind} fills every row with one record")


class PermutationLMLoss(Loss):
    """The cross-entropy of the predicted tokens, from the query stream."""

    h: PermutationLM

    def coefficients(self) -> dict[str, float]:
        return {"permutation_lm": 1.0}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"permutation_lm": batch["masked_weights"].sum()}

    def __call__(self, model: Bound, batch: Batch, carry: Any = None) -> Any:
        turned = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), carry)  # rows first ⇄ layers first
        output = model.streams(
            batch["encoder_input_tokens"],
            token_types=batch["encoder_token_types"],
            segment_ids=batch["encoder_segment_ids"],
            ranks=batch["encoder_order"],
            targets=batch["masked_positions"],
            memory=turned,
        )
        total, metrics = token_loss(
            model.lm_states(output.hidden.query_BxPxD),
            model.output_projection(),
            batch["masked_targets"],
            batch["masked_weights"],
            eval_mask=batch.get("eval_mask"),
            z_loss=self.h.z_loss,
            chunk=self.h.loss_chunk,
        )
        sums: tuple[dict[str, jax.Array], Metrics] = {"permutation_lm": total, **output.aux}, metrics
        return sums if carry is None else (*sums, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), output.memory))

    @property
    def carries(self) -> bool:
        return self.h.memory

    def carry(self, network: Network, rows: int) -> Any:
        if not self.h.memory:
            return None
        self.h.check_model(network.config)
        tokens = jax.ShapeDtypeStruct((rows, 1), jnp.int32)
        memory = jax.eval_shape(lambda p, x: network.bind(p).streams(x).memory, network.shapes(), tokens)
        size = network.config.memory_length
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((rows, x.shape[0], size, *x.shape[3:]), x.dtype), memory
        )  # fmt: skip


class PermutationLMJudge(Judge):
    """Every predicted token counts, beside their unigram entropy."""

    baseline: ClassVar[str] = "unigram"
    target_name: ClassVar[str] = "predicted tokens"

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        return batch["masked_weights"]
