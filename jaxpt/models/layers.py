"""Layers that all architectures share: projections, embeddings, norms, feed-forward.

Shapes: B batch · L length · D embedding width · F feed-forward width · V vocabulary (Vp: its rows in storage)

Every parameter is float32 and has logical axis names, which `jaxpt.parallel.rules` maps to mesh axes:
  "vocab" "embed" "mlp" "heads" "positions" "buckets" "classes", "layers" and "expert" of stacks, "expert_embed" for the
  width of what each expert has, and "norm" for replicated vectors.
Activations have separate names: "batch" "length" "residual_length" (between blocks) "act_embed"
"act_heads" "act_mlp" "act_vocab".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.models import split, threefry
from jaxpt.parallel import compiler, staged

PARAMETER_AXES = (
    "vocab", "embed", "expert_embed", "mlp", "heads", "positions", "buckets", "classes", "layers", "expert", "norm",
)  # fmt: skip
VOCAB_MULTIPLE = 128

Initializer = jax.nn.initializers.Initializer
F = TypeVar("F", bound=Callable[..., jax.Array])
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]


def uniform(bound: float) -> Initializer:
    """Initial values uniform on (−bound, bound), whatever the shape."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def stored_rows(vocab_size: int) -> int:
    """Number of rows of a stored vocabulary table: the next multiple of 128, independent of the mesh.

    Args:
      vocab_size: number of token ids.

    Returns:
      Number of rows.

    Example:
      >>> stored_rows(50257), stored_rows(32128)
      (50304, 32128)
    """
    return math.ceil(vocab_size / VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def constrain(x: jax.Array, last: str) -> jax.Array:
    """Constrains the sharding of an activation: batch, length, then `last`. Does nothing without a mesh.

    A length that is not divisible by its mesh axes (few masked positions) is replicated.

    Args:
      x: [batch, …, last], of any rank.
      last: logical name of the last axis, such as "act_mlp".

    Returns:
      `x`.
    """
    length = "residual_length" if last == "act_embed" else "length"
    if x.ndim > 2 and x.shape[1] % math.prod(mesh_axes(length).values()):
        length = None
    leading = ("batch", length, *(None,) * x.ndim)[: x.ndim - 1]
    return nn.with_logical_constraint(x, (*leading, last))


def mesh_axes(name: str) -> dict[str, int]:
    """The mesh axes that shard a logical axis: {axis: size}, without axes of size 1.

    Args:
      name: a logical axis.

    Returns:
      An empty dict without a mesh, or inside a manual `shard_map` region.
    """
    mesh, axes = jax.sharding.get_abstract_mesh(), dict(nn.get_logical_axis_rules()).get(name) or ()
    axes = (axes,) if isinstance(axes, str) else axes
    return {axis: mesh.shape[axis] for axis in axes if mesh.shape.get(axis, 1) > 1 and axis not in mesh.manual_axes}


def dividing_axes(name: str, size: int) -> tuple[str, ...]:
    """The mesh axes that shard a logical axis of a size; none if they do not divide it, and every device has it all.

    Args:
      name: a logical axis.
      size: its size.
    """
    axes = mesh_axes(name)
    return () if size % math.prod(axes.values()) else tuple(axes)


def split_of(axes: tuple[str, ...], x: jax.Array) -> split.Split | None:
    """How a weight is split, if it is gathered in stages (`jaxpt.parallel.staged`).

    Args:
      axes: the weight's logical axes.
      x: what it is applied to, [batch, …].

    Returns:
      None where that is left to XLA's partitioner: all but TPU slices over whose devices a weight is split, and tables
      of which each device has some rows.
    """
    rows, width = tuple(mesh_axes("batch")), tuple(mesh_axes("embed"))
    if "embed" not in axes or not set(width) <= set(rows) or staged.stages(width) == 1:
        return None
    is_cut = mesh_axes("length") or mesh_axes("residual_length") or mesh_axes("layers")
    if is_cut or x.shape[0] % math.prod(mesh_axes("batch").values()):
        return None
    dimension = axes.index("embed")
    other = tuple(mesh_axes(axes[1 - dimension]))
    if set(other) & set(rows) or (other and axes[0] == "vocab"):
        return None
    return split.Split(rows, width, dimension, other)


def param(module: nn.Module, name: str, init: Initializer, shape: tuple[int, ...], axes: tuple[str, ...]) -> jax.Array:
    """Creates a float32 parameter of `module` with logical axis names."""
    return module.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32)


def from_inputs(function: F) -> F:
    """A function whose backward pass computes it again: it keeps its inputs in their own dtype, and nothing in between.

    Args:
      function: of arrays; cheap beside the memory that it would keep, such as a norm in float32 of bfloat16 states.

    Returns:
      The function, with the same values and gradients.

    Example:
      >>> square = from_inputs(lambda x: x * x)
      >>> print(square(3.0), jax.grad(square)(3.0))
      9.0 6.0
    """
    return jax.checkpoint(function, prevent_cse=False)


def gelu(x: jax.Array) -> jax.Array:
    """x · Φ(x) = x / 2 · (1 + erf(x / √2)), in float32.

    As torch computes it. `jax.nn.gelu` uses erfc, which keeps more digits where the result is near 0 (the difference is
    below 1e-6), and with which a step of BERT-base takes 3 % longer on a CPU.

    Args:
      x: of any shape.

    Returns:
      The same shape and dtype.

    Example:
      >>> print(gelu(jnp.array([-1.0, 0.0, 1.0])))
      [-0.15865526  0.          0.8413447 ]

    Paper: https://arxiv.org/abs/1606.08415
    """
    y = x.astype(jnp.float32)
    return (y * 0.5 * (1 + jax.lax.erf(y * math.sqrt(0.5)))).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": from_inputs(gelu),  # exact: BERT
    "gelu_tanh": from_inputs(functools.partial(jax.nn.gelu, approximate=True)),  # tanh approximation: GPT-2, T5 1.1
    "silu": from_inputs(jax.nn.silu),  # Llama
    "tanh": jnp.tanh,
}


class Dense(nn.Module):
    """y = x · W + b, with W of shape [in, features]."""

    features: int
    axes: tuple[str, str]
    """Logical axis names of W. The bias has the second one, or "norm" if that is "embed"."""
    kernel_init: Initializer
    dtype: DTypeLike
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = param(self, "kernel", self.kernel_init, (x.shape[-1], self.features), self.axes)
        kernel, how = kernel.astype(self.dtype), split_of(self.axes, x)
        shape, x = (*x.shape[:-1], self.features), x.astype(self.dtype)
        y = split.product(how, x, kernel) if how else _rows(x) @ kernel
        if self.use_bias:
            axis = "norm" if self.axes[1] == "embed" else self.axes[1]
            y += param(self, "bias", nn.initializers.zeros, (self.features,), (axis,)).astype(self.dtype)
        return y.reshape(shape)


def _rows(x: jax.Array) -> jax.Array:
    """[..., D] → [rows, D] on a CPU, where the length is not sharded; elsewhere `x`.

    A kernel's gradient is a sum over the rows. Where they are two axes XLA's CPU compiler writes a transposed copy of
    the output's gradient for it: a step of BERT-base (16 × 128 tokens, AMD EPYC, 2 cores) took 7.81 s, now 7.28,
    GPT-2 124M (4 × 256) 5.72, now 5.34. Compilers for TPUs and GPUs make no copy.
    """
    is_cut = mesh_axes("length") or mesh_axes("residual_length")
    return x if is_cut or compiler.platform() != "cpu" else x.reshape(-1, x.shape[-1])


class Embed(nn.Module):
    """A table of token embeddings [Vp, D]; may be tied to the output projection."""

    vocab_size: int
    width: int
    embedding_init: Initializer
    dtype: DTypeLike
    tied: bool = True
    """The output projection may use the table too: then its gradient is summed over devices with that of the lookups,
    once, and the table is gathered once."""

    def setup(self) -> None:
        shape = (stored_rows(self.vocab_size), self.width)
        self.table = param(self, "table", self.embedding_init, shape, ("vocab", "embed"))

    def __call__(self, tokens_BxL: jax.Array) -> jax.Array:
        """Looks up tokens: [B, L] → [B, L, D]."""
        if not self.tied and (how := split_of(("vocab", "embed"), tokens_BxL)):
            return constrain(split.lookup(how, self.table, tokens_BxL, self.dtype), "act_embed")
        # Cast after the lookup, so the table's gradient is summed in float32.
        # Gather the table first: a lookup in a table sharded along D would gather its far larger result.
        table = nn.with_logical_constraint(self.table, ("vocab", None))
        x_BxLxD = jnp.take(table, tokens_BxL, axis=0, mode="clip").astype(self.dtype)
        return constrain(x_BxLxD, "act_embed")


class SmallEmbed(nn.Module):
    """A small embedding table (token types), looked up by a product with one-hot vectors.

    The gradient of a gather would add all tokens of the batch to the same two rows, serially.
    """

    rows: int
    width: int
    embedding_init: Initializer
    dtype: DTypeLike

    @nn.compact
    def __call__(self, ids_BxL: jax.Array) -> jax.Array:
        table = param(self, "table", self.embedding_init, (self.rows, self.width), ("classes", "embed"))
        return jax.nn.one_hot(ids_BxL, self.rows, dtype=self.dtype) @ table.astype(self.dtype)


class Dropout(nn.Module):
    """Zeroes a fraction of the values and scales up the rest; off without a random key."""

    rate: float
    broadcast_dims: tuple[int, ...] = ()
    """Axes along which all values share a draw: (1,) of [B, L, D] is variational dropout, one draw for all tokens.
    Paper: https://arxiv.org/abs/1512.05287"""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.rate == 0 or not self.has_rng("dropout"):
            return x
        if self.rate == 1:  # 0 / 0 has no gradient
            return jnp.zeros_like(x)
        shape = tuple(1 if axis in self.broadcast_dims else size for axis, size in enumerate(x.shape))
        keep_mask = threefry.bernoulli(self.make_rng("dropout"), 1.0 - self.rate, shape)
        keep_mask = jnp.broadcast_to(keep_mask, x.shape) if self.broadcast_dims else keep_mask
        return jax.lax.select(keep_mask, x / (1.0 - self.rate), jnp.zeros_like(x))


class LayerNorm(nn.Module):
    """(x − mean) / √(variance + ε) · scale + bias, over the last axis, in float32.

    Paper: https://arxiv.org/abs/1607.06450
    """

    epsilon: float
    dtype: DTypeLike
    use_bias: bool = True
    per_head: bool = False
    """Of [..., H, K]: each head has its scale, stored as [H · K]."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = x.shape[-2:] if self.per_head else x.shape[-1:]

        def vector(name: str, init: Initializer) -> jax.Array:
            return param(self, name, init, (math.prod(shape),), ("norm",)).reshape(shape)

        scale = vector("scale", nn.initializers.ones)
        bias = vector("bias", nn.initializers.zeros) if self.use_bias else None

        @from_inputs
        def norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None) -> jax.Array:
            x = x.astype(jnp.float32)
            x -= x.mean(-1, keepdims=True)
            variance = jnp.square(x).mean(-1, keepdims=True)
            y = x * jax.lax.rsqrt(variance + self.epsilon) * scale
            return (y if bias is None else y + bias).astype(self.dtype)

        return norm(x, scale, bias)


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · scale, over the last axis, in float32.

    Paper: https://arxiv.org/abs/1910.07467
    """

    epsilon: float
    dtype: DTypeLike
    plus_one: bool = False
    """The factor is 1 + scale, with a scale that begins at zero (Gemma)."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.initializers.zeros if self.plus_one else nn.initializers.ones
        scale = param(self, "scale", init, x.shape[-1:], ("norm",))

        @from_inputs
        def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
            x = x.astype(jnp.float32)
            scale = 1 + scale if self.plus_one else scale
            mean_square = jnp.square(x).mean(-1, keepdims=True)
            return (x * jax.lax.rsqrt(mean_square + self.epsilon) * scale).astype(self.dtype)

        return norm(x, scale)


class HeadsRMSNorm(RMSNorm):
    """RMSNorm over all heads of each token together: [B, L, H, K] with a scale of [H · K] (OLMo 2)."""

    def __call__(self, x_BxLxHxK: jax.Array) -> jax.Array:
        return super().__call__(x_BxLxHxK.reshape(*x_BxLxHxK.shape[:2], -1)).reshape(x_BxLxHxK.shape)


class FeedForward(nn.Module):
    """f(x · W_up) · W_down, or gated (f(x · W_gate) ⊙ x · W_up) · W_down.

    Papers: https://arxiv.org/abs/1706.03762, gated https://arxiv.org/abs/2002.05202
    """

    mlp_dim: int
    activation: Activation
    up_init: Initializer
    down_init: Initializer
    dtype: DTypeLike
    gated: bool = False
    use_bias: bool = True
    dropout: float = 0.0
    """Dropout rate on the hidden activations."""

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array) -> jax.Array:
        def up(name: str) -> jax.Array:
            dense = Dense(self.mlp_dim, ("embed", "mlp"), self.up_init, self.dtype, self.use_bias, name=name)
            return constrain(dense(x_BxLxD), "act_mlp")

        activate = ACTIVATIONS[self.activation]
        if self.gated:
            h_BxLxF = from_inputs(lambda gate, up: activate(gate) * up)(up("gate"), up("up"))
        else:
            h_BxLxF = activate(up("up"))
        h_BxLxF = Dropout(self.dropout)(h_BxLxF)
        width = x_BxLxD.shape[-1]
        return Dense(width, ("mlp", "embed"), self.down_init, self.dtype, self.use_bias, name="down")(h_BxLxF)
