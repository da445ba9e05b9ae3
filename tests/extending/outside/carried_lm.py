"""Causal language modelling of text that goes on from batch to batch, with word dropout.

    row b    the cat sat on | the mat and ran | …        each batch begins in the state that the one before ended in

The state of a row is carried on; where an epoch ends and a row begins elsewhere, the old state stays. Word dropout
replaces words of the inputs, never of the targets, in validation as well. Paper: https://arxiv.org/abs/1511.06349
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from jaxpt.config import Fraction
from jaxpt.data.calls import Call, Transforms
from jaxpt.errors import UserError
from jaxpt.objectives.causal_lm import CausalLM

LAB = "tests.extending.outside"


class CarriedLM(CausalLM):
    """Hyperparameters of causal language modelling of text that goes on from batch to batch."""

    kind: Literal["tests.extending.outside.carried_lm"] = f"{LAB}.carried_lm"
    carry: bool = True
    """Carry the model's state from batch to batch. False: windows in random order, which may share rows."""
    word_dropout: Fraction = 0.0
    """Share of the inputs that become the unknown word."""

    def data_spec(self, length):
        """Windows of running text, their inputs noisy."""
        plain = super().data_spec(length)

        def transforms(vocabulary, seed):
            windows = plain.transforms(vocabulary, seed)
            if not self.word_dropout:
                return windows
            drop = Call(f"{LAB}.preprocessors.word_dropout", {"rate": self.word_dropout, "unk": vocabulary.unk})
            return Transforms(windows.offline, (drop, Call(f"{LAB}.preprocessors.noisy_decoder", {"length": length})))

        packing = plain.max_packed_lengths if not self.carry else None
        reason = "carries its rows on from batch to batch; set objective.carry: false"
        return dataclasses.replace(plain, transforms=transforms, max_packed_lengths=packing, no_packing=reason)

    def loss(self, model, batch, carry=None):
        """The cross-entropy of the next tokens, from the state that the batch before left."""
        if carry is None:
            return super().loss(model, batch)
        tokens, ids = batch["decoder_input_tokens"], batch["decoder_segment_ids"]
        output = model.decode(tokens, segment_ids=ids, memory=_turned(carry))
        sums, metrics = self.loss_from_hidden(model, output.hidden, batch)
        return {**sums, **output.aux}, metrics, _turned(output.memory)

    @property
    def carries(self):
        return self.carry

    def carry_shapes(self, network, rows):
        if not self.carry:
            return None
        tokens = jax.ShapeDtypeStruct((rows, 1), jnp.int32)
        return jax.eval_shape(lambda p, x: _turned(network.bind(p).decode(x).memory), network.shapes(), tokens)

    def check(self, model, length, vocabulary):
        super().check(model, length, vocabulary)
        if self.word_dropout and vocabulary.unk is None:
            raise UserError("objective.word_dropout needs a vocabulary with an unknown word; bpe has none")
        if self.carry and self.carry_shapes(self.network(model), 1) is None:
            raise UserError(f"objective.carry: model.kind: {model.kind} has no memory; set objective.carry: false")


def _turned(memory):
    """Rows first ⇄ layers first."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), memory)
