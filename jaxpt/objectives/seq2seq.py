"""Supervised training of an encoder-decoder: predict the targets of a SeqIO Task from its inputs.

    inputs   translate English to German: That is good. </s>
    targets  Das ist gut. </s>

The Task makes both, including EOS and prefixes. Nothing is added; longer inputs and targets are truncated.
Paper (text to text): https://arxiv.org/abs/1910.10683
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.output import Output
from jaxpt.objectives.base import Arrays, Batch, Batches, DecoderLoss, Features, Judge, Objective


def encoder_decoder_features(inputs: int, targets: int) -> Features:
    """Shape and dtype of an encoder-decoder's features.

    Args:
      inputs: number of input tokens.
      targets: number of target tokens.

    Returns:
      {name: (shape, dtype)}, as `Batches.features`.
    """
    encoder = ("encoder_input_tokens", "encoder_segment_ids", "encoder_positions")
    decoder = ("decoder_input_tokens", "decoder_target_tokens", "decoder_segment_ids", "decoder_positions")
    return {
        **dict.fromkeys(encoder, ((inputs,), "int32")),
        **dict.fromkeys(decoder, ((targets,), "int32")),
        "decoder_loss_weights": ((targets,), "float32"),
    }


class EncoderDecoder(Objective):
    """Base of objectives whose only loss is the cross-entropy of the decoder's targets."""

    family: ClassVar[str] = "encoder_decoder"

    @property
    def loss(self) -> EncoderDecoderLoss:
        return EncoderDecoderLoss(self)


class EncoderDecoderBatches(Batches):
    """Encoder inputs and decoder targets."""

    copy_advice: ClassVar[str] = "look at them with jaxpt inspect"
    """Advice for the warning that inputs equal their targets."""

    def degenerate(self, batch: Arrays) -> dict[str, np.ndarray]:
        sides = ("encoder_input_tokens", "encoder_segment_ids", "decoder_target_tokens", "decoder_segment_ids")
        is_copy = [
            np.array_equal(inputs[of_inputs == number], targets[of_targets == number])
            for inputs, of_inputs, targets, of_targets in zip(*(batch[name] for name in sides))
            for number in range(1, of_targets.max(initial=0) + 1)
        ]
        return {f"inputs equal targets; {self.copy_advice}": np.array(is_copy, bool)}


class EncoderDecoderLoss(DecoderLoss):
    """Cross-entropy of the decoder's targets."""

    def output(self, model: Bound, batch: Batch) -> Output:
        encoder = {"segment_ids": batch["encoder_segment_ids"], "positions": batch["encoder_positions"]}
        decoder = {"segment_ids": batch["decoder_segment_ids"], "positions": batch["decoder_positions"]}
        encoded = model.encode(batch["encoder_input_tokens"], **encoder)
        decoded = model.decode(
            batch["decoder_input_tokens"],
            encoded.hidden,
            encoder_segment_ids=batch["encoder_segment_ids"],
            **decoder,
        )
        return decoded.add_aux(encoded.aux)


class TextDenoising(EncoderDecoder):
    """Base of objectives that make inputs and targets from windows of text."""

    join_documents: bool = True
    """Cut windows from the concatenated documents (T5); false: no window crosses a document boundary."""
    documents_per_group: PositiveInt | None = None
    """With join_documents, concatenate so many documents at a time, so that the last window of each group is short;
    null: all documents. T5: 128."""
    separator: bool = False
    """With join_documents, insert EOS between documents."""

    @property
    def judge(self) -> TextDenoisingJudge:
        return TextDenoisingJudge(self)


class TextDenoisingBatches(EncoderDecoderBatches):
    """Windows of text."""

    h: TextDenoising

    def windows(self, length: int, vocabulary: Vocabulary, shortest: int = 1) -> tuple[Call, ...]:
        """Preprocessors from documents to windows of at most `length` tokens."""
        separator = vocabulary.eos if self.h.separator else None
        cut = {"length": length, "join": self.h.join_documents, "separator": separator, "shortest": shortest}
        cut |= {"group": self.h.documents_per_group}
        return (Call(preprocessors.documents.tokenize), Call(preprocessors.windows.cut, cut))


class TextDenoisingJudge(Judge):
    """Compares the targets without special tokens with their unigram entropy."""

    baseline: ClassVar[str] = "unigram"
    target_name: ClassVar[str] = "target tokens without sentinels and EOS"

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
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

    @property
    def batches(self) -> Seq2SeqBatches:
        return Seq2SeqBatches(self)

    @property
    def judge(self) -> Seq2SeqJudge:
        return Seq2SeqJudge(self)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if length < 2:
            raise UserError(f"data.length: {length} is too short for seq2seq, at least 2 is needed")


class Seq2SeqBatches(EncoderDecoderBatches):
    """Inputs and targets of a SeqIO Task."""

    h: Seq2Seq

    def examples(self, length: int) -> int | None:
        return self.h.targets_length or length

    def features(self, length: int) -> Features:
        return encoder_decoder_features(length, self.h.targets_length or length)

    def transforms(self, length: int, vocabulary: Vocabulary, seed: int) -> Transforms:
        sizes = {"inputs_length": length, "targets_length": self.h.targets_length or length, "start": vocabulary.pad}
        return Transforms(offline=(), online=(Call(preprocessors.features.encoder_decoder, sizes),))

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        return {"encoder_input_tokens": lengths["inputs"], "decoder_input_tokens": lengths["targets"]}


class Seq2SeqJudge(Judge):
    """Compares all targets with their unigram entropy."""

    baseline: ClassVar[str] = "unigram"
    target_name: ClassVar[str] = "target tokens"

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        return batch["decoder_loss_weights"]
