"""ELMo's objective: a forward and a backward language model, whose states go on from batch to batch.

    document    a b c                            forward inputs  <S> a b c    targets  a b c </S>
                                                 backward inputs </S> c b a   targets  c b a <S>

    L = −½ · (mean log p(w_t | w_1 … w_{t−1}) + mean log p(w_t | w_{t+1} … w_T))

Both directions share the words' vectors and the softmax. In training the softmax is over the targets and `samples`
other words (`sampled_softmax`), in evaluation over all. Documents are laid end to end, for the backward model each from
its end; a row goes on where the row of the batch before ended. As in the published code the token that opens a document
is no target, the one that closes it no input. Words that the vocabulary does not have are <UNK>, as inputs too, where
the published code reads their characters. The published code takes the sum over a window's tokens: its clipping and
AdaGrad's first accumulator are of a gradient `data.length` times as large.
Paper: https://arxiv.org/abs/1802.05365

Shapes: B batch · L length · P width of a direction
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import DataSpec, text_windows
from jaxpt.errors import UserError
from jaxpt.models.base import Bound, compute_dtype
from jaxpt.models.heads.softmax import Softmax
from jaxpt.models.network import Head, Network
from jaxpt.objectives.base import (
    Baseline,
    Batch,
    LossOutputs,
    Objective,
    batch_feature,
    keep_rows,
    memory_shapes,
    transpose_carry,
)
from jaxpt.objectives.losses import token_loss
from jaxpt.objectives.sampled_softmax import sampled_loss


class BidirectionalLM(Objective):
    """Hyperparameters of the two language models; the defaults are ELMo's."""

    family: ClassVar[str] = "encoder"

    kind: Literal["bidirectional_lm"] = "bidirectional_lm"
    samples: PositiveInt | None = 8192
    """Words that the softmax of training is over, besides the targets; null: all."""
    carry: bool = True
    """Carry the state of each row to the next batch. False: shuffled records, each read from a state of zeros."""
    has_softmax: bool = True
    """False: the two models without a softmax, as they were published. They give states, and cannot be trained."""
    reset_at_documents: bool = False
    """The state becomes zero where a document begins; ELMo's goes on."""

    def data_spec(self, length: int) -> DataSpec:
        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            ends = {"bos": vocabulary.bos, "eos": vocabulary.eos}
            known = {"unk": vocabulary.unk, "spelled_from": vocabulary.spelled_from}
            room = 2 * (length + 1)
            tokenize, cut = text_windows(room, join=True, overlap=2, shortest=room)
            options = {"length": length, "reset_at_documents": self.reset_at_documents}
            return Transforms(
                # Version 1 also had each document's closing token among the inputs.
                offline=(tokenize, Call(preprocessors.bidirectional_lm.both_directions, ends | known, version=2), cut),
                online=(Call(preprocessors.bidirectional_lm.features, options | ends),),
            )

        names = ("encoder_input_tokens", "encoder_segment_ids", "forward_target_tokens",
                 "backward_input_tokens", "backward_segment_ids", "backward_target_tokens")  # fmt: skip
        return DataSpec(
            features={**dict.fromkeys(names, ((length,), "int32")), "target_weights": ((length,), "float32")},
            transforms=transforms,
            no_packing="fills every row with one record; remove data.packing",
            overhead_tokens=2,  # windows overlap by a token of each direction
        )

    def heads(self, model: ModelConfig) -> dict[str, Head]:
        if not self.has_softmax:
            return {}
        state = jax.ShapeDtypeStruct((1, 1, model.embed_dim // 2), jnp.float32)
        return {"softmax": Head(Softmax(model.vocab_size, model.embed_dim // 2, compute_dtype(model)), (state,))}

    def coefficients(self) -> dict[str, float]:
        return {"bidirectional_lm": 1.0}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"bidirectional_lm": 2 * batch["target_weights"].sum()}

    def loss(self, model: Bound, batch: Batch, carry: Any = None) -> Any:
        memory = None
        ids = (batch["encoder_segment_ids"], batch["backward_segment_ids"])
        if carry is not None:
            memory = transpose_carry(_continued(carry, ids) if self.reset_at_documents else carry)
        # The backward model reads from the last token to the first: its rows are in the order in which it reads.
        output = model.bidirectional(
            batch["encoder_input_tokens"], batch["backward_input_tokens"][:, ::-1], ids[0], ids[1][:, ::-1], memory
        )
        hidden_Bx2LxP = jnp.concatenate([output.hidden.forward, output.hidden.backward[:, ::-1]], axis=1)
        outputs = self._of_states(model, hidden_Bx2LxP, batch)
        return outputs if carry is None else (*outputs, transpose_carry(output.memory))

    def _of_states(self, model: Bound, hidden_Bx2LxP: jax.Array, batch: Batch) -> LossOutputs:
        """The loss of both directions, one beside the other."""
        projection = model.heads["softmax"].projection()
        targets = jnp.concatenate([batch["forward_target_tokens"], batch["backward_target_tokens"]], axis=1)
        weights, none = batch["target_weights"], jnp.zeros_like(batch["target_weights"])
        both = jnp.concatenate([weights, weights], axis=1)
        if self.samples is not None and model.rngs:
            key = model.rngs["sample"]
            return {"bidirectional_lm": sampled_loss(hidden_Bx2LxP, projection, targets, both, key, self.samples)}, {}
        directions = {"forward_loss": [weights, none], "backward_loss": [none, weights]}
        total, metrics = token_loss(
            hidden_Bx2LxP, projection, targets, both,
            eval_mask=jnp.concatenate([batch["eval_mask"]] * 2, axis=1) if "eval_mask" in batch else None,
            metric_weights={name: jnp.concatenate(parts, axis=1) for name, parts in directions.items()},
            z_loss=self.z_loss, chunk=self.loss_chunk,
        )  # fmt: skip
        return {"bidirectional_lm": total}, metrics

    @property
    def carries(self) -> bool:
        return self.carry

    def carry_shapes(self, network: Network, rows: int) -> Any:
        if not self.carry:
            return None
        self.check_model(network.config)
        return memory_shapes(network, rows, lambda model, x: model.bidirectional(x, x, x, x).memory)

    @property
    def baseline(self) -> Baseline:
        mask = batch_feature("target_weights")
        return Baseline("unigram", "words in both directions", mask, feature="forward_target_tokens")

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        for name in ("bos", "eos", "unk"):
            if getattr(vocabulary, name) is None:
                raise UserError(
                    f"{self.kind} needs a vocabulary with {name.upper()}; data.tokenizer.kind: spelled_words has it"
                )
        self.check_model(model)
        if not self.has_softmax:
            raise UserError(
                "objective.has_softmax: false: the model gives states and predicts no words; true draws a new softmax"
            )
        if self.z_loss and self.samples is not None:
            raise UserError("objective.z_loss: of a sampled softmax Z is not known; remove it, or set samples: null")

    def check_model(self, model: ModelConfig) -> None:
        """Raises UserError if the model is not two language models."""
        if not hasattr(model.build(), "bidirectional"):
            raise UserError(
                f"model.kind: {model.kind} has no forward and backward language model, which objective.kind: "
                f"{self.kind} trains; model.kind: elmo has them"
            )


def _continued(carry: Any, ids: tuple[jax.Array, jax.Array]) -> Any:
    """The state, zero in rows that do not begin with segment 1: that goes on from the batch before."""
    continues = [ids_BxL[:, 0] <= 1 for ids_BxL in ids]

    def of_layer(both: Any) -> Any:
        return type(both)(*map(keep_rows, continues, both))

    return tuple(tuple(of_layer(both) for both in segment) for segment in carry)
