"""Multi-head attention. `attend` is the only entry point; its implementations are in `kernels`.

Shapes: B batch · L query length · S key length · D embedding width · H heads · G key heads · K head width
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from jaxpt.config.kinds import nearest
from jaxpt.errors import UserError
from jaxpt.models import cache, kernels
from jaxpt.models.layers import Dense, Initializer, constrain, mesh_axes
from jaxpt.models.mask import Mask
from jaxpt.models.output import NOTHING, Past
from jaxpt.models.position_terms import PositionTerms
from jaxpt.models.positions import DistanceBias, Rotation, rotate
from jaxpt.parallel import compiler

Implementation = Literal["auto", "xla", "chunked", "cudnn", "flash", "fused", "splash"]
Bias = Literal["learned", "terms", "array"]
VISIBLE = "attention_{}_of_{}_scores"
"""Scope of the names of operations of which a mask hides a part: scores that it leaves, of those that are computed
(`jaxpt.train.flops`)."""


def attend(
    q_BxLxHxK: jax.Array,
    k_BxSxGxK: jax.Array,
    v_BxSxGxK: jax.Array,
    mask: Mask,
    bias_HxLxS: jax.Array | DistanceBias | PositionTerms | None = None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = "auto",
) -> jax.Array:
    """Scaled dot-product attention, softmax(scale · q·kᵀ + bias) · v, with the softmax in float32.

    Args:
      q_BxLxHxK: queries.
      k_BxSxGxK: keys; H/G adjacent query heads share one key head (grouped-query attention).
      v_BxSxGxK: values.
      mask: which keys each query attends to.
      bias_HxLxS: added to the scores, or None; with a leading batch axis if it differs between rows. A `DistanceBias`
        or `PositionTerms` becomes an array only where the implementation wants one.
      scale: factor of the scores, 1/√K by default.
      soft_cap: c, if scores z become c · tanh(z / c) before the mask.
      dropout: rate on the attention weights.
      dropout_key: random key; None for no dropout.
      implementation: name of the kernel; `auto` selects one, see `choose`.

    Returns:
      [B, L, H, K] in q's dtype. Rows of queries without visible keys (padding) are finite but meaningless.

    Papers: https://arxiv.org/abs/1706.03762, grouped-query attention https://arxiv.org/abs/2305.13245
    """
    dropping = dropout_key is not None and dropout > 0
    bias: Bias | None = None if bias_HxLxS is None else "array"
    if isinstance(bias_HxLxS, DistanceBias):
        bias = "learned"
    if isinstance(bias_HxLxS, PositionTerms) and bias_HxLxS.is_whole:
        bias = "terms"
    name = choose(q_BxLxHxK.shape, k_BxSxGxK.shape, q_BxLxHxK.dtype, mask, bias, dropping, implementation, soft_cap)
    scale = 1 / math.sqrt(q_BxLxHxK.shape[-1]) if scale is None else scale
    if name not in ("flash", "fused"):
        if isinstance(bias_HxLxS, DistanceBias):
            bias_HxLxS = bias_HxLxS.materialise(q_BxLxHxK.shape[1], k_BxSxGxK.shape[1])
        if isinstance(bias_HxLxS, PositionTerms):
            bias_HxLxS = scale * bias_HxLxS.materialise(q_BxLxHxK, k_BxSxGxK, mask.offset)
    if name in ("xla", "chunked") and mesh_axes("length"):  # queries stay sharded, keys and values are gathered
        whole = ("batch", None, "act_heads", None)
        k_BxSxGxK, v_BxSxGxK = (nn.with_logical_constraint(x, whole) for x in (k_BxSxGxK, v_BxSxGxK))
    rate = dropout if dropping else 0.0
    inputs = kernels.Inputs(q_BxLxHxK, k_BxSxGxK, v_BxSxGxK, mask, bias_HxLxS, scale, rate, dropout_key, soft_cap)
    if name not in ("xla", "chunked"):
        return getattr(kernels, name)(inputs)
    share = mask.visible_share(k_BxSxGxK.shape[1])
    scope = VISIBLE.format(share.numerator, share.denominator)
    with jax.named_scope(scope) if share < 1 else contextlib.nullcontext():
        return (kernels.plain if name == "xla" else kernels.chunked)(inputs)


WEIGHTS = "attention_weights"
"""Name of the attention weights in Flax's collection "intermediates"."""


def sow_weights(
    module: nn.Module,
    q_BxLxHxK: jax.Array,
    k_BxSxGxK: jax.Array,
    mask: Mask,
    bias_HxLxS: jax.Array | DistanceBias | PositionTerms | None = None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> None:
    """Sows the attention weights [B, L, H, S] where the collection "intermediates" is mutable; else does nothing.

    They are what plain attention gives where the values are the identity. So kernels need no second output, and a
    program that does not ask for the weights is as it would be without this call.

    Args:
      module: the attention.
      q_BxLxHxK: queries.
      k_BxSxGxK: keys.
      mask: which keys each query attends to.
      bias_HxLxS: as of `attend`.
      scale: as of `attend`.
      soft_cap: as of `attend`.
    """
    if module.is_mutable_collection("intermediates"):
        B, S, G = k_BxSxGxK.shape[:3]
        identity_BxSxGxS = jnp.broadcast_to(jnp.eye(S, dtype=q_BxLxHxK.dtype)[:, None], (B, S, G, S))
        weights = attend(
            q_BxLxHxK, k_BxSxGxK, identity_BxSxGxS, mask, bias_HxLxS, scale=scale, soft_cap=soft_cap,
            implementation="xla",
        )  # fmt: skip
        module.sow("intermediates", WEIGHTS, weights)


LONG = 2048 * 2048
"""With this many scores per head or more, `auto` selects the chunked implementation on XLA."""


def choose(
    q_shape: tuple[int, ...], k_shape: tuple[int, ...], dtype: DTypeLike, mask: Mask, bias: Bias | None,
    dropping: bool, implementation: Implementation = "auto", soft_cap: float | None = None,
) -> Implementation:  # fmt: skip
    """Selects an implementation: a fused kernel if the device has one that supports the arguments, else XLA.

    Args:
      q_shape: [B, L, H, K].
      k_shape: [B, S, G, K].
      dtype: of queries and keys.
      mask: which keys each query attends to.
      bias: what kind of bias there is: a `DistanceBias`, `PositionTerms` (both of them), or an array.
      dropping: True if attention dropout is on.
      implementation: the requested implementation, or `auto`.
      soft_cap: as of `attend`.

    Returns:
      "xla", "chunked", "cudnn", "flash", "fused" or "splash".

    Raises:
      UserError: the requested implementation does not support the arguments or the device.
    """
    L, S = q_shape[1], k_shape[1]
    requirements = _requirements(q_shape, k_shape, dtype, mask, bias, dropping)
    if soft_cap is not None:
        capless = {"scores without a cap (model.score_cap)": False}
        requirements = {name: needs | (capless if name != "splash" else {}) for name, needs in requirements.items()}
    lacking = {name: [need for need, is_met in needs.items() if not is_met] for name, needs in requirements.items()}
    if implementation == "auto":
        # cuDNN supports a bias, but materialises its gradient as an array of all scores.
        fitting = [name for name, missing in lacking.items() if not missing and not (bias and name == "cudnn")]
        fitting.sort(key=lambda name: name == "splash" and not mask.causal)  # it skips what a causal mask hides
        # cuDNN reads the mask of segments as an array. Of 4 rows and 12 heads on an H200, both passes: 512 long .43 ms
        # beside flash's .18, 1,024 long .45 beside .41; longer rows have not been measured.
        fitting.sort(key=lambda name: name == "cudnn" and mask.query_segments_BxL is not None and L * S <= 1024 * 1024)
        return fitting[0] if fitting else ("chunked" if L * S > LONG else "xla")
    if lacking.get(implementation):
        raise UserError(
            f"model.attention: {implementation} requires {', '.join(lacking[implementation])}; set model.attention=auto"
        )
    return implementation


def _requirements(
    q_shape: tuple[int, ...], k_shape: tuple[int, ...], dtype: DTypeLike, mask: Mask, bias: Bias | None, dropping: bool
) -> dict[str, dict[str, bool]]:
    """{implementation: {what it requires: whether that is met}}; the arguments are those of `choose`."""
    L, S, device, ways = q_shape[1], k_shape[1], compiler.platform(), math.prod(mesh_axes("act_heads").values())
    on_mesh = {
        "mesh.context=1": not mesh_axes("length"),
        "heads that mesh.tensor divides": not (q_shape[2] % ways or k_shape[2] % ways),
    }
    segments_only = {"no ranks, branches or prefix": mask.has_segments_only}
    any_length = segments_only | {
        "queries and keys in order": mask.offset is None and mask.key_index_S is None,
        "as many key heads as heads": q_shape[2] == k_shape[2],
    }
    two_bytes = {"bfloat16 or float16": jnp.dtype(dtype).itemsize == 2}
    return {
        "splash": {
            "a TPU": device == "tpu",
            "no bias": not bias,
            "no dropout": not dropping,
            **segments_only,
            "self-attention": L == S and bool(mask.same_segments),
            "lengths that are multiples of 128": L % 128 == 0,
            **on_mesh,
        },
        "fused": {
            "a TPU": device == "tpu",
            "no bias but T5's or DeBERTa's": bias != "array",
            **any_length,
            f"at most {(max_keys := kernels.FUSED_KEYS[bias == 'terms'])} keys": max_keys >= S,
            "heads that fill registers of 128 lanes": kernels.fill_registers(q_shape[2] // ways, q_shape[3]),
            **on_mesh,
        },
        "cudnn": {
            "a GPU": device == "gpu",
            **two_bytes,
            "no dropout": not dropping,
            "lengths that are even": L % 2 == 0 and S % 2 == 0,
            "heads up to 128 wide": q_shape[-1] % 8 == 0 and q_shape[-1] <= 128,
            **on_mesh,
            # Of two layers' equal gradients XLA 0.11.2 marks one deterministic, and finds the other one's graph no more
            # (IndexError in the first step, on an H200).
            "train.deterministic=false": not compiler.is_deterministic(),
        },
        "flash": {
            "a GPU of NVIDIA's since Ampere": device == "gpu"
            and kernels.has_tensor_cores_for_bfloat16(compiler.device_kind()),
            **two_bytes,
            "no bias but T5's": bias in (None, "learned"),
            **any_length,
            "heads up to 128 wide": q_shape[-1] <= 128,
            **on_mesh,
        },
    }


def _check_names(cls: type, names: Sequence[str]) -> None:
    """Raises TypeError where a class has something of its own whose name is almost one that its base looks for.

    Args:
      cls: the class; names that begin with _ are its helpers.
      names: those that a subclass may override.
    """
    for name, attribute in vars(cls).items():
        if callable(attribute) and name[0] != "_" and not any(hasattr(base, name) for base in cls.__bases__):
            absent = [known for known in names if known not in vars(cls)]
            if near := nearest(name, absent, "", cutoff=0.8):
                raise TypeError(f"class {cls.__qualname__}: {name} is never used{near} (else call it _{name})")


class Attention(nn.Module):
    """Multi-head attention with its four projections; kernels are stored [in, heads·K] and [H·K, out].

    A subclass changes one of its steps: `project`, `normalize` or `score`.
    """

    heads: int
    head_dim: int
    dtype: DTypeLike
    kernel_init: Initializer
    """Initializer of key and value kernels, and of the query kernel unless `query_init` is set."""
    output_init: Initializer
    query_init: Initializer | None = None
    use_bias: bool = True
    scale: float | None = None
    dropout: float = 0.0
    """Dropout rate on the attention weights."""
    kv_heads: int | None = None
    """Number of key and value heads; `heads` by default."""
    output_bias: bool | None = None
    """Bias of the output projection; as `use_bias` by default."""
    soft_cap: float | None = None
    """c, if scores z become c · tanh(z / c)."""
    clip: float | None = None
    """c, if queries, keys and values are clipped to −c … c, after their norms."""
    qk_norm: Callable[..., nn.Module] | None = None
    """Makes the norm of queries and that of keys, called as `qk_norm(name=…)`; none by default."""
    implementation: Implementation = "auto"

    def __init_subclass__(cls, **options: Any) -> None:
        """Raises TypeError where a step has a name that is misspelt: attention would go without it."""
        super().__init_subclass__(**options)
        _check_names(cls, ("project", "normalize", "score"))

    @nn.compact
    def __call__(
        self,
        x_BxLxD: jax.Array,
        mask: Mask,
        *,
        memory_BxSxD: jax.Array | None = None,
        bias_HxLxS: jax.Array | DistanceBias | None = None,
        positional: Rotation | None = None,
        past: Past = NOTHING,
    ) -> tuple[jax.Array, cache.KeyValues | None]:
        """Attends from `x` to `memory`, or to `x` and earlier tokens, with rotary positions if given.

        Returns:
          ([B, L, D], keys and values to store if `past` has a cache).
        """

        memory, kv_heads = x_BxLxD if memory_BxSxD is None else memory_BxSxD, self.kv_heads or self.heads
        q_BxLxHxK = self._projected("query", x_BxLxD, self.heads, self.query_init or self.kernel_init)
        q_BxLxHxK = self._normalized("query", q_BxLxHxK)
        q_BxLxHxK = q_BxLxHxK if positional is None else rotate(q_BxLxHxK, positional)

        def keys_values() -> tuple[jax.Array, jax.Array]:
            k, v = (self._projected(name, memory, kv_heads, self.kernel_init) for name in ("key", "value"))
            k, v = self._normalized("key", k), self._clipped(v)
            return (k if positional is None else rotate(k, positional)), v

        k_BxSxGxK, v_BxSxGxK, mask, stored = cache.attended(past, mask, keys_values)
        is_wide = k_BxSxGxK.shape[-1] > self.head_dim  # keys and values in one array: zeros meet the values
        q_BxLxHxK = jnp.pad(q_BxLxHxK, ((0, 0),) * 3 + ((0, self.head_dim),)) if is_wide else q_BxLxHxK
        y_BxLxHxK = self.score(q_BxLxHxK, k_BxSxGxK, v_BxSxGxK, mask, bias_HxLxS)
        y_BxLxHxK = self._checked("score", "", y_BxLxHxK, q_BxLxHxK.shape)
        y_BxLxHxK = y_BxLxHxK[..., self.head_dim :] if is_wide else y_BxLxHxK
        y = checkpoint_name(constrain(y_BxLxHxK.reshape(*x_BxLxD.shape[:2], -1), "act_heads"), "context")
        use_bias = self.use_bias if self.output_bias is None else self.output_bias
        output = Dense(x_BxLxD.shape[-1], ("heads", "embed"), self.output_init, self.dtype, use_bias, name="output")
        return output(y), stored

    @nn.nowrap
    def project(self, name: str, x_BxLxD: jax.Array, heads: int, init: Initializer) -> jax.Array:
        """Queries, keys or values of all heads. A subclass may override this step, called within `__call__`.

        Args:
          name: "query", "key" or "value", which is also the name of the parameters.
          x_BxLxD: what is projected.
          heads: number of heads.
          init: initializer of the kernel.

        Returns:
          [B, L, heads, K].
        """
        dense = Dense(heads * self.head_dim, ("embed", "heads"), init, self.dtype, self.use_bias, name=name)
        y = checkpoint_name(constrain(dense(x_BxLxD), "act_heads"), name)
        return y.reshape(*y.shape[:2], heads, self.head_dim)

    @nn.nowrap
    def normalize(self, name: str, x_BxLxHxK: jax.Array) -> jax.Array:
        """Queries or keys before positions rotate them, with QK-norm if there is any. A subclass may override this.

        Args:
          name: "query" or "key".
          x_BxLxHxK: as `project` gives them.
        """
        return x_BxLxHxK if self.qk_norm is None else self.qk_norm(name=f"{name}_norm")(x_BxLxHxK)

    @nn.nowrap
    def _projected(self, name: str, x_BxLxD: jax.Array, heads: int, init: Initializer) -> jax.Array:
        y_BxLxHxK = self.project(name, x_BxLxD, heads, init)
        return self._checked("project", name, y_BxLxHxK, (*x_BxLxD.shape[:2], heads, self.head_dim))

    @nn.nowrap
    def _normalized(self, name: str, x_BxLxHxK: jax.Array) -> jax.Array:
        return self._clipped(self._checked("normalize", name, self.normalize(name, x_BxLxHxK), x_BxLxHxK.shape))

    @nn.nowrap
    def _clipped(self, x: jax.Array) -> jax.Array:
        return x if self.clip is None else jnp.clip(x, -self.clip, self.clip)

    @nn.nowrap
    def _checked(self, step: str, name: str, y: Any, shape: tuple[int, ...]) -> jax.Array:
        """What a step returns; UserError where it has another shape, as JAX's error would name a later place."""
        if getattr(y, "shape", None) != shape:
            form = f"one of the shape {list(y.shape)}" if hasattr(y, "shape") else type(y).__name__
            where = f"{type(self).__module__}.{type(self).__qualname__}.{step}{f' of the {name}' if name else ''}"
            raise UserError(f"{where} must return an array of the shape {list(shape)}, it returns {form}")
        return y

    @nn.nowrap
    def score(
        self,
        q_BxLxHxK: jax.Array,
        k_BxSxGxK: jax.Array,
        v_BxSxGxK: jax.Array,
        mask: Mask,
        bias_HxLxS: jax.Array | DistanceBias | None,
    ) -> jax.Array:
        """Scores of queries and keys, and the values weighted by their softmax. A subclass may override this step.

        Args:
          q_BxLxHxK: queries.
          k_BxSxGxK: keys, also of earlier tokens.
          v_BxSxGxK: values.
          mask: which keys each query attends to.
          bias_HxLxS: added to the scores, or None.

        Returns:
          [B, L, H, K].
        """
        dropping = self.dropout > 0 and self.has_rng("dropout")
        scale = 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale
        sow_weights(self, q_BxLxHxK, k_BxSxGxK, mask, bias_HxLxS, scale=scale, soft_cap=self.soft_cap)
        return attend(
            q_BxLxHxK, k_BxSxGxK, v_BxSxGxK, mask, bias_HxLxS, scale=scale, soft_cap=self.soft_cap,
            dropout=self.dropout,
            dropout_key=self.make_rng("dropout") if dropping else None, implementation=self.implementation,
        )  # fmt: skip


class AttentionBlock(nn.Module):
    """Base of the blocks of a stack that attend; a subclass may name another attention."""

    attention_class: ClassVar[type[Attention]] = Attention

    def __init_subclass__(cls, **options: Any) -> None:
        """Raises TypeError where that name is misspelt."""
        super().__init_subclass__(**options)
        _check_names(cls, ("attention_class",))
