"""Optimizers, all of optax: `optimizer.kind: lamb` names the class of that kind.

Each is a frozen class of its own hyperparameters whose `build` returns an optax transformation.

Papers: adafactor https://arxiv.org/abs/1804.04235 · adagrad https://jmlr.org/papers/v12/duchi11a.html · adamax
https://arxiv.org/abs/1412.6980 · adamw https://arxiv.org/abs/1711.05101 · lamb https://arxiv.org/abs/1904.00962 · lion
https://arxiv.org/abs/2302.06675 · muon https://kellerjordan.github.io/posts/muon, with `consistent_rms`
https://arxiv.org/abs/2502.16982
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax import traverse_util
from jax.extend import core
from pydantic import Field, NonNegativeFloat

from jaxpt.config import Fraction, OptimizerConfig, PositiveFloat
from jaxpt.errors import UserError, shown
from jaxpt.train import patterns
from jaxpt.train.optimizers.groups import Group, grouped, scale_by_rates, step_router_biases
from jaxpt.train.optimizers.logical import Axes, decay_mask, is_axes, is_matrix, per_layer, state_axes
from jaxpt.train.optimizers.rows import RowOptimizer, Tables

Decay = Annotated[float, Field(ge=0, lt=1)]
"""Of a moving average: at 1 it would stay zero, and the correction of its bias would be 0/0."""
NOT_MATRICES = frozenset({"vocab", "positions", "buckets", "classes"})
"""Axes of tables and output heads, which Muon leaves to AdamW."""


def check(config: OptimizerConfig, logical_axes: Any) -> None:
    """Raises UserError for settings that do not fit the parameters that a run trains.

    Args:
      config: kind and hyperparameters.
      logical_axes: those of all parameters that some stage trains: a pattern may hold for none of a stage's.
    """
    config.check(logical_axes)
    if config.clip_separately and not config.clip_norm:
        raise UserError("optimizer.clip_separately: wants optimizer.clip_norm")
    patterns.match_paths(config.clip_separately, _flat(logical_axes), "optimizer.clip_separately")


def make(
    config: OptimizerConfig,
    schedule: optax.Schedule,
    logical_axes: Any,
    rates: Mapping[str, np.ndarray] | None = None,
    groups: Sequence[Group] = (),
) -> optax.GradientTransformation:
    """The optimizer of a run: clipping by the norm, then the update rule.

    Args:
      config: kind and hyperparameters.
      schedule: from the step to the learning rate, `learning_rate` included.
      logical_axes: a tree like the trained parameters, a tuple of names for each.
      rates: {path: factors of the learning rate, [layers] or []}; all 1 by default.
      groups: parameters with state and decay of their own; by default all are of one group, which has no name.

    Returns:
      An optax transformation of the gradients of the mean loss.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxpt.train.optimizers import SGD
      >>> axes, params = {"w": ("layers", "embed", "mlp")}, {"w": jnp.ones((2, 3, 3))}
      >>> tx = make(SGD(), optax.constant_schedule(0.5), axes)
      >>> print(tx.update(params, tx.init(params), params)[0]["w"][0, 0])
      [-0.5 -0.5 -0.5]
    """
    clip = _clip(config.clip_norm, config.clip_separately, logical_axes) if config.clip_norm else []

    def of_group(group: Group, logical_axes: Any) -> optax.GradientTransformation:
        group_config = config.model_copy(update={"weight_decay": config.weight_decay * group.decay})
        return _built(group_config, schedule, logical_axes)

    rule = grouped(of_group, groups, logical_axes) if groups else _built(config, schedule, logical_axes)
    chain = optax.chain(*clip, rule, *([scale_by_rates(rates)] if rates else []))
    return step_router_biases(chain, config.router_bias_rate, logical_axes)


def init_reads_params(transform: optax.GradientTransformation, params: Any) -> bool:
    """True if an optimizer's first state depends on the parameters' values, as where it keeps a copy of them.

    Args:
      transform: what `make` gave.
      params: the trained parameters or their ShapeDtypeStructs.

    Example:
      >>> params = {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}
      >>> init_reads_params(optax.adam(1.0), params), init_reads_params(optax.contrib.prodigy(), params)
      (False, True)
    """
    jaxpr = jax.make_jaxpr(transform.init)(params).jaxpr
    needed = {x for x in jaxpr.outvars if not isinstance(x, core.Literal)}
    for equation in reversed(jaxpr.eqns):
        if not needed.isdisjoint(equation.outvars):
            needed |= {x for x in equation.invars if not isinstance(x, core.Literal)}
    return not needed.isdisjoint(jaxpr.invars)


def _built(config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
    """The update rule of an optimizer, whose class may be anyone's."""
    rule = config.build(schedule, logical_axes)
    if not isinstance(rule, optax.GradientTransformation):
        raise UserError(
            f"optimizer.kind: {config.kind}: build must return an optax.GradientTransformation, it returns "
            f"{shown(rule)}"
        )
    return rule


def _clip(norm: float, separately: Sequence[str], logical_axes: Any) -> list[optax.GradientTransformation]:
    """Clipping by the global norm, or by that of the parameters of each pattern and that of the others."""
    if not separately:
        return [optax.clip_by_global_norm(norm)]
    flat = _flat(logical_axes)
    held = {path: [] for path in flat}
    for pattern in separately:
        for path, holds in patterns.match_paths([pattern], flat).items():
            held[path].append(holds)
    number = {path: (*holds, True).index(True) for path, holds in held.items()}  # of the first pattern that holds

    def masked_clip(n: int) -> optax.GradientTransformation:
        mask = {path: m == n for path, m in number.items()}
        return optax.masked(optax.clip_by_global_norm(norm), traverse_util.unflatten_dict(mask, sep="/"))

    return [masked_clip(n) for n in range(len(separately) + 1)]


def decayed(
    scale: optax.GradientTransformation, config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any
) -> optax.GradientTransformation:
    """`scale`, then decoupled weight decay, then the learning rate.

    Args:
      scale: the update rule, which treats each element by itself.
      config: its `weight_decay` is λ; `decay_all` says what has it.
      schedule: from the step to the learning rate.
      logical_axes: a tree like the parameters, a tuple of names for each.

    Returns:
      The transformation −η·(scale(g) + λ·p).
    """
    decay = optax.add_decayed_weights(config.weight_decay, decay_mask(logical_axes, config.decay_all))
    return optax.chain(scale, decay, optax.scale_by_learning_rate(schedule))


class SGD(OptimizerConfig):
    """Stochastic gradient descent: −η·(trace + λ·p), trace = g + b1·trace."""

    kind: Literal["sgd"] = "sgd"
    b1: Fraction = 0.0
    """Momentum."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        scale = optax.trace(self.b1) if self.b1 else optax.identity()
        return decayed(scale, self, schedule, logical_axes)


class AdamW(OptimizerConfig):
    """Adam with decoupled weight decay: −η·(m̂/(√v̂ + ε) + λ·p); with `bias_correction: false` (BERT) m and v in place of
    m̂ and v̂."""

    kind: Literal["adamw"] = "adamw"
    b1: Decay = 0.9
    """First-moment decay."""
    b2: Decay = 0.999
    """Second-moment decay."""
    eps: PositiveFloat | None = None
    """ε; 1e-8 by default, 1e-6 without bias correction."""
    bias_correction: bool = True
    """False is BERT's Adam."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        eps = self.eps or (1e-8 if self.bias_correction else 1e-6)
        return decayed(scale_by_adam(self.b1, self.b2, eps, self.bias_correction), self, schedule, logical_axes)


def scale_by_adam(b1: float, b2: float, eps: float, bias_correction: bool) -> optax.GradientTransformation:
    """Adam's m̂/(√v̂ + ε), or BERT's m/(√v + ε), whose first steps are up to (1 − b1)/√(1 − b2) times as large."""
    adam = optax.scale_by_adam(b1, b2, eps)
    if bias_correction:
        return adam

    def update(updates: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

    return optax.GradientTransformation(adam.init, update)


class Adagrad(OptimizerConfig):
    """AdaGrad with decoupled weight decay: −η·(g/√(s + ε) + λ·p), s = initial_accumulator + Σ g² of all steps."""

    kind: Literal["adagrad"] = "adagrad"
    initial_accumulator: PositiveFloat = 0.1
    """s before the first step."""
    eps: NonNegativeFloat = 0.0
    """ε; TensorFlow has none."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        return decayed(optax.scale_by_rss(self.initial_accumulator, self.eps), self, schedule, logical_axes)


class Adamax(OptimizerConfig):
    """Adamax with decoupled weight decay: −η·(m̂/u + λ·p), u = max(b2·u, |g| + ε)."""

    kind: Literal["adamax"] = "adamax"
    b1: Decay = 0.9
    """First-moment decay."""
    b2: Fraction = 0.999
    """Decay of the largest gradient."""
    eps: PositiveFloat = 1e-8
    """ε."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        scale = optax.scale_by_adamax(self.b1, self.b2, self.eps)
        return decayed(scale, self, schedule, logical_axes)


class Lamb(OptimizerConfig):
    """LAMB: −η·‖p‖/‖r‖·r, r = m̂/(√v̂ + ε) + λ·p; with `bias_correction: false` (ALBERT) m and v in place of m̂ and v̂."""

    kind: Literal["lamb"] = "lamb"
    b1: Decay = 0.9
    """First-moment decay."""
    b2: Decay = 0.999
    """Second-moment decay."""
    eps: PositiveFloat = 1e-6
    """ε."""
    bias_correction: bool = True
    """False is the LAMB of ALBERT's released code."""
    exclude: tuple[str, ...] = ()
    """Patterns, as in `train.trainable` without ranges of layers, of parameters with neither trust ratio ‖p‖/‖r‖
    nor weight decay: ['*/bias', '*/scale'] in ALBERT's released code."""

    def check(self, logical_axes: Any) -> None:
        patterns.match_paths(self.exclude, _flat(logical_axes), "optimizer.exclude")

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        has_ratio = {path: not holds for path, holds in patterns.match_paths(self.exclude, _flat(logical_axes)).items()}
        is_decayed = _flat(decay_mask(logical_axes, self.decay_all))

        def mask_fn(mask: Mapping[str, bool]) -> Callable[[Any], Any]:  # `per_layer` gives a part of the tree at a time
            return lambda params: traverse_util.unflatten_dict({path: mask[path] for path in _flat(params)}, sep="/")

        lamb = optax.chain(
            scale_by_adam(self.b1, self.b2, self.eps, self.bias_correction),
            optax.add_decayed_weights(
                self.weight_decay, mask_fn({path: has_ratio[path] and is_decayed[path] for path in is_decayed})
            ),
            optax.masked(optax.scale_by_trust_ratio(), mask_fn(has_ratio)),
            optax.scale_by_learning_rate(schedule),
        )
        return per_layer(lamb, logical_axes)


class Lion(OptimizerConfig):
    """Lion: −η·(sign(b1·m + (1 − b1)·g) + λ·p)."""

    kind: Literal["lion"] = "lion"
    b1: Fraction = 0.9
    """Share of the momentum in the step."""
    b2: Fraction = 0.99
    """Decay of the momentum."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        return decayed(optax.scale_by_lion(self.b1, self.b2), self, schedule, logical_axes)


class Adafactor(OptimizerConfig):
    """Adafactor: −η·(u/max(1, rms(u))·max(rms(p), 1e-3) + λ·p), u = g/√v; v is factored into rows and columns where
    both are 128 or more, and decays by 1 − t^−b2."""

    kind: Literal["adafactor"] = "adafactor"
    b1: Decay | None = None
    """Adds momentum."""
    b2: Fraction = 0.8
    """Exponent of the second moment's decay."""
    eps: PositiveFloat = 1e-30
    """Added to g²."""
    scale_by_parameter: bool = True
    """Multiply the step by the parameter's root mean square, as T5 does."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        transform = optax.adafactor(
            schedule,
            decay_rate=self.b2,
            multiply_by_parameter_scale=self.scale_by_parameter,
            momentum=self.b1,
            eps=self.eps,
        )
        if not self.weight_decay:
            return per_layer(transform, logical_axes)
        mask = decay_mask(logical_axes, self.decay_all)
        decay = optax.add_decayed_weights(lambda step: -schedule(step) * self.weight_decay, mask)
        return optax.chain(per_layer(transform, logical_axes), decay)


class Muon(OptimizerConfig):
    """Muon: −η·(√max(1, out/in)·orthogonal(b1·m̂ + (1 − b1)·ĝ) + λ·p) for matrices inside the network; AdamW (with its
    own b1 of 0.9) on the same schedule for everything else. With `consistent_rms` c (Moonlight) the factor is
    c·√max(in, out)."""

    kind: Literal["muon"] = "muon"
    b1: Decay = 0.95
    """Decay of Muon's momentum."""
    b2: Decay = 0.999
    """AdamW's second-moment decay."""
    eps: PositiveFloat = 1e-8
    """AdamW's ε."""
    adam_learning_rate: PositiveFloat | None = None
    """Peak learning rate of the AdamW that takes embeddings, norms and biases; `learning_rate` by default."""
    consistent_rms: PositiveFloat | None = None
    """Root mean square of the orthogonal matrices, whatever their shape; 0.2 is about that of AdamW's updates
    (Moonlight). By default it depends on the shape."""

    def rate_factor(self, axes: Axes) -> float:
        return 1.0 if takes_muon(axes) else self._adam_factor()

    def _adam_factor(self) -> float:
        return (self.adam_learning_rate or self.learning_rate) / self.learning_rate

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        ratio = self._adam_factor()
        not_matrices = _map(lambda axes: optax.MaskedNode() if takes_muon(axes) else axes, logical_axes)
        adam = optax.adamw(
            lambda step: ratio * schedule(step),
            b2=self.b2,
            eps=self.eps,
            weight_decay=self.weight_decay,
            mask=lambda _: decay_mask(not_matrices, self.decay_all),
        )
        labels = _map(lambda axes: "muon" if takes_muon(axes) else "adam", logical_axes)
        return optax.partition({"muon": self._matrices(schedule, logical_axes), "adam": adam}, labels)

    def _scale(self, shape: tuple[int, ...]) -> float:
        """The factor of an orthogonal matrix of this shape."""
        fan_in, fan_out = shape[-2:]
        if self.consistent_rms is not None:
            return self.consistent_rms * max(fan_in, fan_out) ** 0.5
        return max(1.0, fan_out / fan_in) ** 0.5

    def _matrices(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        def dimensions(axes: Axes) -> Any:  # the stacks' axes are a batch of matrices to Muon
            first = len(axes) - 2
            return optax.contrib.MuonDimensionNumbers(first, first + 1) if takes_muon(axes) else optax.MaskedNode()

        return optax.chain(
            optax.contrib.scale_by_muon(beta=self.b1, weight_dimension_numbers=_map(dimensions, logical_axes)),
            optax.stateless_with_tree_map(lambda u, p: u * self._scale(p.shape)),
            optax.add_decayed_weights(self.weight_decay),
            optax.scale_by_learning_rate(schedule),
        )


def takes_muon(axes: Axes) -> bool:
    """Whether Muon takes an array of these axes."""
    return is_matrix(axes) and NOT_MATRICES.isdisjoint(axes)


def _map(function: Any, logical_axes: Any) -> Any:
    return jax.tree.map(function, logical_axes, is_leaf=is_axes)


def _flat(tree: Any) -> dict[str, Any]:
    return traverse_util.flatten_dict(tree, sep="/")


class SparseSGD(RowOptimizer):
    """Gradient descent on the rows that a step reads (word2vec): −η·g, g the gradient of a sum over examples."""

    kind: Literal["sparse_sgd"] = "sparse_sgd"

    def update_rows(
        self, tables: Tables, slots: Tables, ids: Tables, grads: Tables, rate: jax.Array
    ) -> tuple[Tables, Tables]:
        return {path: tables[path].at[ids[path]].add(-rate * grads[path], mode="drop") for path in tables}, slots


class SparseAdagrad(RowOptimizer):
    """AdaGrad on the rows that a step reads (GloVe): s ← s + (η·g)², −η·g/√s, g the gradient of a sum over examples.

    As in GloVe's code η is in s as well, and each of the n gradients of a row that is read n times counts for itself.
    Unlike it, all of a step go into s before it divides them.
    """

    kind: Literal["sparse_adagrad"] = "sparse_adagrad"
    initial_sum: PositiveFloat = 1.0
    """s at the start."""

    def slots(self, params: Any) -> Any:
        return jax.tree.map(lambda x: jnp.full_like(x, self.initial_sum), params)

    def update_rows(
        self, tables: Tables, slots: Tables, ids: Tables, grads: Tables, rate: jax.Array
    ) -> tuple[Tables, Tables]:
        new_tables, new_slots = {}, {}
        for path, table in tables.items():
            steps, at = rate * grads[path], ids[path]
            new_slots[path] = slots[path].at[at].add(jnp.square(steps), mode="drop")
            new_tables[path] = table.at[at].add(-steps * jax.lax.rsqrt(new_slots[path][at]), mode="drop")
        return new_tables, new_slots
