"""Supervised training of an encoder-decoder: predict the targets of a SeqIO Task from its inputs.

    inputs   translate English to German: That is good. </s>
    targets  Das ist gut. </s>

The Task makes both, including EOS and prefixes. Nothing is added; longer inputs and targets are truncated.
Paper (text to text): https://arxiv.org/abs/1910.10683
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec, Features, text_windows
from jaxpt.errors import UserError
from jaxpt.objectives.base import Baseline, NextToken, batch_feature


def encoder_decoder_features(inputs: int, targets: int) -> Features:
    """Shape and dtype of an encoder-decoder's features.

    Args:
      inputs: number of input tokens.
      targets: number of target tokens.

    Returns:
      {name: (shape, dtype)}, as `DataSpec.features`.
    """
    encoder = ("encoder_input_tokens", "encoder_segment_ids", "encoder_positions")
    decoder = ("decoder_input_tokens", "decoder_target_tokens", "decoder_segment_ids", "decoder_positions")
    return {
        **dict.fromkeys(encoder, ((inputs,), "int32")),
        **dict.fromkeys(decoder, ((targets,), "int32")),
        "decoder_loss_weights": ((targets,), "float32"),
    }


def lengths_of_pairs(lengths: Arrays) -> dict[str, np.ndarray]:
    """`DataSpec.max_packed_lengths` of records with inputs and targets that are not changed."""
    return {"encoder_input_tokens": lengths["inputs"], "decoder_input_tokens": lengths["targets"]}


def copied_inputs(batch: Arrays, advice: str) -> dict[str, np.ndarray]:
    """`DataSpec.untrainable_examples`: examples whose inputs equal their targets; `advice` says what to do."""
    sides = ("encoder_input_tokens", "encoder_segment_ids", "decoder_target_tokens", "decoder_segment_ids")
    is_copy = [
        np.array_equal(inputs[of_inputs == number], targets[of_targets == number])
        for inputs, of_inputs, targets, of_targets in zip(*(batch[name] for name in sides))
        for number in range(1, of_targets.max(initial=0) + 1)
    ]
    return {f"inputs equal targets; {advice}": np.array(is_copy, bool)}


class EncoderDecoder(NextToken):
    """Base of objectives whose only loss is the cross-entropy of the decoder's targets."""

    family: ClassVar[str] = "encoder_decoder"

    def start_id(self, vocabulary: Vocabulary) -> int:
        """The id that the decoder starts from."""
        return vocabulary.pad

    def pair_spec(
        self,
        inputs: int,
        targets: int,
        transforms: Callable[[Vocabulary], Transforms],
        max_packed_lengths: Callable[[Arrays], dict[str, np.ndarray]] = lengths_of_pairs,
        advice: str = "look at them with jaxpt inspect",
    ) -> DataSpec:
        """The data of examples with inputs and targets.

        Args:
          inputs: number of input tokens.
          targets: number of target tokens.
          transforms: vocabulary → the preprocessors that make inputs and targets.
          max_packed_lengths: as that of `DataSpec`.
          advice: what to do if most inputs equal their targets.
        """

        def with_features(vocabulary: Vocabulary, seed: int) -> Transforms:
            pairs = transforms(vocabulary)
            sizes = {"inputs_length": inputs, "targets_length": targets, "start": self.start_id(vocabulary)}
            return Transforms(pairs.offline, (*pairs.online, Call(preprocessors.features.encoder_decoder, sizes)))

        return DataSpec(
            features=encoder_decoder_features(inputs, targets),
            transforms=with_features,
            max_packed_lengths=max_packed_lengths,
            untrainable_examples=functools.partial(copied_inputs, advice=advice),
        )


class TextDenoising(EncoderDecoder):
    """Base of objectives that make inputs and targets from windows of text."""

    join_documents: bool = True
    """Cut windows from the concatenated documents (T5); false: no window crosses a document boundary."""
    documents_per_group: PositiveInt | None = None
    """With join_documents, concatenate so many documents at a time, so that the last window of each group is short;
    null: all documents. T5: 128."""
    separator: bool = False
    """With join_documents, insert EOS between documents."""

    def windows(self, length: int, vocabulary: Vocabulary, shortest: int = 1) -> tuple[Call, ...]:
        """Preprocessors from documents to windows of at most `length` tokens."""
        separator = vocabulary.eos if self.separator else None
        cut = {"join": self.join_documents, "separator": separator, "shortest": shortest}
        return text_windows(length, **cut, group=self.documents_per_group)

    @property
    def baseline(self) -> Baseline:
        return Baseline("unigram", "target tokens without sentinels and EOS", self.eval_mask)

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        """Weights of the targets that are no special tokens."""
        targets = batch["decoder_target_tokens"]
        text = (targets != vocabulary.eos) & ~np.isin(targets, vocabulary.sentinel_ids)
        if vocabulary.bos is not None:
            text &= targets != vocabulary.bos
        return batch["decoder_loss_weights"] * text


def mask_id(vocabulary: Vocabulary, kind: str) -> int:
    """Id of the mask token, or of the first sentinel if the vocabulary has no mask token, as in T5.

    Args:
      vocabulary: vocabulary of the run.
      kind: kind of the objective, for the error message.

    Returns:
      The id.

    Raises:
      UserError: the vocabulary has neither.
    """
    if vocabulary.mask is not None:
        return vocabulary.mask
    if vocabulary.sentinels == 0:
        raise UserError(
            f"{kind} needs a vocabulary with a mask token or sentinels; data.tokenizer.kind: sentencepiece has them"
        )
    return vocabulary.first_sentinel


class Seq2Seq(EncoderDecoder):
    """Hyperparameters of supervised training on a SeqIO Task."""

    kind: Literal["seq2seq"] = "seq2seq"
    targets_length: PositiveInt | None = None
    """Maximum number of target tokens, including EOS; default `data.length`, the length of the inputs."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """ε: the distribution of a target is (1 − ε) · one-hot + ε / vocabulary (BART's summaries: 0.1)."""

    def data_spec(self, length: int) -> DataSpec:
        targets = self.targets_length or length
        return dataclasses.replace(
            self.pair_spec(length, targets, lambda vocabulary: Transforms((), ())), max_target_tokens=targets
        )

    @property
    def baseline(self) -> Baseline:
        return Baseline("unigram", "target tokens", batch_feature("decoder_loss_weights"))

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        self.check_length(length, 2)
