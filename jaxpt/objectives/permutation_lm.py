"""XLNet's objective: predict some tokens of a text in a random order, each from all tokens before it in that order.

    text     the running text goes on  A of it [SEP] B [SEP] [CLS]        types 0 … 0 1 1 2
    ranks     -1     0     -1   -1  2                                     "running" sees the, text, goes; "on" sees all

About one token in six is a target; the others are context for all targets. The query stream contains a target's
position but not its token, and predicts it from content states of lower rank. With memory, a row also attends to cached
states: row b of a batch continues the text of row b of the previous batch, `reuse_length` tokens later.
`jaxpt.data.preprocessors.permutation_lm` has the details. Each document ends with the vocabulary's <eod>, or with its
EOS if it has no <eod>. XLNet's code reverses half of the rows (`bi_data`); jaxpt
does not. Paper: https://arxiv.org/abs/1906.08237
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import DataSpec, masked_features, text_windows
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.network import Network
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, Objective, batch_feature, memory_shapes, transpose_carry


class PermutationLM(Objective):
    """Hyperparameters of permutation LM; the defaults are XLNet's."""

    family: ClassVar[str] = "encoder"

    kind: Literal["permutation_lm"] = "permutation_lm"
    num_predict: PositiveInt | None = None
    """Number of selected tokens of an example, including SEP and CLS, which have no loss; default length // `context`
    (XLNet: 85 at 512)."""
    max_ngram: PositiveInt = 5
    """Maximum number of tokens of an n-gram; n has probability ∝ 1/n."""
    context: PositiveInt = 6
    """Context tokens per token of an n-gram (K, XLNet's `mask_alpha`)."""
    reuse_length: PositiveInt | None = None
    """Number of leading tokens that are continuous text: they are permuted separately and cached in the memory, and the
    next record starts after them. Default: half of the length (256 at 512)."""
    permutation_size: PositiveInt | None = None
    """Number of tokens that are permuted together; default min(reuse_length, length − reuse_length) (256 at 512)."""
    inputs: Literal["pairs", "windows"] = "pairs"
    """`pairs`: continuous text ending in A, then B, which follows A or (50 %) is drawn from the corpus, as in XLNet's
    data; there is no loss for it. `windows`: continuous text, then SEP and CLS."""
    memory: bool = True
    """Carry the memory (`model.memory_length`, `model.reuse_length`) of each row to the next batch. The memory is not
    reset at the end of a document or an epoch, as in XLNet's code. False: shuffled records, no memory."""

    def predictions(self, length: int) -> int:
        """Length of the masked features."""
        return self.num_predict or length // self.context

    def reused(self, length: int) -> int:
        """Number of continuous-text tokens."""
        return self.reuse_length or length // 2

    def permuted(self, length: int) -> int:
        """Number of tokens that are permuted together."""
        return self.permutation_size or min(self.reused(length), length - self.reused(length))

    def data_spec(self, length: int) -> DataSpec:
        n = self.predictions(length)
        permute = {
            "reuse": self.reused(length),
            "predictions": n,
            "permutation_size": self.permuted(length),
            "max_ngram": self.max_ngram,
            "context": self.context,
        }

        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            special = {"cls": vocabulary.cls, "sep": vocabulary.sep}
            separator = vocabulary.eos if vocabulary.eod is None else vocabulary.eod
            return Transforms(
                offline=self._offline(length, separator, special, seed),
                online=(
                    Call(preprocessors.permutation_lm.permute, permute | special, version=vocabulary.word_version),
                    Call(preprocessors.features.encoder, {"length": length, "max_predictions": n}),
                ),
            )

        return DataSpec(
            features=masked_features(("input_tokens", "token_types", "segment_ids", "order"), length, n),
            transforms=transforms,
            no_packing="fills every row with one record; remove data.packing",
        )

    def _offline(self, length: int, separator: int | None, special: dict[str, Any], seed: int) -> tuple[Call, ...]:
        """From documents to records."""
        reuse = self.reused(length)
        if self.inputs == "pairs":
            pairs = {"length": length, "reuse": reuse, "seed": seed, "separator": separator}
            segments = Call(preprocessors.permutation_lm.segments, pairs | special)
            return Call(preprocessors.documents.tokenize_sentences), segments
        room = length - 2
        overlap = room - reuse if self.memory else 0
        windows = text_windows(room, join=True, separator=separator, overlap=overlap, shortest=room)
        return *windows, Call(preprocessors.permutation_lm.close, special)

    def coefficients(self) -> dict[str, float]:
        return {"permutation_lm": 1.0}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"permutation_lm": batch["masked_weights"].sum()}

    def loss(self, model: Bound, batch: Batch, carry: Any = None) -> Any:
        output = model.streams(
            batch["encoder_input_tokens"],
            token_types=batch["encoder_token_types"],
            segment_ids=batch["encoder_segment_ids"],
            ranks=batch["encoder_order"],
            targets=batch["masked_positions"],
            memory=transpose_carry(carry),
        )
        states = model.lm_states(output.hidden.query_BxPxD)
        total, metrics = self.vocab_loss(model, states, batch, "masked_targets", "masked_weights")
        sums: LossOutputs = {"permutation_lm": total, **output.aux}, metrics
        return sums if carry is None else (*sums, transpose_carry(output.memory))

    @property
    def carries(self) -> bool:
        return self.memory

    def carry_shapes(self, network: Network, rows: int) -> Any:
        if not self.memory:
            return None
        self.check_model(network.config)
        size = network.config.memory_length
        memory = memory_shapes(network, rows, lambda model, x: model.streams(x).memory)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:2], size, *x.shape[3:]), x.dtype), memory)

    @property
    def baseline(self) -> Baseline:
        return Baseline("unigram", "predicted tokens", batch_feature("masked_weights"))

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        self.check_tokens(vocabulary, "cls", "sep")
        self.check_model(model)
        self.check_length(length, 12)
        reuse = self.reused(length)
        if reuse > length - 5:
            raise UserError(
                f"objective.reuse_length: {reuse} leaves no room for A, B, SEP, SEP and CLS in data.length {length}"
            )
        if self.predictions(length) > length - 3:
            n = self.predictions(length)
            raise UserError(f"objective.num_predict: {n} is too large for data.length {length}")
        if self.permuted(length) > min(reuse, length - reuse):
            raise UserError(
                f"objective.permutation_size: {self.permuted(length)} exceeds one of the separately permuted "
                f"segments, {reuse} and {length - reuse} tokens"
            )
        if self.memory and model.reuse_length != reuse:
            raise UserError(
                f"model.reuse_length: {model.reuse_length} must equal objective.reuse_length, {reuse} "
                f"(by default half of data.length); set model.reuse_length={reuse}"
            )

    def check_model(self, model: ModelConfig) -> None:
        """Raises UserError if the model has no query stream, or no memory of fixed length."""
        if not hasattr(model.build(), "streams"):
            raise UserError(
                f"model.kind: {model.kind} has one stream, but objective.kind: {self.kind} needs a content and a query "
                "stream; model.kind: xlnet has them"
            )
        if self.memory and model.memory_length is None:
            raise UserError(
                "objective.memory requires model.memory_length (XLNet: 384 at data.length 512); "
                "set it, or objective.memory=false"
            )
