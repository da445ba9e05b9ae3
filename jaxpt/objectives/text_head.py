"""Base of heads on whole texts, and what GPT-1 does for its own: its input, and an auxiliary language model.

    extract     [START] a [DELIM] b [EXTRACT]           the state at [EXTRACT]
                … and [START] b [DELIM] a [EXTRACT]     of symmetric pairs: the sum of both states
    lm_loss λ   loss = mean over examples of the head's loss + λ · mean over sequences of their language models' loss

The language model's loss of a sequence is the mean over its tokens, without the first, of −log p(token | those before
it). So each sequence counts the same, long or short; each choice and each order of a pair is a sequence. The released
code does so (openai/finetune-transformer-lm, train.py, lines 172-178, 205). Labels' weights have no part in it.
Paper: https://openai.com/index/language-unsupervised

Shapes: B rows · L length · S sequences of a row
"""

from __future__ import annotations

import json
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from jaxpt.config import ModelConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.labelled.layout import TextLayout
from jaxpt.data.spec import Arrays
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.objectives.base import Batch
from jaxpt.objectives.labelled import Labelled
from jaxpt.objectives.losses import token_loss

START, DELIMITER, EXTRACT = GPT1_TOKENS = ("[START]", "[DELIM]", "[EXTRACT]")
"""Tokens of `extract`."""


class TextHead(Labelled):
    """Hyperparameters of heads on whole texts."""

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

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        key = "extract" if self.extract else "lm_loss"
        if self.family != "decoder" and getattr(self, key):
            raise UserError(f"objective.{key}: is for decoders; model.kind: {model.kind} is of family {self.family}")
        if self.lm_loss and self.features is not None:
            raise UserError("objective.lm_loss trains the model, objective.features reads a frozen one; remove one")
        super().check(model, length, vocabulary)

    def refuse_z_loss(self) -> None:
        if not self.lm_loss:
            super().refuse_z_loss()
