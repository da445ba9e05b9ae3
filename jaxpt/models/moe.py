"""Mixtures of experts: a router chooses the feed-forwards of each token.

    p = softmax(x · W_router)          y = Σ over the k experts with the largest p:  p_e · f_e(x)

Without a capacity no token is dropped: tokens are sorted by expert, and each expert's rows are multiplied with its
weights (`jaxpt.models.grouped`). What a token gets depends on no other token. With a capacity, as the released Switch
Transformers have it, an expert takes the first tokens of a group of rows, and the others pass by on the residual.
Padding is sent to no expert. On a mesh with an axis `expert` see `jaxpt.models.dispatch`.

Papers: https://arxiv.org/abs/2101.03961 (Switch), https://arxiv.org/abs/2202.08906 (ST-MoE: z-loss),
https://arxiv.org/abs/2401.04088 (Mixtral), https://arxiv.org/abs/2409.02060 (OLMoE), https://arxiv.org/abs/2412.19437
(DeepSeek-V3: sigmoid, shared experts)

Shapes: B batch · L length · D embedding width · F hidden width of an expert · E experts · k experts of a token ·
  G groups of rows · N layers
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from pydantic import Field, model_validator

from jaxpt.config import Fraction, ModelConfig, NonNegativeInt, PositiveFloat, Size, execution
from jaxpt.models import dispatch
from jaxpt.models.layers import Activation, FeedForward, Initializer, param
from jaxpt.models.output import Output, Past
from jaxpt.models.stack import Shared

ROUTERS = "router/"
"""In the names of metrics of routers."""
Weight = Annotated[float, Field(ge=0)]


class MixtureConfig(ModelConfig):
    """The keys of a mixture of experts, which a decoder and T5 have; without `experts` all layers are dense."""

    experts: Size | None = None
    """Experts of a sparse layer; null: all layers are dense."""
    experts_per_token: Size = 1
    """k: experts that each token is sent to."""
    expert_dim: Size | None = None
    """Hidden width of an expert; `mlp_dim` by default."""
    shared_experts: NonNegativeInt = 0
    """Experts that every token is sent to, besides: one feed-forward of so many times `expert_dim`."""
    sparse_every: Size = 1
    """s: every s-th layer is sparse, those before it are dense: layers s − 1, 2s − 1, …"""
    first_sparse: NonNegativeInt | None = None
    """Number of the first sparse layer, all before it are dense; s − 1 by default, as released. Hugging Face's Switch
    Transformers: 1."""
    dense_layers: tuple[NonNegativeInt, ...] = ()
    """Numbers of layers that are dense whatever `sparse_every` says."""
    router: Literal["softmax", "sigmoid"] = "softmax"
    """Scores of all experts together, or of each by itself."""
    router_normalized: bool = False
    """The weights of a token's experts are divided by their sum."""
    router_bias: bool = False
    """A bias of each expert, for the choice alone: after each step it falls by `optimizer.router_bias_rate` for experts
    with more tokens than the mean, and rises for the others, so that no loss is needed (DeepSeek-V3)."""
    router_scale: PositiveFloat = 1.0
    """Factor of the weights."""
    router_jitter: Fraction = 0.0
    """ε: in training the router's input is multiplied by numbers between 1 − ε and 1 + ε."""
    jitter_experts: bool = False
    """The experts' input too, as in Hugging Face's classes; false: the router's alone, as released."""
    balance: Literal["switch", "switch_pooled", "mixtral"] = "switch"
    """Load-balancing loss, see `jaxpt.models.moe.balance_loss`: of each layer and group of rows; of all layers of a
    group together; of the whole batch and all layers together (Hugging Face's Mixtral). The latter is a product of two
    means of the batch, and goes with no `train.grad_accum_steps`."""
    balance_weight: Weight = 0.01
    """Coefficient of the load-balancing loss."""
    router_z_weight: Weight = 0.0
    """Coefficient of the mean of logsumexp², which keeps the router's logits small (ST-MoE: 0.001)."""
    group_rows: Size = 1
    """Rows of a group, of which the balance is a mean and which shares the capacity. With more than 1 there is no
    `train.grad_accum_steps`, which would cut groups."""
    capacity_factor: PositiveFloat | None = None
    """c: in training an expert takes at most round(c · tokens of a group / experts) of them, padding included in the
    number; null: no token is dropped."""
    eval_capacity_factor: PositiveFloat | None = None
    """c outside of training; by default the same. With a cache nothing is dropped."""
    min_capacity: Size = 4
    """Tokens of a group that an expert takes in any case."""
    capacity: Size | None = None
    """Tokens of a group that an expert takes, whatever the length (Hugging Face's Switch: 64 of each row)."""
    grouped: Literal["auto", "ragged", "blocks"] = execution("auto")
    """How rows are multiplied with their expert's weights, see `jaxpt.models.grouped`: by XLA's `ragged_dot`, or in
    blocks, which is `auto` on a CPU."""
    exchange: dispatch.Way = execution("auto")
    """How devices with other experts get tokens, see `jaxpt.models.dispatch`: all of the devices' tokens are gathered,
    which is `auto`, or each row is sent to its expert by a ragged all-to-all."""

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if self.experts is None:
            fields = MixtureConfig.model_fields.keys() - ModelConfig.model_fields.keys() - {"grouped", "exchange"}
            for name in sorted(fields):
                if getattr(self, name) != MixtureConfig.model_fields[name].default:
                    raise ValueError(f"{name}: has no meaning without experts; set experts, or leave it out")
            return self
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token: {self.experts_per_token} is more than experts {self.experts}")
        if self.capacity is not None and self.capacity_factor is not None:
            raise ValueError("capacity: goes with no capacity_factor; leave out one of them")
        return self

    def idle_settings(self) -> tuple[str, ...]:
        idle = super().idle_settings()
        if not self.router_jitter:
            idle += self._idle(("jitter_experts",), "without router_jitter")
        if not self.balance_weight and not self.router_z_weight:
            idle += self._idle(("balance",), "with balance_weight: 0 and router_z_weight: 0")
        if self.capacity is not None:
            return (*idle, *self._idle(("eval_capacity_factor", "min_capacity"), f"with capacity: {self.capacity}"))
        return idle if self.has_capacity else (*idle, *self._idle(("min_capacity",), "without capacity_factor"))

    def is_sparse(self, layer: int) -> bool:
        """True if a layer is a mixture; layers are counted from 0."""
        first = self.sparse_every - 1 if self.first_sparse is None else self.first_sparse
        is_numbered = layer >= first and (layer - first) % self.sparse_every == 0
        return self.experts is not None and is_numbered and layer not in self.dense_layers

    @property
    def has_capacity(self) -> bool:
        """True if an expert takes a limited number of tokens, in training or outside of it."""
        return (self.capacity, self.capacity_factor, self.eval_capacity_factor) != (None, None, None)

    @property
    def sparse_period(self) -> int | None:
        """Layers after which dense and sparse ones repeat; None if `dense_layers` or first ones do not."""
        if self.experts is None:
            return 1
        return None if self.dense_layers or (self.first_sparse or 0) >= self.sparse_every else self.sparse_every


TRAINING_FIELDS = frozenset((
    "balance", "balance_weight", "router_z_weight", "group_rows", "router_jitter", "jitter_experts", "grouped",
    "exchange",
))  # fmt: skip
"""Fields that do not change what a trained model computes."""


@flax.struct.dataclass
class Routing:
    """What the router of a layer did: sums over the tokens of each group of rows, padding left out."""

    tokens_G: jax.Array
    choices_GxE: jax.Array
    """Tokens that chose an expert, whether or not it had room."""
    scores_GxE: jax.Array
    """Probabilities, which a sigmoid's scores are made to by dividing them by their sum."""
    dropped_G: jax.Array
    """Choices of experts that had no room."""
    log_z_squared_G: jax.Array
    entropy_G: jax.Array
    """In nats."""
    load_G: jax.Array
    """Zeros, whose gradient by the router's bias is proportional to what each expert's load is above the mean."""


class MoE(nn.Module):
    """A feed-forward of experts; its parameters are those of `FeedForward` with an axis of experts, and the router."""

    config: MixtureConfig
    activation: Activation
    up_init: Initializer
    down_init: Initializer
    dtype: DTypeLike
    gated: bool = False
    dropout: float = 0.0
    """Dropout rate on the hidden activations."""

    @nn.compact
    def __call__(
        self, x_BxLxD: jax.Array, is_token_BxL: jax.Array | None, has_cache: bool
    ) -> tuple[jax.Array, Routing]:
        """Routes each token and adds up its experts.

        Args:
          x_BxLxD: hidden states.
          is_token_BxL: False at padding; None: there is none.
          has_cache: with a cache, where tokens come one by one, nothing is dropped.

        Returns:
          ([B, L, D], the sums of `Routing`).
        """
        c, (B, L, D) = self.config, x_BxLxD.shape
        is_token_BxL = jnp.ones((B, L), bool) if is_token_BxL is None else jnp.broadcast_to(is_token_BxL, (B, L))
        routed_BxLxD, x_BxLxD = self._jittered(x_BxLxD)
        logits_BxLxE = routed_BxLxD.astype(jnp.float32) @ self._router(D)
        probs_BxLxE = jax.nn.softmax(logits_BxLxE) if c.router == "softmax" else jax.nn.sigmoid(logits_BxLxE)
        bias_E = jnp.zeros(c.experts)
        if c.router_bias:
            bias_E = Kernel((c.experts,), ("norm",), nn.initializers.zeros, "bias", name="router_bias")()
        _, ids_BxLxk = jax.lax.top_k(probs_BxLxE + jax.lax.stop_gradient(bias_E), c.experts_per_token)
        weights_BxLxk = jnp.take_along_axis(probs_BxLxE, ids_BxLxk, axis=-1)
        if c.router_normalized:
            weights_BxLxk /= weights_BxLxk.sum(-1, keepdims=True)
        chosen_BxLxE = jnp.where(is_token_BxL[..., None], jax.nn.one_hot(ids_BxLxk, c.experts).sum(2), 0)
        capacity = None if has_cache else self._capacity(B, L)
        is_kept_BxLxk = jnp.broadcast_to(is_token_BxL[..., None], ids_BxLxk.shape)
        if capacity is not None:
            is_kept_BxLxk &= within_capacity(ids_BxLxk, is_token_BxL, c.experts, groups_of(c, B), capacity)

        kernels = self._kernels(D)
        y_BxLxD = dispatch.experts(
            x_BxLxD.astype(self.dtype), jnp.where(is_kept_BxLxk, ids_BxLxk, c.experts),
            (c.router_scale * weights_BxLxk).astype(self.dtype), kernels, self.activation, c.grouped,
            way=c.exchange, dropout=self.dropout, dropout_key=self.make_rng("dropout") if self._drops_out else None,
        )  # fmt: skip
        if c.shared_experts:
            y_BxLxD += FeedForward(
                c.shared_experts * (c.expert_dim or c.mlp_dim), self.activation, self.up_init, self.down_init,
                self.dtype, gated=self.gated, use_bias=False, dropout=self.dropout, name="shared",
            )(x_BxLxD)  # fmt: skip
        dropped_BxL = (is_token_BxL[..., None] & ~is_kept_BxLxk).sum(-1)
        routing = _summed(c, logits_BxLxE, probs_BxLxE, chosen_BxLxE, dropped_BxL, is_token_BxL)
        return y_BxLxD, routing.replace(load_G=load(bias_E, routing.choices_GxE))

    @property
    def _drops_out(self) -> bool:
        return self.dropout > 0 and self.has_rng("dropout")

    def _jittered(self, x_BxLxD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Inputs of the router and of the experts."""
        c, jitter = self.config, self.config.router_jitter
        if not jitter or not self.has_rng("dropout"):
            return x_BxLxD, x_BxLxD
        noise = jax.random.uniform(self.make_rng("dropout"), x_BxLxD.shape, x_BxLxD.dtype, 1 - jitter, 1 + jitter)
        return x_BxLxD * noise, x_BxLxD * noise if c.jitter_experts else x_BxLxD

    def _router(self, width: int) -> jax.Array:
        """The router's kernel [D, E], in float32 and whole on every device."""
        module = Kernel((width, self.config.experts), ("embed", "classes"), nn.initializers.normal(0.02), name="router")
        return nn.with_logical_constraint(module(), (None, None))

    def _kernels(self, width: int) -> dict[str, jax.Array]:
        """The experts' kernels, [E, D, F] and [E, F, D], in the compute dtype."""
        hidden, experts = self.config.expert_dim or self.config.mlp_dim, self.config.experts
        up = experts, (width, hidden), ("expert", "expert_embed", "mlp"), self.up_init
        down = experts, (hidden, width), ("expert", "mlp", "expert_embed"), self.down_init
        of_name = {"gate": up} if self.gated else {}
        of_name |= {"up": up, "down": down}
        return {
            name: Kernel((count, *shape), axes, each(init), name=name)().astype(self.dtype)
            for name, (count, shape, axes, init) in of_name.items()
        }

    def _capacity(self, rows: int, length: int) -> int | None:
        """Tokens of a group that an expert takes, None: all."""
        c = self.config
        if c.capacity is not None:
            return c.capacity
        factor = c.capacity_factor
        if not self.has_rng("dropout") and c.eval_capacity_factor is not None:
            factor = c.eval_capacity_factor
        if factor is None:
            return None
        return max(round(factor * length * rows / groups_of(c, rows) / c.experts), c.min_capacity)


def feed(
    feed_forward: FeedForward | MoE, x_BxLxD: jax.Array, past: Past, shared: Shared
) -> tuple[jax.Array, Routing | None]:
    """Calls the feed-forward of a layer, dense or sparse.

    Args:
      feed_forward: the module.
      x_BxLxD: its input.
      past: of the layer.
      shared: of the stack: segment 0 of its mask is padding.

    Returns:
      ([B, L, D], what the router did: None of a dense one).
    """
    if not isinstance(feed_forward, MoE):
        return feed_forward(x_BxLxD), None
    segments_BxL = shared.mask.query_segments_BxL
    is_token_BxL = None if segments_BxL is None else segments_BxL > 0
    return feed_forward(x_BxLxD, is_token_BxL, past.cache is not None)


class Kernel(nn.Module):
    """One parameter."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Initializer
    called: str = "kernel"

    @nn.compact
    def __call__(self) -> jax.Array:
        return param(self, self.called, self.init, self.shape, self.axes)


def each(init: Initializer) -> Initializer:
    """Draws each expert's matrix by itself, so that its variance does not depend on the number of experts."""

    def draw(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jax.vmap(lambda key: init(key, tuple(shape[1:]), dtype))(jax.random.split(key, shape[0]))

    return draw


def groups_of(config: MixtureConfig, rows: int) -> int:
    """G: rows / `group_rows`; of a number of rows that it does not divide, their common divisor makes a group."""
    return rows // math.gcd(rows, config.group_rows)


def within_capacity(
    ids_BxLxk: jax.Array, is_token_BxL: jax.Array, experts: int, groups: int, capacity: int
) -> jax.Array:
    """Which choices find room: of each expert the first of a group, all first choices before all second ones.

    Args:
      ids_BxLxk: the chosen experts, in the order of choice.
      is_token_BxL: False at padding, which takes no room.
      experts: E.
      groups: G; each has B / G rows.
      capacity: choices that an expert takes of a group.

    Returns:
      bool [B, L, k].

    Example:
      >>> ids = jnp.array([[[0], [0], [1], [0]]])
      >>> print(within_capacity(ids, jnp.array([[False, True, True, True]]), 2, 1, capacity=1)[0, :, 0])
      [False  True  True False]
    """
    B, L, k = ids_BxLxk.shape

    def by_choice(x_BxLxk: jax.Array) -> jax.Array:
        return x_BxLxk.reshape(groups, -1, k).swapaxes(1, 2).reshape(groups, -1)

    ids_GxC = by_choice(ids_BxLxk)
    is_real_GxC = by_choice(jnp.broadcast_to(is_token_BxL[..., None], ids_BxLxk.shape))
    taken_GxCxE = (is_real_GxC[..., None] & (ids_GxC[..., None] == jnp.arange(experts))).astype(jnp.int32)
    place_GxC = jnp.take_along_axis(jnp.cumsum(taken_GxCxE, axis=1), ids_GxC[..., None], axis=2)[..., 0]
    is_kept_GxC = is_real_GxC & (place_GxC <= capacity)
    return is_kept_GxC.reshape(groups, k, -1).swapaxes(1, 2).reshape(B, L, k)


def _summed(
    config: MixtureConfig, logits_BxLxE: jax.Array, probs_BxLxE: jax.Array, chosen_BxLxE: jax.Array,
    dropped_BxL: jax.Array, is_token_BxL: jax.Array,
) -> Routing:  # fmt: skip
    """The sums of each group."""
    groups = groups_of(config, len(is_token_BxL))
    if config.router == "sigmoid":
        probs_BxLxE /= jnp.maximum(probs_BxLxE.sum(-1, keepdims=True), 1e-20)

    def sums(x: jax.Array) -> jax.Array:
        x = jnp.where(is_token_BxL.reshape(*is_token_BxL.shape, *[1] * (x.ndim - 2)), x, 0)
        return x.reshape(groups, -1, *x.shape[2:]).sum(1)

    return Routing(
        tokens_G=sums(jnp.ones_like(is_token_BxL, jnp.float32)),
        choices_GxE=sums(chosen_BxLxE),
        scores_GxE=sums(probs_BxLxE),
        dropped_G=sums(dropped_BxL.astype(jnp.float32)),
        log_z_squared_G=sums(jnp.square(jax.nn.logsumexp(logits_BxLxE, axis=-1))),
        load_G=jnp.zeros(groups),
        entropy_G=sums(-(probs_BxLxE * jnp.log(jnp.maximum(probs_BxLxE, 1e-20))).sum(-1)),
    )


LOAD_SLOPE = 1e-9
"""So small that the norm of all gradients does not change; only the signs of the bias's gradient count."""


def load(bias_E: jax.Array, choices_GxE: jax.Array) -> jax.Array:
    """Zeros [G] whose sum has the gradient `LOAD_SLOPE` · (load − mean load) by the bias.

    A sum over tokens, as a loss: so it is the same in microbatches and on every mesh.

    Args:
      bias_E: the router's bias.
      choices_GxE: tokens that chose each expert.
    """
    excess_GxE = jax.lax.stop_gradient(choices_GxE - choices_GxE.mean(-1, keepdims=True))
    return LOAD_SLOPE * (excess_GxE * (bias_E - jax.lax.stop_gradient(bias_E))).sum(-1)


def balance_loss(config: MixtureConfig, routing: Routing) -> jax.Array:
    """The load-balancing loss times the number of tokens, which a mean over tokens divides by again.

        B = E · Σ_e f_e · P_e          f_e: share of tokens that chose expert e        P_e: mean probability of e

    `switch`: B / k of each layer and group of rows, a mean over groups, weighted by their tokens, summed over layers; 1
    for each layer where all experts have the same share. It is the same on every mesh, and in microbatches if a group
    is a row. `switch_pooled`: f and P are means over layers too, before they are multiplied. `mixtral`: means over all
    layers and rows; k where all experts have the same share.

    Args:
      config: names the form.
      routing: of all sparse layers, leaves [N, G, …].

    Returns:
      A scalar: Σ tokens · B.

    Papers: https://arxiv.org/abs/2101.03961 (equation 4); `mixtral` is what Hugging Face's classes compute.
    """
    tokens_NxG, choices, scores = routing.tokens_G, routing.choices_GxE, routing.scores_GxE
    pooled = {"switch": (), "switch_pooled": (0,), "mixtral": (0, 1)}[config.balance]
    count = jnp.maximum(tokens_NxG.sum(pooled, keepdims=True), 1)[..., None]
    share, mean = choices.sum(pooled, keepdims=True) / count, scores.sum(pooled, keepdims=True) / count
    loss = config.experts * (share * mean).sum(-1)
    if config.balance == "switch":
        return (tokens_NxG * loss).sum() / config.experts_per_token
    return (tokens_NxG[0] * loss).sum()


def finish(config: ModelConfig, output: Output, side: str = "") -> Output:
    """The output of a stack with its auxiliary losses, "router_balance" and "router_z", and its routers' metrics.

    The z-loss is the mean over tokens of logsumexp², summed over layers for `balance: switch`, else a mean over layers.

    Args:
      config: of the model.
      output: of the stack; `routing` has an entry for each block of each segment.
      side: prefix of the names, "encoder_" and "decoder_" where a model has both.

    Returns:
      The output; `routing` has all sparse layers in order, leaves [N, G, …].
    """
    if output.routing is None:
        return output
    layers = [_in_order(blocks) for blocks in output.routing]
    routing = jax.tree.map(lambda *x: jnp.concatenate(x), *(x for x in layers if x is not None))
    aux = {}
    if config.balance_weight:
        aux[f"{side}router_balance"] = config.balance_weight * balance_loss(config, routing)
    if config.router_bias:
        aux[f"{side}router_load"] = routing.load_G.sum()
    if config.router_z_weight:
        count = 1 if config.balance == "switch" else len(routing.tokens_G)
        aux[f"{side}router_z"] = config.router_z_weight * routing.log_z_squared_G.sum() / count
    return output.replace(routing=routing).add_aux(aux, metrics_of(config, routing, side))


def metrics_of(config: MixtureConfig, routing: Routing, side: str = "") -> dict[str, tuple[jax.Array, jax.Array]]:
    """What people look at, of each sparse layer: {name: (Σ value, Σ weight)}.

    Args:
      config: of the model.
      routing: of all sparse layers, leaves [N, G, …].
      side: prefix of the names.

    Returns:
      "router/share" [N, E]: each expert's share of the choices; "router/dropped" [N]: the share of choices without
      room; "router/entropy" [N]: of the router's probabilities, in nats.
    """
    tokens_N = jax.lax.stop_gradient(routing.tokens_G.sum(1))
    choices_N = config.experts_per_token * tokens_N
    metrics = {
        "share": (routing.choices_GxE.sum(1), choices_N[:, None]),
        "dropped": (routing.dropped_G.sum(1), choices_N),
        "entropy": (jax.lax.stop_gradient(routing.entropy_G.sum(1)), tokens_N),
    }
    return {f"{side}{ROUTERS}{name}": pair for name, pair in metrics.items()}


def _in_order(blocks: Sequence[Routing | None]) -> Routing | None:
    """The sparse blocks of a segment, each [repeats, …], in the order of layers; None if all are dense."""
    sparse = [block for block in blocks if block is not None]
    if not sparse:
        return None
    return jax.tree.map(lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:]), *sparse)
