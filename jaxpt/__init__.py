"""jaxpt: pretrain, fine-tune, evaluate and ship Transformers of all three families with JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxpt.inference.loaded import Loaded

__version__ = "0.1.0"


def load(path: Any, **options: Any) -> Loaded:
    """Loads a trained model to generate, score, fill masks and embed; see `jaxpt.inference.loaded.load`."""
    from jaxpt.inference import loaded

    return loaded.load(path, **options)
