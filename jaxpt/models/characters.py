"""Word vectors made of characters: convolutions, maxima over the word, highway layers, a projection (ELMo).

    v(word) = W · highway(relu(max_t conv_w(e)_t) for each width w),    e: embeddings of the word's characters
    highway(x) = g · relu(x · T + b) + (1 − g) · x,                     g = σ(x · C + c)

A word's characters are the bytes of its UTF-8 form, in at most `longest` codes:

    0 no word   1 … 256 a byte + 1   257 <S>   258 </S>   259 begin of a word   260 end of a word   261 nothing more

They stand in a table with a row for each id of the vocabulary, which is no weight: it is made of the vocabulary and
never trained. A word that the vocabulary does not have is several ids, one for each byte (`spelled_words` of
`jaxpt.data.tokenizers`); its vector stands at the first of them, the others are no words.
Papers: https://arxiv.org/abs/1508.06615, https://arxiv.org/abs/1602.02410

Shapes: B batch · L length · M codes of a word · E width of a code's embedding · F filters of all widths · P width of a
word's vector · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxpt.models.layers import Dense, constrain, param, stored_rows, uniform

if TYPE_CHECKING:
    from jaxpt.data.calls import Vocabulary

SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, NOTHING = range(257, 262)
CODES = 262
"""Number of codes."""
FIRST_BYTE, NEXT_BYTE = -1, -2
"""In place of a row's first code: the id is a byte (the second code) of a spelled word, its first or another."""


def spelling(words: Sequence[str], vocabulary: Vocabulary, longest: int, vocab_size: int) -> np.ndarray:
    """The characters of each id.

    Args:
      words: the word of each id, but for those that spell.
      vocabulary: BOS and EOS, which have a code of their own, and where ids that spell begin.
      longest: M.
      vocab_size: V of the model, at least the vocabulary's size.

    Returns:
      float32 [Vp, M].

    Example:
      >>> from jaxpt.data.calls import Vocabulary
      >>> spelling(["</S>", "ab"], Vocabulary(2, eos=0), longest=6, vocab_size=2)[:2].astype(int).tolist()
      [[259, 258, 260, 261, 261, 261], [259, 98, 99, 260, 261, 261]]
    """
    table = np.zeros((stored_rows(vocab_size), longest), np.float32)
    for i, word in enumerate(words):
        codes = [byte + 1 for byte in word.encode("utf-8", "ignore")[: longest - 2]]
        codes = {vocabulary.bos: [SENTENCE_BEGIN], vocabulary.eos: [SENTENCE_END]}.get(i, codes)
        table[i] = NOTHING
        table[i, : len(codes) + 2] = [WORD_BEGIN, *codes, WORD_END]
    if vocabulary.spelled_from is not None:
        for place, kind in enumerate((FIRST_BYTE, NEXT_BYTE)):
            rows = slice(vocabulary.spelled_from + 256 * place, vocabulary.spelled_from + 256 * (place + 1))
            table[rows, 0], table[rows, 1] = kind, np.arange(1, 257)
    return table


def of_tokens(rows_BxLxM: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The characters of words, those that are spelled put together.

    Args:
      rows_BxLxM: rows of `spelling`.

    Returns:
      (codes int32 [B, L, M], 0 where no word begins; whether one does, bool [B, L]).
    """
    length, longest = rows_BxLxM.shape[1:]
    kinds_BxL, bytes_BxL = rows_BxLxM[..., 0], rows_BxLxM[..., 1]
    is_word_BxL = kinds_BxL != NEXT_BYTE
    place_L, code_M = jnp.arange(length), jnp.arange(longest)
    # The place behind a word's last byte: that of the next word.
    next_BxL = jnp.pad(jnp.where(is_word_BxL, place_L, length)[:, 1:], ((0, 0), (0, 1)), constant_values=length)
    next_BxL = jax.lax.cummin(next_BxL, axis=1, reverse=True)
    count_BxLx1 = jnp.minimum(next_BxL - place_L, longest - 2)[..., None]
    at_LxM = jnp.clip(place_L[:, None] + code_M - 1, 0, length - 1)
    spelled_BxLxM = jnp.where(code_M <= count_BxLx1, bytes_BxL[:, at_LxM], NOTHING)
    spelled_BxLxM = jnp.where(code_M == count_BxLx1 + 1, WORD_END, spelled_BxLxM).at[..., 0].set(WORD_BEGIN)
    codes_BxLxM = jnp.where((kinds_BxL == FIRST_BYTE)[..., None], spelled_BxLxM, rows_BxLxM)
    return jnp.where(is_word_BxL[..., None], codes_BxLxM, 0).astype(jnp.int32), is_word_BxL


def at_first(x_BxLxP: jax.Array, is_word_BxL: jax.Array) -> jax.Array:
    """The states at the first token of each token's word; x may have leading axes."""
    first_BxL = jax.lax.cummax(jnp.where(is_word_BxL, jnp.arange(is_word_BxL.shape[1]), 0), axis=1)
    take = functools.partial(jnp.take_along_axis, indices=first_BxL[..., None], axis=1)
    return take(x_BxLxP) if x_BxLxP.ndim == 3 else jax.vmap(take)(x_BxLxP)


class CharacterEmbed(nn.Module):
    """Vectors of words from their characters."""

    vocab_size: int
    width: int
    """P."""
    longest: int
    """M."""
    char_dim: int
    """E."""
    filters: tuple[tuple[int, int], ...]
    """(characters, number) of the filters."""
    highways: int
    """Number of highway layers."""
    dtype: DTypeLike

    @nn.compact
    def __call__(self, tokens_BxL: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[B, L] → (vectors [B, L, P], whether a word begins there, bool [B, L])."""
        shape = (stored_rows(self.vocab_size), self.longest)
        table = jax.lax.stop_gradient(param(self, "spelling", nn.initializers.zeros, shape, ("vocab", "norm")))
        codes_BxLxM, is_word_BxL = of_tokens(jnp.take(table, tokens_BxL, axis=0, mode="clip"))
        x_BxLxF = constrain(self._convolved(codes_BxLxM), "act_embed")
        for layer in range(self.highways):
            x_BxLxF = Highway(self.dtype, name=f"highway_{layer}")(x_BxLxF)
        if x_BxLxF.shape[-1] != self.width:
            init = nn.initializers.normal(x_BxLxF.shape[-1] ** -0.5)
            x_BxLxF = Dense(self.width, ("mlp", "embed"), init, self.dtype, name="projection")(x_BxLxF)
        return constrain(x_BxLxF, "act_embed"), is_word_BxL

    def _convolved(self, codes_BxLxM: jax.Array) -> jax.Array:
        """relu(max over the word of each filter): [B, L, M] → [B, L, F]."""
        codes = param(self, "characters", uniform(1.0), (CODES, self.char_dim), ("classes", "norm"))
        x_NxMxE = codes.astype(self.dtype)[codes_BxLxM.reshape(-1, self.longest)]
        outputs = []
        for index, (characters, number) in enumerate(self.filters):
            shape = (characters, self.char_dim, number)
            kernel = param(self, f"filter_{index}_kernel", uniform(0.05), shape, ("norm", "norm", "norm"))
            bias = param(self, f"filter_{index}_bias", nn.initializers.zeros, (number,), ("norm",))
            places = ("NWC", "WIO", "NWC")
            y = jax.lax.conv_general_dilated(
                x_NxMxE, kernel.astype(self.dtype), (1,), "VALID", dimension_numbers=places
            )
            outputs.append(jax.nn.relu(y.max(1) + bias.astype(self.dtype)))
        return jnp.concatenate(outputs, -1).reshape(*codes_BxLxM.shape[:2], -1)


class Highway(nn.Module):
    """g · relu(x · T + b) + (1 − g) · x, with g = σ(x · C + c), and c = −2 at the start."""

    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        init, axes = nn.initializers.normal(width**-0.5), ("embed", "mlp")
        bias = param(self, "gate_bias", nn.initializers.constant(-2.0), (width,), ("mlp",)).astype(self.dtype)
        gate = Dense(width, axes, init, self.dtype, use_bias=False, name="gate")(x) + bias
        gate = jax.nn.sigmoid(gate)
        new = jax.nn.relu(Dense(width, axes, init, self.dtype, name="transform")(x))
        return gate * new + (1 - gate) * x
