"""The LSTM of all recurrent models: one layer in one direction.

    i, f, g, o = x_t · W + h_{t−1} · U + b
    c_t = clip(σ(f + forget_bias) · c_{t−1} + σ(i) · tanh(g))
    h_t = clip((σ(o) · tanh(c_t)) · W_P)                            without a projection σ(o) · tanh(c_t)

The state (h, c) is zero where a text starts, and passes over padding. x · W of all tokens is one product before the
loop over time, and so are the gradients of U and W_P after it: the loop itself would add to a matrix of their size at
each token. Papers: https://doi.org/10.1162/neco.1997.9.8.1735, projection https://arxiv.org/abs/1402.1128, dropped
U (DropConnect) https://arxiv.org/abs/1708.02182

Shapes: B batch · L length · D width of the inputs · H cells · G = 4·H gates · P width of the outputs (H without a
projection)
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.models.layers import Dense, Dropout, Initializer, param


class State(NamedTuple):
    """What one direction of a layer has read so far, float32."""

    output_BxP: jax.Array
    cell_BxH: jax.Array


class LSTM(nn.Module):
    """One layer in one direction. Parameters: `input` (W, b), `recurrent_kernel` (U), `projection_kernel` (W_P)."""

    size: int
    """H."""
    dtype: DTypeLike
    """Of the products; the cell is float32."""
    input_init: Initializer = nn.initializers.lecun_normal()
    recurrent_init: Initializer = nn.initializers.lecun_normal()
    projection_init: Initializer = nn.initializers.lecun_normal()
    reverse: bool = False
    """Reads from the last token to the first."""
    projection: int | None = None
    """P; none by default."""
    forget_bias: float = 0.0
    """Added to the gate f, beside the bias that is learned."""
    cell_clip: float | None = None
    """Largest absolute value of a cell."""
    projection_clip: float | None = None
    """Largest absolute value of a projected output."""
    weight_dropout: float = 0.0
    """Dropout on U, the same for all tokens and rows of a call."""

    @nn.compact
    def __call__(
        self, x_BxLxD: jax.Array, segment_ids_BxL: jax.Array | None = None, state: State | None = None
    ) -> tuple[jax.Array, State]:
        """Reads a batch.

        Args:
          x_BxLxD: inputs.
          segment_ids_BxL: texts of a row by number, 0 on padding; one text by default. The state becomes zero where
            another text starts; a row's first text continues `state`.
          state: after the tokens before these; zeros by default.

        Returns:
          (outputs [B, L, P] in `dtype`, the state after the last token that is read).
        """
        width = self.projection or self.size
        dense = Dense(4 * self.size, ("embed", "mlp"), self.input_init, self.dtype, name="input")
        gates_LxBxG = dense(x_BxLxD).swapaxes(0, 1)
        recurrent_PxG = self._matrix("recurrent_kernel", self.recurrent_init, (width, 4 * self.size), ("embed", "mlp"))
        weights = Weights(Dropout(self.weight_dropout)(recurrent_PxG))
        if self.projection:
            shape, axes = (self.size, width), ("mlp", "embed")
            weights = weights._replace(
                projection_HxP=self._matrix("projection_kernel", self.projection_init, shape, axes)
            )
        if state is None:
            rows = len(x_BxLxD)
            state = State(jnp.zeros((rows, width), jnp.float32), jnp.zeros((rows, self.size), jnp.float32))
        ids_LxB = jnp.ones(gates_LxBxG.shape[:2], jnp.int32) if segment_ids_BxL is None else segment_ids_BxL.T
        if self.reverse:
            ids_LxB, gates_LxBxG = ids_LxB[::-1], gates_LxBxG[::-1]
        cell = Cell(self.dtype, self.forget_bias, self.cell_clip, self.projection_clip)
        state, outputs_LxBxP = recur(cell, weights, gates_LxBxG, (starts(ids_LxB), ids_LxB > 0), state)
        outputs_LxBxP = outputs_LxBxP[::-1] if self.reverse else outputs_LxBxP
        return outputs_LxBxP.swapaxes(0, 1), state

    def _matrix(self, name: str, init: Initializer, shape: tuple[int, int], axes: tuple[str, str]) -> jax.Array:
        """A matrix of the loop, fully replicated before it: gathered once, not at each token.

        Sharded over fsdp and tensor in the loop, XLA gives it a wrong gradient.
        """
        return nn.with_logical_constraint(param(self, name, init, shape, axes), (None, None)).astype(self.dtype)


class Weights(NamedTuple):
    """The matrices of the loop over time."""

    recurrent_PxG: jax.Array
    projection_HxP: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Cell:
    """The constants of one step: see `LSTM`."""

    dtype: DTypeLike
    forget_bias: float = 0.0
    cell_clip: float | None = None
    projection_clip: float | None = None

    def __call__(self, weights: Weights, before: State, now: Any) -> tuple[State, Any]:
        """Reads one token.

        Args:
          weights: the matrices.
          before: the state.
          now: gates x · W + b [B, G]; zeros that are added to the projection, whose gradient is its; whether a text
            starts; whether the token is not padding.

        Returns:
          (state, (output, and what the matrices are multiplied with: the output before, the cells' outputs)).
        """
        gates_BxG, zeros_BxP, is_start_B, is_real_B = now
        output_BxP, cell_BxH = (jnp.where(is_start_B[:, None], 0, x) for x in before)
        read_BxP = output_BxP.astype(self.dtype)
        recurrent_BxG = jnp.matmul(read_BxP, weights.recurrent_PxG, preferred_element_type=jnp.float32)
        i, f, g, o = jnp.split(gates_BxG + recurrent_BxG, 4, axis=-1)
        cell_BxH = jax.nn.sigmoid(f + self.forget_bias) * cell_BxH + jax.nn.sigmoid(i) * jnp.tanh(g)
        cell_BxH = _clip(cell_BxH, self.cell_clip)
        hidden_BxH = (jax.nn.sigmoid(o) * jnp.tanh(cell_BxH)).astype(self.dtype)
        output_BxP = hidden_BxH
        if weights.projection_HxP is not None:
            projected_BxP = jnp.matmul(hidden_BxH, weights.projection_HxP, preferred_element_type=jnp.float32)
            projected_BxP = projected_BxP if zeros_BxP is None else projected_BxP + zeros_BxP
            output_BxP = _clip(projected_BxP, self.projection_clip).astype(self.dtype)
        after = State(output_BxP.astype(jnp.float32), cell_BxH)
        after = State(*(jnp.where(is_real_B[:, None], new, old) for new, old in zip(after, before)))
        return after, (output_BxP, read_BxP, hidden_BxH)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def recur(
    cell: Cell, weights: Weights, gates_LxBxG: jax.Array, masks_LxB: tuple[jax.Array, jax.Array], state: State
) -> tuple[State, jax.Array]:
    """The loop over time, in the order of the arrays.

    Args:
      cell: the step.
      weights: the matrices, in the dtype of their products.
      gates_LxBxG: x · W + b.
      masks_LxB: where a text starts (`starts`), and which tokens are not padding.
      state: before the first token.

    Returns:
      (state after the last token, outputs [L, B, P]).
    """
    state, (outputs_LxBxP, *_) = _scan(cell, weights, gates_LxBxG, None, masks_LxB, state)
    return state, outputs_LxBxP


def _scan(cell: Cell, weights: Weights, gates: jax.Array, zeros: jax.Array | None, masks: Any, state: State) -> Any:
    return jax.lax.scan(functools.partial(cell, weights), state, (gates, zeros, *masks))


def _forward(cell: Cell, weights: Weights, gates_LxBxG: jax.Array, masks_LxB: Any, state: State) -> tuple[Any, Any]:
    zeros = None
    if weights.projection_HxP is not None:
        zeros = jnp.zeros((*gates_LxBxG.shape[:2], weights.projection_HxP.shape[1]), jnp.float32)

    def run(gates_LxBxG: jax.Array, zeros_LxBxP: jax.Array | None, state: State) -> tuple[Any, Any]:
        state, (outputs_LxBxP, *factors) = _scan(cell, weights, gates_LxBxG, zeros_LxBxP, masks_LxB, state)
        return (state, outputs_LxBxP), factors

    result, pull_back, factors = jax.vjp(run, gates_LxBxG, zeros, state, has_aux=True)
    return result, (pull_back, factors, weights)


def _backward(cell: Cell, residuals: Any, cotangents: Any) -> tuple[Any, ...]:
    pull_back, (read_LxBxP, hidden_LxBxH), weights = residuals
    to_gates_LxBxG, to_projected_LxBxP, to_state = pull_back(cotangents)

    def product(factor: jax.Array, slope: jax.Array | None, matrix: jax.Array) -> jax.Array:
        sums = jnp.einsum("LBX,LBY->XY", factor, slope.astype(factor.dtype), preferred_element_type=jnp.float32)
        return sums.astype(matrix.dtype)

    to_weights = Weights(product(read_LxBxP, to_gates_LxBxG, weights.recurrent_PxG))
    if weights.projection_HxP is not None:
        to_projection = product(hidden_LxBxH, to_projected_LxBxP, weights.projection_HxP)
        to_weights = to_weights._replace(projection_HxP=to_projection)
    return to_weights, to_gates_LxBxG, None, to_state


recur.defvjp(_forward, _backward)


def starts(ids_LxB: jax.Array) -> jax.Array:
    """Where a text starts that is not the first of its row: bool [L, B].

    Args:
      ids_LxB: texts by number, in the order in which they are read; 0 on padding.

    Example:
      >>> starts(jnp.array([[0, 1, 1, 0, 2, 2]]).T)[:, 0].astype(int).tolist()
      [0, 0, 0, 0, 1, 0]
    """
    is_real_LxB = ids_LxB > 0
    last_LxB = jax.lax.cummax(jnp.where(is_real_LxB, jnp.arange(len(ids_LxB))[:, None], -1))
    before_LxB = jnp.pad(last_LxB[:-1], ((1, 0), (0, 0)), constant_values=-1)
    ids_before_LxB = jnp.take_along_axis(ids_LxB, jnp.maximum(before_LxB, 0), axis=0)
    return is_real_LxB & (before_LxB >= 0) & (ids_LxB != ids_before_LxB)


def _clip(x: jax.Array, largest: float | None) -> jax.Array:
    return x if largest is None else jnp.clip(x, -largest, largest)
