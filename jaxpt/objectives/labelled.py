"""Base of objectives that learn a head on labelled rows, for models of every family.

    encoder           [CLS] a [SEP] b [SEP]           the state of the first token (XLNet: the last)
    decoder           a <eos> b                       the state of the last token
                      [START] a [DELIM] b [EXTRACT]   with `extract`: GPT-1's
    encoder-decoder   <s> a </s></s> b </s>           the decoder reads the same tokens, shifted; the state at the last

Rows of a batch hold one example each, or with `data.packing` several, each a segment of its own.

With `lm_loss` λ a decoder also learns the texts: loss = mean over examples of the head's loss
+ λ · mean over sequences of the mean over a sequence's tokens, without its first, of −log p(token | those before it).
Paper: https://openai.com/index/language-unsupervised; released code: openai/finetune-transformer-lm, train.py

Shapes: B rows · L length · D width · N examples of a row · K outputs of the head · S sequences of a row
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from jaxpt.config import AnyTask, HeadName, ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.labelled.layout import TextLayout, Truncate
from jaxpt.errors import UserError
from jaxpt.losses import token_loss
from jaxpt.models.base import Bound
from jaxpt.models.output import Output
from jaxpt.objectives.base import Batch, Batches, Features, Loss, Objective
from jaxpt.objectives.masked_lm import encode_batch

FAMILIES = {
    "bert": "encoder", "roberta": "encoder", "xlnet": "encoder", "decoder": "decoder", "bart": "encoder_decoder",
    "t5": "encoder_decoder",
}  # fmt: skip
"""Family of the models of each layout of texts."""
START, DELIMITER, EXTRACT = GPT1_TOKENS = ("[START]", "[DELIM]", "[EXTRACT]")
"""Tokens of `extract`."""
EXAMPLE = 16  # tokens of an example, at least, in a packed row whose `examples` are not given


class HeadObjective(Objective):
    """Hyperparameters that all heads share."""

    task: SkipJsonSchema[AnyTask] = Field(exclude=True)
    """The recipe's `task`."""
    text_layout: SkipJsonSchema[str] = Field(exclude=True)
    """The model's."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout of the head; the model's by default."""

    @property
    def family(self) -> str:  # type: ignore[override]
        """The model's."""
        return FAMILIES[self.text_layout]

    @property
    def side(self) -> str:
        """The part of the model that reads the texts."""
        return "decoder" if self.family == "decoder" else "encoder"

    def layout(self, vocabulary: Vocabulary) -> TextLayout:
        """Where texts and special tokens stand.

        Raises:
          UserError: the vocabulary has not the special tokens that the model was trained with.
        """
        v = vocabulary

        def ids(*names: str) -> tuple[int, ...]:
            for name in names:
                if getattr(v, name) is None:
                    raise UserError(f"objective.kind: {self.kind}: the model wants a vocabulary with {name.upper()}")
            return tuple(getattr(v, name) for name in names)

        match self.text_layout:
            case "bert":
                return TextLayout(ids("cls"), ids("sep"), ids("sep"), second_type=1)
            case "roberta":
                return TextLayout(ids("cls"), ids("sep", "sep"), ids("sep"))
            case "xlnet":
                return TextLayout((), ids("sep"), ids("sep", "cls"), second_type=1, last_type=2, pooled="last")
            case "bart":
                return TextLayout(ids("bos"), ids("eos", "eos"), ids("eos"), pooled="last")
            case "t5":
                return TextLayout((), ids("eos"), ids("eos"), pooled="last")
            case "decoder":
                before = () if v.bos in (None, v.eos) else (v.bos,)
                return TextLayout(before, ids("eos"), (), pooled="last")
        raise UserError(f"model.kind: its text_layout {self.text_layout!r} is none of {', '.join(FAMILIES)}")

    def cut_to(self, length: int) -> str:
        """The setting that cuts texts, for messages; `length` is `data.length`."""
        return f"data.length {length}"

    def decide(self, outputs: Sequence[Any], row: Any, where: str) -> Any:
        """The prediction of a row, comparable with `task.target`, from what was computed of each of its records."""
        return self.task.decide(outputs)

    def answer(self, outputs: Sequence[Any], row: Any, where: str) -> dict[str, Any]:
        """The prediction of a row for people."""
        return self.task.answer(outputs)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        self.task.check_metrics()
        self.layout(vocabulary)


class Labelled(HeadObjective):
    """Hyperparameters of heads on whole texts."""

    truncate: Truncate = "longest_first"
    """What is cut off texts beyond `data.length`: the end of the longer one, of the `first`, of the `second`, or
    nothing (`error`). The number of texts that were cut is printed."""
    examples: PositiveInt | None = None
    """Most examples in a packed row; data.length / 16 by default."""
    extract: bool = False
    """Of decoders, GPT-1's input: `[START] a [DELIM] b [EXTRACT]`, and the head takes the state at [EXTRACT].
    `data.tokenizer.add_tokens` has these tokens. Pairs with `task.is_symmetric` are read in both orders, each a sequence
    of at most `data.length` tokens, and the head takes the sum of both states, in training and afterwards."""
    lm_loss: Annotated[float, Field(ge=0)] = 0.0
    """Of decoders, λ of the auxiliary loss of the language model on the same texts, each sequence the mean over its
    tokens (GPT-1: 0.5)."""

    def most_examples(self, length: int) -> int:
        """Most examples in a row."""
        return self.examples or max(length // EXAMPLE, 1)

    @property
    def sequences(self) -> int:
        """Sequences that the model reads of an example, one after the other in a row."""
        return 1

    def layout(self, vocabulary: Vocabulary) -> TextLayout:
        if not self.extract:
            return super().layout(vocabulary)
        ids = dict(vocabulary.added)
        if missing := [token for token in GPT1_TOKENS if token not in ids]:
            raise UserError(
                f"objective.extract: the vocabulary has no {missing[0]}; set "
                f"data.tokenizer.add_tokens='{json.dumps(GPT1_TOKENS)}'"
            )
        return TextLayout((ids[START],), (ids[DELIMITER],), (ids[EXTRACT],), pooled="last")

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.family != "decoder" and (key := next((key for key in ("extract", "lm_loss") if getattr(self, key)), None)):
            raise UserError(f"objective.{key}: is for decoders; model.kind: {model.kind} is of family {self.family}")
        super().check(model, length, vocabulary)


class LabelledBatches(Batches):
    """Texts with their labels."""

    h: HeadObjective

    def label_features(self, length: int) -> Features:
        """The features of labels."""
        raise NotImplementedError

    def features(self, length: int) -> Features:
        sides = {"encoder": ("encoder",), "decoder": ("decoder",), "encoder_decoder": ("encoder", "decoder")}
        names = [
            f"{side}_{name}" for side in sides[self.h.family] for name in ("input_tokens", "segment_ids", "positions")
        ]
        names += ["encoder_token_types"] if "encoder" in sides[self.h.family] else []
        return {**dict.fromkeys(names, ((length,), "int32")), **self.label_features(length)}

    def start(self, vocabulary: Vocabulary) -> int | None:
        """The id that the decoder of an encoder-decoder starts from."""
        return {"bart": vocabulary.eos, "t5": vocabulary.pad}.get(self.h.text_layout)

    def encoder(self, length: int, vocabulary: Vocabulary) -> Any:
        """From rows to records; see `jaxpt.data.labelled`."""
        raise NotImplementedError

    def rows(self, length: int, vocabulary: Vocabulary) -> Call:
        """From records to features."""
        raise NotImplementedError

    def rows_of(self, vocabulary: Vocabulary) -> Callable[[Sequence[Any], int], dict[str, np.ndarray]]:
        """A function (records, length) → features of a batch whose rows are single records."""
        raise NotImplementedError

    def longest(self, length: int) -> int:
        """Most tokens in a record, of `data.length`."""
        return length

    def split(self, outputs: np.ndarray, records: Sequence[Any]) -> list[np.ndarray]:
        """The outputs of each record, from those of their rows [B, N, K]: those of its own positions."""
        return [row[: len(record["positions"])] for row, record in zip(outputs, records)]

    def transforms(self, length: int, vocabulary: Vocabulary, seed: int) -> Transforms:
        encode = Call(preprocessors.labelled.encode, {"encoder": self.encoder(length, vocabulary)})
        return Transforms(offline=(encode,), online=(self.rows(length, vocabulary),))


class LabelledLoss(Loss):
    """Loss of a head."""

    h: HeadObjective

    def coefficients(self) -> dict[str, float]:
        return {self.h.kind: 1.0}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {self.h.kind: batch["label_weights"].sum()}

    def output(self, model: Bound, batch: Batch) -> Output:
        if self.h.family == "encoder":
            return encode_batch(model, self._known_types(model, batch))
        if self.h.family == "decoder":
            return model.decode(
                batch["decoder_input_tokens"],
                segment_ids=batch["decoder_segment_ids"],
                positions=batch["decoder_positions"],
            )
        encoded = encode_batch(model, {n: x for n, x in batch.items() if n != "encoder_token_types"})
        decoded = model.decode(
            batch["decoder_input_tokens"],
            encoded.hidden,
            segment_ids=batch["decoder_segment_ids"],
            positions=batch["decoder_positions"],
            encoder_segment_ids=batch["encoder_segment_ids"],
        )
        return decoded.add_aux(encoded.aux)

    def outputs(self, model: Bound, hidden: jax.Array, batch: Batch) -> jax.Array:
        """Outputs of the head for each example: float32 [B, N, K]."""
        raise NotImplementedError

    def predict(self, model: Bound, batch: Batch) -> jax.Array:
        """`outputs` of a batch."""
        return self.outputs(model, self.output(model, batch).hidden, batch)

    def text_states(
        self, model: Bound, name: HeadName, hidden_BxLxD: jax.Array, positions_BxN: jax.Array, segments_BxL: jax.Array
    ) -> jax.Array:
        """The vector that stands for each text, as the architecture's head `name` takes it.

        Args:
          model: says whether it is one token's state or the mean of all.
          name: of the head.
          hidden_BxLxD: hidden states.
          positions_BxN: the pooled token of each text.
          segments_BxL: segment ids: each text is a segment of its own.

        Returns:
          [B, N, D].
        """
        if model.config.task_head(name).position != "mean":
            return jnp.take_along_axis(hidden_BxLxD, positions_BxN[..., None], axis=1)
        own_BxN = jnp.take_along_axis(segments_BxL, positions_BxN, axis=1)
        share_BxNxL = (segments_BxL[:, None] == own_BxN[..., None]).astype(hidden_BxLxD.dtype)
        share_BxNxL /= share_BxNxL.sum(-1, keepdims=True)
        return jnp.einsum("bnl,bld->bnd", share_BxNxL, hidden_BxLxD)

    def lines(self, x_BxL: jax.Array) -> jax.Array:
        """A feature as the model reads it."""
        return x_BxL

    def _known_types(self, model: Bound, batch: Batch) -> Batch:
        """The batch with the token types that the model has."""
        most = getattr(model.config, "token_types", None)
        if most is None or "encoder_token_types" not in batch:
            return batch
        return {**batch, "encoder_token_types": jnp.minimum(batch["encoder_token_types"], max(most - 1, 0))}


class TextsLoss(LabelledLoss):
    """Loss of a head on whole texts, with that of the language model where `lm_loss` is set."""

    h: Labelled

    def coefficients(self) -> dict[str, float]:
        return super().coefficients() | ({"lm": self.h.lm_loss} if self.h.lm_loss else {})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return super().weights(batch) | ({"lm": self._next_tokens(batch)[2]} if self.h.lm_loss else {})

    def lm_part(self, model: Bound, hidden: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """{"lm": Σ over sequences of the mean loss of their tokens}; {} without `lm_loss`."""
        if not self.h.lm_loss:
            return {}
        targets_BxL, weights_BxL, _ = self._next_tokens(batch)
        states, projection = model.lm_states(hidden), model.output_projection()
        z_loss, chunk = self.h.z_loss, self.h.loss_chunk
        return {"lm": token_loss(states, projection, targets_BxL, weights_BxL, z_loss=z_loss, chunk=chunk)[0]}

    def _next_tokens(self, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(the token after each token, its weight: 1 / (tokens of its sequence − 1), number of sequences)."""
        tokens_BxL, segments_BxL = (self.lines(batch[f"decoder_{name}"]) for name in ("input_tokens", "segment_ids"))
        after = ((0, 0), (0, 1))
        targets_BxL = jnp.pad(tokens_BxL[:, 1:], after)
        is_target_BxL = (segments_BxL > 0) & (segments_BxL == jnp.pad(segments_BxL[:, 1:], after))
        numbers_S = 1 + jnp.arange(batch["label_weights"].shape[1] * self.h.sequences)
        own_BxSxL = is_target_BxL[:, None] & (segments_BxL[:, None] == numbers_S[:, None])
        sizes_BxS = own_BxSxL.sum(-1)
        weights_BxL = jnp.einsum("bsl,bs->bl", own_BxSxL.astype(jnp.float32), 1 / jnp.maximum(sizes_BxS, 1))
        return targets_BxL, weights_BxL, (sizes_BxS > 0).sum()
