"""Language modelling of text that continues from batch to batch, with truncated backpropagation through time.

    row b    the cat sat on | the mat and ran | …      each batch begins in the state in which the one before ended

No gradient passes from one batch to the next. With `bptt` the windows have random lengths, row by row, drawn once when
records are made; the end of a shorter row is padding, over which the state passes. (AWD-LSTM's code draws one length
for all rows of a batch, anew in each epoch, and scales the learning rate with it; here the loss is a mean over the
tokens of all rows, whose number hardly varies, and the places where rows begin are other ones in each epoch.)

A forward model has the state of all text before a document, as in the released code; `reset_at_documents` makes it zero
where a document starts. Papers: https://arxiv.org/abs/1708.02182, https://arxiv.org/abs/1801.06146
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import jax
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import DataSpec, text_windows
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.network import Network
from jaxpt.objectives.activation import ActivationRegularizer
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, keep_rows, memory_shapes, transpose_carry
from jaxpt.objectives.causal_lm import DecoderLM, check_separator, decoder_features, lengths_of_texts


class RecurrentLM(DecoderLM):
    """Hyperparameters of language modelling with a carried state."""

    kind: Literal["recurrent_lm"] = "recurrent_lm"
    carry: bool = True
    """Carry the model's state of each row to the next batch. False: windows in random order, which may share rows."""
    direction: Literal["forward", "backward"] = "forward"
    """`backward`: each document is read from its last token to its first."""
    bptt: PositiveInt | None = None
    """Mean length of windows of random length (AWD-LSTM: 70), which `data.length` limits. By default all windows have
    `data.length` tokens."""
    bptt_std: Annotated[float, Field(ge=0)] = 5.0
    """Standard deviation of their lengths."""
    bptt_half: Fraction = 0.05
    """Share of windows whose mean length is bptt / 2."""
    separator: bool = True
    """Append EOS to every document."""
    reset_at_documents: bool = False
    """The state is zero at the start of each document. The EOS between two documents belongs to the second one, so
    every token is still a target."""
    regularizer: ActivationRegularizer = ActivationRegularizer()
    """AR and TAR."""

    def data_spec(self, length: int) -> DataSpec:
        features = decoder_features(length)
        if self.reset_at_documents:
            features = {**features, "decoder_continues": ((), "int32")}

        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            opening = {"opening": vocabulary.eos, "continues": True} if self.reset_at_documents else {}
            return Transforms(
                offline=self._offline(length, vocabulary.eos if self.separator else None, seed),
                online=(Call(preprocessors.features.decoder, {"length": length, **opening}),),
            )

        return DataSpec(
            features=features,
            transforms=transforms,
            max_packed_lengths=None if self.carry else lengths_of_texts,
            no_packing="continues each row in the next batch; set objective.carry=false",
            overhead_tokens=1,  # windows overlap by one token
        )

    def _offline(self, length: int, separator: int | None, seed: int) -> tuple[Call, ...]:
        """From documents to windows."""
        tokenize, cut = text_windows(length + 1, join=True, separator=separator, overlap=1, shortest=2)
        if self.bptt is not None:
            lengths = {"longest": length, "mean": self.bptt, "std": self.bptt_std, "half": self.bptt_half}
            cut = Call(preprocessors.windows.cut_random, {**lengths, "seed": seed, "separator": separator})
        reverse = (Call(preprocessors.documents.reverse),) if self.direction == "backward" else ()
        return tokenize, *reverse, cut

    def coefficients(self) -> dict[str, float]:
        return super().coefficients() | self.regularizer.coefficients()

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return super().weights(batch) | self.regularizer.weights(batch["decoder_segment_ids"])

    def loss(self, model: Bound, batch: Batch, carry: Any = None) -> Any:
        if carry is None:
            return super().loss(model, batch)
        if "decoder_continues" in batch:
            carry = keep_rows(batch["decoder_continues"] > 0, carry)
        tokens, ids = batch["decoder_input_tokens"], batch["decoder_segment_ids"]
        output = model.decode(tokens, segment_ids=ids, memory=transpose_carry(carry))
        sums, metrics = self.loss_from_hidden(model, output.hidden, batch)
        return {**sums, **output.aux}, metrics, transpose_carry(output.memory)

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        dropped, segments = model.lm_states(hidden), batch["decoder_segment_ids"]
        total, metrics = self.vocab_loss(model, dropped, batch, "decoder_target_tokens", "decoder_loss_weights")
        return {self.kind: total, **self.regularizer.sums(model, hidden, dropped, segments)}, metrics

    @property
    def reads_backward(self) -> bool:
        return self.direction == "backward"

    def check_writes(self, path: object) -> None:
        """Raises UserError of a backward model, too: its likelihoods are of texts that are read from their end."""
        if self.reads_backward:
            raise UserError(
                f"{path}: reads text from its end (objective.direction: backward), so it neither scores nor writes "
                "texts; take a forward model"
            )
        super().check_writes(path)

    @property
    def carries(self) -> bool:
        return self.carry

    def carry_shapes(self, network: Network, rows: int) -> Any:
        return memory_shapes(network, rows, lambda model, x: model.decode(x).memory) if self.carry else None

    @property
    def baseline(self) -> Baseline:
        return dataclasses.replace(super().baseline, name="trigram")

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        check_separator(self.separator, self.reset_at_documents, vocabulary)
        if self.bptt is not None and self.bptt > length:
            raise UserError(f"objective.bptt: {self.bptt} is above data.length {length}, which limits all windows")
        if self.carry and not jax.tree.leaves(self.carry_shapes(self.network(model), 1)):
            raise UserError(
                f"objective.carry: model.kind: {model.kind} has no state to carry; model.kind: awd_lstm has one, "
                "or set objective.kind: causal_lm"
            )
