"""Outputs of a model: hidden states, caches and auxiliary losses, and the projection from hidden states to logits.

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import flax
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.models.layers import constrain

# Large enough to vanish in a softmax, small enough to be summed.
PADDED = -1e9
CROSS = "cross_attention"
"""Name of the attention whose keys are the encoder's."""


@flax.struct.dataclass
class Past:
    """Inputs of a layer from earlier tokens."""

    cache: Any = None
    """KV cache: of all layers of a segment, or a request for a new one; see `jaxpt.models.cache`."""
    memory: Any = None
    """Recurrent memory or state."""
    layer: jax.Array | None = None
    """Index of the layer in the cache."""
    column: jax.Array | None = None
    """Number of columns in the cache, which is that of the first token."""
    is_fixed: bool = flax.struct.field(pytree_node=False, default=False)
    """True for cross-attention, whose keys do not change."""

    def of(self, attention: str) -> Past:
        """The past of one attention of a block."""
        cache = self.cache[attention] if isinstance(self.cache, Mapping) else self.cache
        return self.replace(cache=cache, is_fixed=attention == CROSS)


NOTHING = Past()


@flax.struct.dataclass
class Output:
    """Output of a block, a stack or a model."""

    hidden: Any
    """Hidden states [B, L, D], or a tree of them if the model has several streams."""
    layers: Any = None
    """On request, the hidden states of all layers: the embeddings, then each layer's output, `hidden` last:
    [layers + 1, B, L, D]."""
    cache: Any = None
    """The updated KV cache; of a model, a tuple over segments of tuples over blocks, leaves with a leading layers
    axis."""
    memory: Any = None
    """Recurrent memory or state for the next batch, with the structure of `cache`."""
    aux: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    """Auxiliary losses, such as a router's: {name: scalar}, summed over tokens and layers, with their coefficients
    applied."""
    routing: Any = None
    """What the routers of sparse layers did (`jaxpt.models.moe.Routing`), None of a dense layer; of a stack a tuple
    over segments of tuples over blocks, leaves [layers, …], of a model all sparse layers in order."""
    metrics: Mapping[str, tuple[jax.Array, jax.Array]] = flax.struct.field(default_factory=dict)
    """Of a model: {name: (Σ value, Σ weight)} of what its routers did, arrays [layers, …]."""
    intermediates: Any = None
    """What modules of a layer sowed, where the caller of `apply` has made Flax's collection "intermediates" mutable."""
    word_starts: Any = None
    """Of a model that reads words: True at the first token of each, [B, L]; all tokens of a word have its states."""

    def with_hidden(self, hidden: Any) -> Output:
        """A copy with other final hidden states, such as those after the final norm."""

        def last(layers: jax.Array, hidden: jax.Array) -> jax.Array:
            return jnp.concatenate([layers[:-1], hidden[None]])

        layers = None if self.layers is None else jax.tree.map(last, self.layers, hidden)
        return self.replace(hidden=hidden, layers=layers)

    def concat(self, output: Output) -> Output:
        """The output of the next stack, with this stack's layers and auxiliary losses added; this one has no state."""
        layers = output.layers
        if self.layers is not None and layers is not None:
            layers = jax.tree.map(lambda a, b: jnp.concatenate([a[:-1], b]), self.layers, layers)
        return output.replace(layers=layers, aux=sum_by_name(self.aux, output.aux))

    def add_aux(self, aux: Mapping[str, jax.Array], metrics: Mapping[str, Any] | None = None) -> Output:
        """A copy with other auxiliary losses added, and metrics of other names."""
        return self.replace(aux=sum_by_name(self.aux, aux), metrics={**self.metrics, **(metrics or {})})


def sum_by_name(*terms: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Adds dictionaries of scalars by name.

    Example:
      >>> sum_by_name({"router": 1, "z": 2}, {"router": 3})
      {'router': 4, 'z': 2}
    """
    names = dict.fromkeys(name for term in terms for name in term)
    return {name: sum(term[name] for term in terms if name in term) for name in names}


@flax.struct.dataclass
class Projection:
    """Projection from hidden states to logits: cap(scale · x · W + b), with cap(z) = c · tanh(z / c).

    Example:
      >>> Projection(jnp.eye(3), vocab_size=2)(jnp.array([1.0, 2.0, 3.0]))
      Array([ 1.e+00,  2.e+00, -1.e+09], dtype=float32)
    """

    kernel: jax.Array
    """W: [D, Vp], or [Vp, D] if `tied`."""
    bias: jax.Array | None = None
    """b: [Vp]."""
    vocab_size: int | None = flax.struct.field(pytree_node=False, default=None)
    """V; later columns are padding. Default: all columns."""
    tied: bool = flax.struct.field(pytree_node=False, default=False)
    """W is the transposed kernel, an embedding table."""
    scale: float | None = flax.struct.field(pytree_node=False, default=None)
    soft_cap: float | None = flax.struct.field(pytree_node=False, default=None)
    """c; no cap by default."""
    dtype: DTypeLike | None = flax.struct.field(pytree_node=False, default=None)
    """Dtype of x · W, accumulated in float32; default: the kernel's dtype."""

    @property
    def columns(self) -> int:
        """Vp."""
        return self.kernel.shape[0 if self.tied else 1]

    def __call__(self, x: jax.Array, padded: bool = True, vocab_axis: Literal[0, -1] = -1) -> jax.Array:
        """Logits of hidden states.

        Args:
          x: [..., D].
          padded: keep the padding columns, with a large negative logit, so that a sharded axis stays divisible.
          vocab_axis: where the vocabulary stands.

        Returns:
          float32 [..., Vp] if `padded`, else [..., V]; [Vp, ...] or [V, ...] with `vocab_axis` 0.
        """
        return self.logits(self.products(x, vocab_axis), self.bias, vocab_axis, padded)

    @property
    def cast_kernel(self) -> jax.Array:
        """W in the dtype of the product."""
        return self.kernel.astype(self.kernel.dtype if self.dtype is None else self.dtype)

    def products(self, x: jax.Array, vocab_axis: Literal[0, -1] = -1) -> jax.Array:
        """scale · x · W, float32 [..., Vp], or [Vp, ...]: the first half of a call."""
        to = "V..." if vocab_axis == 0 else "...V"
        return jnp.einsum(f"...D,{self._axes}->{to}", *self._factors(x), preferred_element_type=jnp.float32)

    def logits(
        self, products: jax.Array, bias: jax.Array | None, vocab_axis: Literal[0, -1] = -1, padded: bool = True
    ) -> jax.Array:
        """Logits from `products`: the bias, the cap, the padding.

        Args:
          products: float32 [..., Vp], or [Vp, ...].
          bias: [Vp].
          vocab_axis: the vocabulary's axis of `products`.
          padded: keep the columns of padding rows, with a large negative logit.

        Returns:
          float32 in the order of `products`.
        """

        def columns(v: jax.Array) -> jax.Array:
            return v[(...,) + (None,) * (products.ndim - 1)] if vocab_axis == 0 else v

        logits = products if bias is None else products + columns(bias)
        logits = logits if self.soft_cap is None else self.soft_cap * jnp.tanh(logits / self.soft_cap)
        logits = jnp.moveaxis(constrain(jnp.moveaxis(logits, vocab_axis, -1), "act_vocab"), -1, vocab_axis)
        if self.vocab_size in (None, self.columns):
            return logits
        if not padded:
            return jax.lax.slice_in_dim(logits, 0, self.vocab_size, axis=vocab_axis)
        return jnp.where(columns(jnp.arange(self.columns) < self.vocab_size), logits, PADDED)

    def transposed(
        self, slope: jax.Array, x: jax.Array, vocab_axis: Literal[0, -1] = -1
    ) -> tuple[jax.Array, jax.Array]:
        """Gradients through `products`, both in float32.

        Args:
          slope: to the products, like them.
          x: what these were made of.
          vocab_axis: where the vocabulary stands in `slope`.

        Returns:
          (to the kernel, to x).
        """
        x, kernel = self._factors(x)
        leading = "BCEFG"[: x.ndim - 1]
        logits = f"V{leading}" if vocab_axis == 0 else f"{leading}V"
        to_kernel = jnp.einsum(f"{logits},{leading}D->{self._axes}", slope, x, preferred_element_type=jnp.float32)
        to_x = jnp.einsum(f"{logits},{self._axes}->{leading}D", slope, kernel, preferred_element_type=jnp.float32)
        return to_kernel, to_x if self.scale is None else to_x * self.scale

    @property
    def _axes(self) -> str:
        return "VD" if self.tied else "DV"

    def _factors(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        kernel = self.cast_kernel
        return (x if self.scale is None else x * self.scale).astype(kernel.dtype), kernel
