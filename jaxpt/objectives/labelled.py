"""Base of objectives that learn a head on labelled rows, for models of every family.

    encoder           [CLS] a [SEP] b [SEP]           the state of the first token (XLNet: the last)
    decoder           a <eos> b                       the state of the last token
    encoder-decoder   <s> a </s></s> b </s>           the decoder reads the same tokens, shifted; the state at the last

Rows of a batch hold one example each, or with `data.packing` several, each a segment of its own.

Shapes: B rows · L length · D width · N examples of a row · S sequences of a row · K outputs of the head
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from jaxpt.config import AnyTask, HeadName, ModelConfig, PositiveInt, TaskConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.labelled.layout import TextLayout, Truncate
from jaxpt.data.parts import named
from jaxpt.data.spec import Arrays, DataSpec, Features
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import classes, features
from jaxpt.models.heads.features import FeaturesConfig
from jaxpt.models.network import Head
from jaxpt.models.output import Output
from jaxpt.objectives.base import Batch, LossOutputs, Objective, decode_batch, encode_batch
from jaxpt.objectives.losses import token_loss

FAMILIES = {
    "bert": "encoder", "roberta": "encoder", "xlnet": "encoder", "decoder": "decoder", "bart": "encoder_decoder",
    "t5": "encoder_decoder", "words": "encoder",
}  # fmt: skip
"""Family of the models of each layout of texts."""
START, DELIMITER, EXTRACT = GPT1_TOKENS = ("[START]", "[DELIM]", "[EXTRACT]")
"""Tokens of `extract`."""
_EXAMPLE = 4  # tokens of an example, on average, in packed rows of the shortest ones; with 16 SST-2's are 74 % full


Collate = Callable[[Sequence[Any], int], dict[str, np.ndarray]]
"""(records, length) → features of a batch whose rows are single records."""


class HeadObjective(Objective):
    """Hyperparameters that all heads share."""

    task: SkipJsonSchema[AnyTask] = Field(exclude=True)
    """The recipe's `task`."""
    text_layout: SkipJsonSchema[str] = Field(exclude=True)
    """`text_layout` of the model."""
    part: SkipJsonSchema[str | None] = Field(None, exclude=True)
    """Name of the mixture's task that the head is for; it is part of the head's name
    (`jaxpt.models.heads.classes.called`)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout of the head; the model's by default."""
    features: FeaturesConfig | None = None
    """The head reads features of a frozen model: states of chosen layers, with or without a BiLSTM; by default the last
    layer's, of a model that is trained."""
    predicts_tokens: ClassVar[bool] = False
    head: ClassVar[HeadName]
    """Name of the head."""
    task_kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of tasks that the head is for; () if `check_settings` does not ask."""

    @property
    def family(self) -> str:  # type: ignore[override]
        """The family of the model, by how the texts stand in a row."""
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

        # What a vocabulary that was trained here has not was not in the model's pretraining either.
        begin, decoder_begin = (() if i in (None, v.eos) else (i,) for i in (v.bos, v.decoder_bos))
        end = "sep" if v.eos is None and v.sep is not None else "eos"
        match self.text_layout:
            case "bert":
                return TextLayout(ids("cls"), ids("sep"), ids("sep"), second_type=1)
            case "roberta":
                return TextLayout(ids("cls"), ids("sep", "sep"), ids("sep"))
            case "xlnet":
                return TextLayout((), ids("sep"), ids("sep", "cls"), second_type=1, last_type=2, pooled="last")
            case "bart":
                return TextLayout(begin, ids("eos", "eos"), ids("eos"), pooled="last")
            case "t5":
                return TextLayout((), ids("eos"), ids("eos"), pooled="last")
            case "words":
                return TextLayout()
            case "decoder":
                return TextLayout(decoder_begin, ids(end), (), pooled="last")
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

    def for_task(self, task: TaskConfig) -> HeadObjective:
        """The objective of one task of a mixture, as if it were all."""
        return self.model_copy(update={"task": task})

    def check_settings_of_tasks(self, model: ModelConfig, length: int) -> None:
        """`check_settings` of each task of a mixture."""
        for task in self.task.tasks:
            with named(task.name):
                self.for_task(task).check_settings(model, length)

    def check_tasks(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        """`check` of each task of a mixture."""
        for task in self.task.tasks:
            with named(task.name):
                self.for_task(task).check(model, length, vocabulary)

    def data_spec(self, length: int) -> DataSpec:
        sides = {"encoder": ("encoder",), "decoder": ("decoder",), "encoder_decoder": ("encoder", "decoder")}
        names = [
            f"{side}_{name}" for side in sides[self.family] for name in ("input_tokens", "segment_ids", "positions")
        ]
        names += ["encoder_token_types"] if "encoder" in sides[self.family] else []

        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            encode = Call(preprocessors.labelled.encode, {"encoder": self.encoder(length, vocabulary)})
            return Transforms(offline=(encode,), online=(self.to_features(length, vocabulary),))

        texts = dict.fromkeys(names, ((self.row_length(length),), "int32"))
        return DataSpec({**texts, **self.label_features(length)}, transforms, self.max_packed_lengths)

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        """As `DataSpec.max_packed_lengths`."""
        raise NotImplementedError

    def label_features(self, length: int) -> Features:
        """The features of labels; none where answers are written."""
        return {}

    def encoder(self, length: int, vocabulary: Vocabulary) -> Any:
        """From rows to records; see `jaxpt.data.labelled`."""
        raise NotImplementedError

    def to_features(self, length: int, vocabulary: Vocabulary) -> Call:
        """From records to features."""
        raise NotImplementedError

    def row_options(self, length: int, examples: int, vocabulary: Vocabulary) -> dict[str, Any]:
        """Arguments of what makes features: tokens of a row, its most examples, and where its texts are."""
        return {"length": length, "examples": examples, "side": self.side, "start": self.start_id(vocabulary)}

    def collate_fn(self, vocabulary: Vocabulary) -> Collate:
        """What makes batches of records that are not packed."""
        raise NotImplementedError

    def row_length(self, length: int) -> int:
        """Tokens in a row of a batch with `data.length`: a record has no more."""
        return length

    def split_outputs(self, outputs: np.ndarray, records: Sequence[Any]) -> list[np.ndarray]:
        """The outputs of each record, from those of their rows [B, N, K]: those of its own positions."""
        return [row[: len(record["positions"])] for row, record in zip(outputs, records)]

    def start_id(self, vocabulary: Vocabulary) -> int | None:
        """The id that the decoder of an encoder-decoder starts from."""
        return {"bart": vocabulary.eos, "t5": vocabulary.pad}.get(self.text_layout)

    def heads(self, model: ModelConfig) -> dict[str, Head]:
        outputs = None if self.head in classes.OUTPUTS else self.task.outputs
        if self.features is None:
            return classes.declare(model, self.head, outputs, self.dropout, self.part)
        feature_heads, width = features.declare(model, self.features, self._stack(model))
        return feature_heads | classes.declare(model, self.head, outputs, self.dropout, width=width)

    def coefficients(self) -> dict[str, float]:
        return {self.kind: 1.0}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {self.kind: batch["label_weights"].sum()}

    def output(self, model: Bound, batch: Batch) -> Output:
        """The states, or with `features` what is made of them, that the head reads."""
        if self.features is None:
            return self._read(model, batch)
        backbone, options = features.reader(self.features, model)
        segments_BxL = batch[f"{self._stack(model.config)}_segment_ids"]
        return features.apply(self.features, model, self._read(backbone, batch, **options), segments_BxL)

    def _stack(self, model: ModelConfig) -> features.Stack:
        """Whose states the head reads."""
        return model.task_head(self.head).stack

    def _read(self, model: Bound, batch: Batch, **options: Any) -> Output:
        """The output of the stack that the head reads; `options` are of its `encode` or `decode`."""
        if self.family == "encoder":
            return encode_batch(model, self._known_types(model, batch), **options)
        texts = {name: x for name, x in batch.items() if name != "encoder_token_types"}
        read = encode_batch if self._stack(model.config) == "encoder" else decode_batch
        return read(model, texts, **options)

    def outputs(self, model: Bound, hidden: jax.Array, batch: Batch) -> jax.Array:
        """Outputs of the head for each example: float32 [B, N, K]."""
        raise NotImplementedError

    def sums_and_metrics(
        self, losses: jax.Array, is_correct: jax.Array | None, batch: Batch,
        target_losses: jax.Array | None = None, **parts: jax.Array,
    ) -> LossOutputs:  # fmt: skip
        """What `loss_from_hidden` returns, from the loss of each example.

        Args:
          losses: [B, N].
          is_correct: [B, N]; None: predictions are not right or wrong.
          batch: the features.
          target_losses: [B, N], of the metric `target_loss`: as the baseline's, without class weights and label
            smoothing; `losses` by default.
          **parts: other parts of the loss.
        """
        target_losses = losses if target_losses is None else target_losses
        weights, metrics = batch["label_weights"], dict[str, Any]()
        if is_correct is not None:
            metrics["accuracy"] = ((is_correct * weights).sum(), weights.sum())
        if "eval_mask" in batch:
            metrics["target_loss"] = ((target_losses * batch["eval_mask"]).sum(), batch["eval_mask"].sum())
        return {self.kind: (losses * weights).sum(), **parts}, jax.lax.stop_gradient(metrics)

    def predict(self, model: Bound, batch: Batch) -> jax.Array:
        """`outputs` of a batch."""
        return self.outputs(model, self.output(model, batch).hidden, batch)

    def text_states(
        self, model: Bound, hidden_BxLxD: jax.Array, positions_BxN: jax.Array, segments_BxL: jax.Array
    ) -> jax.Array:
        """The vector that stands for each text, as the architecture's head takes it; of a BiLSTM the maximum of all.

        Args:
          model: says whether it is one token's state or the mean of all.
          hidden_BxLxD: hidden states.
          positions_BxN: the pooled token of each text.
          segments_BxL: segment ids: each text is a segment of its own.

        Returns:
          [B, N, D].
        """
        is_max = self.features is not None and self.features.bilstm is not None
        position = model.config.task_head(self.head).position
        hidden_BxLxD = model.heads["pooler"](hidden_BxLxD) if position == "late" else hidden_BxLxD
        if not is_max and position not in ("mean", "late"):
            return jnp.take_along_axis(hidden_BxLxD, positions_BxN[..., None], axis=1)
        is_own_BxNxL = own_tokens(segments_BxL, positions_BxN)
        if is_max:
            return _largest(hidden_BxLxD, is_own_BxNxL)
        share_BxNxL = is_own_BxNxL.astype(hidden_BxLxD.dtype)
        share_BxNxL /= share_BxNxL.sum(-1, keepdims=True)
        return jnp.einsum("bnl,bld->bnd", share_BxNxL, hidden_BxLxD)

    def _known_types(self, model: Bound, batch: Batch) -> Batch:
        """The batch with the token types that the model has."""
        num_types = getattr(model.config, "token_types", None)
        if num_types is None or "encoder_token_types" not in batch:
            return batch
        return {**batch, "encoder_token_types": jnp.minimum(batch["encoder_token_types"], max(num_types - 1, 0))}

    def check_settings(self, model: ModelConfig, length: int) -> None:
        self.task.check_metrics()
        if self.task_kinds and self.task.kind not in self.task_kinds:
            raise UserError(f"objective.kind: {self.kind} does not fit task.kind: {self.task.kind}")

    def check_class_weights(self, class_weights: Any, of: str) -> None:
        """Raises UserError where there is no weight for each label; `of`: what the labels are called."""
        if isinstance(class_weights, tuple) and self.task.outputs not in (0, len(class_weights)):  # 0: not known yet
            raise UserError(
                f"objective.class_weights: wants one for each of {self.task.outputs} {of}, got {len(class_weights)}"
            )

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        self.check_settings(model, length)
        self.layout(vocabulary)


class Labelled(HeadObjective):
    """Hyperparameters of heads on whole texts."""

    truncate: Truncate = "longest_first"
    """What is cut off texts beyond `data.length`: the end of the longer one, of the `first`, of the `second`, what each
    has beyond half of the room (`halves`: GPT-1), what is read first of the longer one (`left`: the beginning), or
    nothing (`error`). The number of texts that were cut is printed."""
    examples: PositiveInt | None = None
    """Maximum number of examples in a packed row; data.length / 4 by default."""

    def most_examples(self, length: int) -> int:
        """Maximum number of examples in a row."""
        return self.examples or max(length // _EXAMPLE, 1)


def own_tokens(segments_BxL: jax.Array, positions_BxN: jax.Array) -> jax.Array:
    """True at the tokens of each example, which is the segment of a position: bool [B, N, L]."""
    return segments_BxL[:, None] == jnp.take_along_axis(segments_BxL, positions_BxN, axis=1)[..., None]


@jax.checkpoint  # [B, N, L, D] is not kept for the backward pass
def _largest(x_BxLxD: jax.Array, is_own_BxNxL: jax.Array) -> jax.Array:
    """The maximum over each example's tokens: [B, N, D]."""
    return jnp.where(is_own_BxNxL[..., None], x_BxLxD[:, None], -jnp.inf).max(2)


def label_entropy(labels: np.ndarray, weights: np.ndarray) -> float:
    """Entropy of the labels' weighted frequencies, in nats: the weighted mean loss of the best constant prediction."""
    p = np.bincount(labels.astype(int), weights) / weights.sum()
    return float(-sum(q * np.log(q) for q in p if q))


class TextHead(Labelled):
    """Hyperparameters of heads on whole texts: also what GPT-1 does for its own, its input and an auxiliary LM.

        extract     [START] a [DELIM] b [EXTRACT]           the state at [EXTRACT]
                    … and [START] b [DELIM] a [EXTRACT]     of symmetric pairs: the sum of both states
        lm_loss λ   loss = mean over examples of the head's loss + λ · mean over sequences of the language model's loss

    The language model's loss of a sequence is the mean over its tokens, without the first, of −log p(token | those
    before it). So each sequence counts the same, long or short; each choice and each order of a pair is a sequence. The
    released code does so (openai/finetune-transformer-lm, train.py, lines 172-178, 205). Labels' weights have no part
    in it. Paper: https://openai.com/index/language-unsupervised
    """

    extract: bool = False
    """Of decoders, GPT-1's input: `[START] a [DELIM] b [EXTRACT]`, and the head takes the state at [EXTRACT].
    `data.tokenizer.add_tokens` has these tokens. Pairs with `task.is_symmetric` are read in both orders, each a
    sequence of at most `data.length` tokens, and the head takes the sum of both states, in training and afterwards."""
    lm_loss: Annotated[float, Field(ge=0)] = 0.0
    """Of decoders, λ of the auxiliary loss of the language model on the same texts, each sequence the mean over its
    tokens (GPT-1: 0.5)."""

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

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        return {f"{self.side}_input_tokens": lengths["tokens"], "label_weights": np.ones_like(lengths["tokens"])}

    def coefficients(self) -> dict[str, float]:
        return super().coefficients() | ({"lm": self.lm_loss} if self.lm_loss else {})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return super().weights(batch) | ({"lm": self._next_tokens(batch)[2]} if self.lm_loss else {})

    def lines(self, x_BxL: jax.Array) -> jax.Array:
        """A feature as the model reads it."""
        return x_BxL

    def lm_part(self, model: Bound, hidden: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """{"lm": Σ over sequences of the mean loss of their tokens}; {} without `lm_loss`."""
        if not self.lm_loss:
            return {}
        targets_BxL, weights_BxL, _ = self._next_tokens(batch)
        states, projection = model.lm_states(hidden), model.output_projection()
        z_loss, chunk = self.z_loss, self.loss_chunk
        return {"lm": token_loss(states, projection, targets_BxL, weights_BxL, z_loss=z_loss, chunk=chunk)[0]}

    def _next_tokens(self, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(the token after each token, its weight: 1 / (tokens of its sequence − 1), number of sequences)."""
        tokens_BxL, segments_BxL = (self.lines(batch[f"decoder_{name}"]) for name in ("input_tokens", "segment_ids"))
        after = ((0, 0), (0, 1))
        targets_BxL = jnp.pad(tokens_BxL[:, 1:], after)
        is_target_BxL = (segments_BxL > 0) & (segments_BxL == jnp.pad(segments_BxL[:, 1:], after))
        numbers_S = 1 + jnp.arange(batch["label_weights"].shape[1] * self.sequences)
        is_target_BxSxL = is_target_BxL[:, None] & (segments_BxL[:, None] == numbers_S[:, None])
        sizes_BxS = is_target_BxSxL.sum(-1)
        weights_BxL = jnp.einsum("bsl,bs->bl", is_target_BxSxL.astype(jnp.float32), 1 / jnp.maximum(sizes_BxS, 1))
        return targets_BxL, weights_BxL, (sizes_BxS > 0).sum(dtype=jnp.float32)

    def check_settings(self, model: ModelConfig, length: int) -> None:
        key = "extract" if self.extract else "lm_loss"
        if self.family != "decoder" and getattr(self, key):
            raise UserError(f"objective.{key}: is for decoders; model.kind: {model.kind} is of family {self.family}")
        if self.lm_loss and self.features is not None:
            raise UserError("objective.lm_loss trains the model, objective.features reads a frozen one; remove one")
        super().check_settings(model, length)

    def idle_settings(self) -> tuple[str, ...]:
        return () if self.lm_loss else super().idle_settings()
