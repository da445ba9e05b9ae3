"""`jaxpt.load`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from jax.sharding import Mesh

from jaxpt.config import MeshConfig
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.inference import opening
from jaxpt.inference.loaded import Loaded


def load(
    path: str | Path,
    *,
    tokenizer: str | Path | Tokenizer | None = None,
    mesh: Mesh | MeshConfig | None = None,
    batch_size: int = 32,
    dtype: Literal["auto", "float32", "bfloat16"] | None = None,
    objective: str | Mapping[str, Any] | None = None,
) -> Loaded:
    """Loads a trained model.

    Args:
      path: RUN_DIR (its newest checkpoint), RUN_DIR/checkpoints/STEP, or a Hugging Face directory.
      tokenizer: another tokenizer, or its file or directory.
      mesh: devices to shard the parameters over; by default the first device.
      batch_size: rows that are decoded at a time.
      dtype: compute dtype; by default the model's, on Hugging Face models bfloat16 on accelerators.
      objective: kind or settings of the objective that says how a text begins and ends, where the run's own, or the
        family's usual one for a Hugging Face directory, is not the right one.

    Returns:
      The model.

    Raises:
      UserError: the directory is none of these, is damaged, or has no tokenizer.
    """
    return Loaded(opening.open_model(path, tokenizer, objective), mesh=mesh, batch_size=batch_size, dtype=dtype)
