"""What is known of an attention kernel at compilation."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Form:
    """Heads, mask and dropout of a kernel's arguments."""

    heads: int
    causal: bool = False
    window: int | None = None
    """A query sees keys at a distance below this."""
    dropout: float = 0.0
    """Rate on the attention weights."""
    interpret: bool = False
    """Run by JAX, on any device."""
