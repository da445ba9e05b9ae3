"""A language model whose loss is 1,000 times as large for batches of certain checksums: spikes that data make."""

from typing import Literal

import jax.numpy as jnp

from jaxpt.objectives.causal_lm import CausalLM


def checksum(batch):
    """A number that hardly two batches share: Σ token · (1 + position in the batch)."""
    tokens = batch["decoder_target_tokens"].ravel()
    return (tokens * (1 + jnp.arange(tokens.size))).sum()


class SpikingLM(CausalLM):
    """Causal LM with spikes."""

    kind: Literal["tests.train.spiking"] = "tests.train.spiking"
    checksums: tuple[int, ...] = ()
    """Of the batches."""

    def loss_from_hidden(self, model, hidden, batch):
        """The loss of causal LM, or 1,000 times that."""
        sums, metrics = super().loss_from_hidden(model, hidden, batch)
        spikes = jnp.isin(checksum(batch), jnp.asarray(self.checksums, jnp.int32)) if self.checksums else False
        return {name: jnp.where(spikes, 1000.0, 1.0) * total for name, total in sums.items()}, metrics
