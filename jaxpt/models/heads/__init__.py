"""Heads, which map hidden states to predictions of a task: one file per head.

A head is an `nn.Module` that an objective or fine-tuning task declares in addition to the backbone
(`jaxpt.models.network.Head`); its parameters are in `{"model": …, "heads": {name: …}}`.
"""

import flax.linen as nn

INIT = nn.initializers.truncated_normal(0.02)
"""Initializer of all kernels and embeddings of heads (BERT's)."""
