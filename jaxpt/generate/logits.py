"""Logits of the next token, and the tokens so far, which decide what is done to them."""

from __future__ import annotations

import flax.struct
import jax


@flax.struct.dataclass
class History:
    """Tokens so far of each row."""

    tokens_BxT: jax.Array
    """int32; row b has its prompt in columns 0 … prompt_B[b]−1, then what was generated; later columns are
    meaningless."""
    length_B: jax.Array
    """Tokens so far, prompt included."""
    prompt_B: jax.Array
    """Tokens of the prompt (decoder-only: the prompt; encoder-decoder: the decoder's start token(s))."""
