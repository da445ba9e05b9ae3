"""The training step and the evaluation step: pure functions of state and batch.

The loss of a step is Σ_parts coefficient · Σ loss / Σ weight, each part over its own weights in the whole global batch.
Because the Σ weight are functions of the batch alone, they are known before the loop over microbatches, and the sum of
the microbatches' gradients is exactly the gradient of the whole batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from jaxpt.config import Config
from jaxpt.errors import UserError, listed
from jaxpt.models import pipeline
from jaxpt.models.moe import ROUTERS
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective, carried_loss
from jaxpt.objectives.checks import check_parts
from jaxpt.parallel import compiler, distributed, rules
from jaxpt.train import corruption, sparse, spikes, trainable
from jaxpt.train.state import Setup, State, purpose_key

Batch = dict[str, jax.Array]
Metrics = dict[str, Any]


def gradients(
    objective: Objective,
    network: Network,
    params: Any,
    batch: Batch,
    key: jax.Array | None,
    accumulation: int = 1,
    carry: Any = None,
    assemble: Callable[[Any, jax.Array | None], Any] = lambda params, key: params,
    **options: Any,
) -> tuple[Any, Metrics, Any]:
    """Gradient and metrics of the mean loss of a global batch, in `accumulation` microbatches.

    Args:
      objective: gives the loss parts and their weights.
      network: what computes the loss.
      params: its parameters, or what `assemble` makes them of: what is trained.
      batch: features [batch, ...].
      key: random key of this step's dropout, and by purpose of other draws; None for none.
      accumulation: number of microbatches; it divides the batch.
      carry: what the rows of the batch before left, [batch, ...]; None where nothing is carried.
      assemble: from `params` and a microbatch's random key to the model's parameters.
      **options: what the objective's loss is given besides; no gradient is taken of it.

    Returns:
      (gradients like `params`, metrics, next carry): the metrics are "loss", each loss part, and the objective's own,
      as means.
    """
    coefficients, weights = objective.coefficients(), objective.weights(batch)

    def loss_fn(params: Any, micro: Batch, key: jax.Array | None, carry: Any) -> tuple[jax.Array, Any]:
        rngs = None if key is None else {"dropout": key, "sample": purpose_key(key, "sample")}
        bound = network.bind(assemble(params, key), rngs)
        sums, metrics, carry = carried_loss(objective, bound, micro, carry, **options)
        check_parts(objective.kind, coefficients, sums, weights)
        means = {part: total / _divisor(part_weight(part, weights, batch)) for part, total in sums.items()}
        loss = sum(coefficients.get(part, 1.0) * mean for part, mean in means.items())
        return loss, ((means, metrics), carry)

    def of_all(params: Any) -> tuple[jax.Array, Any]:
        """All microbatches at the same time: the stages of the model share them out."""
        keys = None if key is None else jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(accumulation))
        of_micro = jax.vmap(functools.partial(loss_fn, params))
        rows, carries = to_microbatches((batch, carry), accumulation)
        losses, (aux, carries) = of_micro(rows, keys, carries)
        loss, aux = jax.tree.map(lambda x: x.sum(0), (losses, aux))
        return loss, (aux, from_microbatches(carries))

    value_and_grad = jax.value_and_grad(loss_fn, has_aux=True)
    if accumulation == 1:
        (loss, (aux, carry)), grads = value_and_grad(params, batch, key, carry)
    elif pipeline.stages() > 1:
        (loss, (aux, carry)), grads = jax.value_and_grad(of_all, has_aux=True)(params)
    else:

        def body(total: Any, micro: tuple[jax.Array, Batch, Any]) -> tuple[Any, Any]:
            index, rows, carry = micro
            micro_key = None if key is None else jax.random.fold_in(key, index)
            (loss, (aux, carry)), grads = value_and_grad(params, rows, micro_key, carry)
            return jax.tree.map(jnp.add, total, ((loss, aux), grads)), carry

        micro, carries = to_microbatches(batch, accumulation), to_microbatches(carry, accumulation)
        first, first_carry = jax.tree.map(lambda x: x[0], (micro, carries))
        loss, (aux, _) = jax.eval_shape(loss_fn, params, first, key, first_carry)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), ((loss, aux), params))
        ((loss, aux), grads), carries = jax.lax.scan(body, zeros, (jnp.arange(accumulation), micro, carries))
        carry = from_microbatches(carries)
    means, metrics = aux
    return grads, {"loss": loss, **means, **finish(metrics)}, carry


def num_tokens(batch: Batch) -> jax.Array | int:
    """Non-padding tokens of a batch, encoder and decoder together: the denominator of auxiliary losses."""
    sides = ("encoder_segment_ids", "decoder_segment_ids")
    return sum((batch[name] > 0).sum() for name in sides if name in batch)


def part_weight(part: str, weights: Metrics, batch: Batch) -> jax.Array | int:
    """What a part of the loss is divided by: its own weight, or for an auxiliary loss the number of tokens.

    One whose name begins with "encoder_" or "decoder_" is divided by the tokens of that side.

    Args:
      part: its name.
      weights: of the objective's parts.
      batch: the whole global batch.
    """
    if part in weights:
        return weights[part]
    side = f"{part.partition('_')[0]}_segment_ids"
    return (batch[side] > 0).sum() if side in batch else num_tokens(batch)


def _divisor(weight: jax.Array | int) -> jax.Array:
    """The weight; 1 where there is none. Class weights of many classes may have a sum below 1."""
    return jnp.where(weight > 0, weight, 1.0)


def to_microbatches(rows: Any, accumulation: int) -> Any:
    """Arrays [batch, ...] → [accumulation, batch / accumulation, ...], every microbatch spread over all devices.

    Row r goes to microbatch r mod accumulation: a device that holds neighbouring rows keeps them, nothing is moved.
    """
    return jax.tree.map(
        lambda x: x.reshape(x.shape[0] // accumulation, accumulation, *x.shape[1:]).swapaxes(0, 1), rows
    )


def from_microbatches(micro: Any) -> Any:
    """Arrays of all microbatches as those of the batch: undoes `to_microbatches`."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), micro)


def finish(metrics: dict[str, tuple[jax.Array, jax.Array]]) -> Metrics:
    """Each metric's Σ value / Σ weight; NaN of a task ("task/metric") that has no example in the batch."""
    means = {name: total / jnp.maximum(weight, 1e-9) for name, (total, weight) in metrics.items()}
    routers = {name: means.pop(name) for name in list(means) if ROUTERS in name}
    of_tasks = {name: jnp.where(metrics[name][1] > 0, means[name], jnp.nan) for name in means if "/" in name}
    return routers | means | of_tasks


def make_train_step(setup: Setup, objective: Objective) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """One update as a jitted function of (state, batch); the state is donated.

    With teachers `setup.teacher_params()` follows the batch: neither donated nor changed.

    A step whose loss or gradient is not finite changes nothing but the counts of steps: the metric "skipped" is 1. With
    `train.on_spike` so does a finite spike: the metric "spike" is 1. What
    the update itself makes is not looked at here, which would cost another pass over the state; `make_state_check` is
    asked before a state is saved.

    Args:
      setup: model, optimizer, mesh and placement.
      objective: the objective in the current phase.

    Returns:
      A function (state, batch) → (state, metrics); metrics are scalars on the device.
    """
    config = setup.config

    def step(state: State, batch: Batch, *teachers: Any) -> tuple[State, Metrics]:
        key = purpose_key(jax.random.key(config.seed), "dropout", state.step)
        options = setup.loss_options(teachers)
        trained, frozen = trainable.partition(state.params, setup.trained)
        grads, metrics, carry = gradients(
            objective, setup.network, trained, batch, key, config.train.grad_accum_steps, state.carry,
            lambda trained, key: setup.assemble(trained, frozen, key), **options,
        )  # fmt: skip
        # Without the barrier XLA may make a gradient anew for each moment: of one that is written in place the old
        # values are then wanted later, and it is copied.
        placed, _ = trainable.partition(setup.shardings.params, setup.trained)
        grads = jax.lax.optimization_barrier(jax.lax.with_sharding_constraint(grads, placed))
        with jax.named_scope("optimizer"):
            updates, opt_state = setup.optimizer.update(grads, state.opt_state, trained)
            _check_updates(config.optimizer.kind, updates, trained)
            params = optax.apply_updates(trained, updates)
        ema = state.ema
        if ema is not None:
            ema = optax.incremental_update(params, ema, 1.0 - config.optimizer.ema_decay)
        norm = optax.global_norm(grads)
        is_finite = is_good = jnp.isfinite(metrics["loss"]) & jnp.isfinite(norm)
        scale = state.scale
        if scale is not None:
            is_spike, scale = spikes.judge(scale, metrics["loss"], norm)
            is_good = is_finite & ~is_spike.any()
            metrics["spike"] = is_spike.any().astype(jnp.float32)
        new = state.replace(params=trainable.merge(params, frozen), opt_state=opt_state, ema=ema, carry=carry)
        new = jax.tree.map(lambda a, b: jnp.where(is_good, a, b), new, state)
        new = new.replace(
            step=state.step + 1,
            skipped=jnp.where(is_finite, 0, state.skipped + 1),
            skipped_total=state.skipped_total + ~is_good,
            scale=scale,
        )
        rate = setup.schedule(state.step - state.skipped_total)
        metrics |= {"learning_rate": rate, "gradient_norm": norm, "skipped": 1.0 - is_finite}
        if config.train.layer_norms:
            metrics |= layer_norms({"gradient": grads, "update": updates, "parameter": trained}, setup.axes)
        return new, metrics

    if sparse.applies(setup, objective):
        step = sparse.make_update(setup, objective, to_microbatches)
    return compiler.jit(
        step,
        changes=config.train.compiler_options,
        in_shardings=(setup.shardings, rules.batch_sharding(setup.mesh), *setup.teacher_shardings()),
        out_shardings=(setup.shardings, rules.replicated(setup.mesh)),
        donate_argnums=0,
    )


def _check_updates(kind: str, updates: Any, params: Any) -> None:
    """Raises UserError where an update has not its parameter's shape: it would be broadcast in silence."""
    update_shapes, param_shapes = (
        {jax.tree_util.keystr(path, simple=True, separator="/"): jnp.shape(x) for path, x in leaves}
        for leaves in (jax.tree_util.tree_leaves_with_path(updates), jax.tree_util.tree_leaves_with_path(params))
    )
    for path, shape in param_shapes.items():
        if update_shapes.get(path) != shape:
            problem = f"has shape {update_shapes[path]}" if path in update_shapes else "is missing"
            raise UserError(f"optimizer.kind: {kind}: the update of {path} {problem}; it wants {shape}")


def make_state_check(setup: Setup) -> Callable[[State], tuple[jax.Array, jax.Array]]:
    """What is asked of a state before it is saved, as a jitted function.

    Returns:
      A function whose result is (which arrays hold only finite numbers, bool [arrays], see `not_finite`; their digests,
      uint32 [arrays], see `corruption.digest`).
    """
    return compiler.jit(
        lambda state: (
            jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(state)]),
            corruption.digests(state),
        ),
        in_shardings=(setup.shardings,),
        out_shardings=rules.replicated(setup.mesh),
    )


def not_finite(state: State, flags: jax.Array) -> list[str]:
    """Names of the arrays of a state in which `make_state_check` found NaN or infinity."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    leaves = zip(paths, jax.device_get(flags), strict=True)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, is_finite in leaves if not is_finite]


def batch_shapes(setup: Setup, objective: Objective) -> Batch:
    """ShapeDtypeStructs, with their placement, of a global batch's features."""
    data, sharding = setup.config.data, rules.batch_sharding(setup.mesh)
    return {
        name: jax.ShapeDtypeStruct((data.batch_size, *shape), dtype, sharding=sharding)
        for name, (shape, dtype) in objective.data_spec(data.length).features.items()
    }


def tokens_per_example(setup: Setup, objective: Objective) -> int:
    """Tokens of a row, on all sides of the model; of counts of pairs (GloVe) the pairs."""
    features = objective.data_spec(setup.config.data.length).features
    sides = ("encoder_input_tokens", "decoder_input_tokens", "words")
    return sum(features[name][0][0] for name in sides if name in features)


def traced(setup: Setup, objective: Objective) -> jax.stages.Traced:
    """The training step, traced for the setup's mesh: `.jaxpr` has its operations, `.lower().compile()` compiles it.

    Nothing is computed, and the mesh's devices need not be here.
    """
    with setup.use():
        arguments = setup.placed_shapes(), batch_shapes(setup, objective), *setup.teacher_params()
        return make_train_step(setup, objective).trace(*arguments)


def make_eval_step(setup: Setup, objective: Objective) -> Callable[[Any, Batch, Any], tuple[Metrics, Any]]:
    """Σ of every loss part and metric of a batch, without dropout, as a jitted function of (params, batch, carry).

    With teachers `setup.teacher_params()` follows the batch.

    Returns:
      A function whose result is ({name: (Σ value, Σ weight)}, next carry): sums of batches may be added up.
    """

    def step(params: Any, batch: Batch, carry: Any, *teachers: Any) -> tuple[Metrics, Any]:
        options = setup.loss_options(teachers)

        def loss(rows: Batch, carry: Any) -> Any:
            return carried_loss(objective, setup.network.bind(params), rows, carry, **options)

        if pipeline.stages() > 1:
            rows = to_microbatches((batch, carry), setup.config.train.grad_accum_steps)
            sums, metrics, carries = jax.vmap(loss)(*rows)
            sums, metrics = jax.tree.map(lambda x: x.sum(0), (sums, metrics))
            carry = from_microbatches(carries)
        else:
            sums, metrics, carry = loss(batch, carry)
        metrics = {name: pair for name, pair in metrics.items() if ROUTERS not in name}  # of training alone
        weights = objective.weights(batch)
        return metrics | {part: (total, part_weight(part, weights, batch)) for part, total in sums.items()}, carry

    return compiler.jit(
        step,
        changes=setup.config.train.compiler_options,
        in_shardings=(
            setup.shardings.params,
            rules.batch_sharding(setup.mesh),
            setup.shardings.carry,
            *setup.teacher_shardings(),
        ),
        out_shardings=(rules.replicated(setup.mesh), setup.shardings.carry),
    )


def layer_norms(trees: dict[str, Any], axes: Any) -> Metrics:
    """Euclidean norm of every array, one for each layer of a scanned stack.

    Args:
      trees: for example {"gradient": grads, "update": updates}, each like the trained parameters.
      axes: the parameters' logical axis names; "layers" comes first in a scanned stack.

    Returns:
      {"gradient_norm/encoder/layers/…": [] or [layers], …}.
    """
    norms, names = {}, traverse_util.flatten_dict(axes, sep="/")
    for kind, tree in trees.items():
        for name, leaf in traverse_util.flatten_dict(tree, sep="/").items():
            inner = tuple(i for i, dim in enumerate(names[name]) if dim != "layers")
            norms[f"{kind}_norm/{name}"] = jnp.sqrt(jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=inner))
    return norms


def check(config: Config, setup: Setup) -> None:
    """Finds settings that cannot work together, before anything is compiled.

    Args:
      config: the run's configuration in its current phase.
      setup: gives the mesh.

    Raises:
      UserError: a model of another family than the objective needs, a length beyond the position table, or a batch that
        does not divide over accumulation and devices.
    """
    config.objective.check_family(config.model)
    config.model.check_length(config.data.length)
    if lacking := config.objective.heads(config.model).keys() - setup.network.heads.keys():
        raise UserError(
            f"train.phases: the first phase has no {listed(sorted(lacking))}, which a later objective needs"
        )
    _check_stages(config, setup)
    _check_experts(config)
    axes = {axis: setup.mesh.shape[axis] for axis in rules.BATCH if axis != "expert" or setup.mesh.shape[axis] > 1}
    rows = math.prod(axes.values())
    if config.data.batch_size % (rows * config.train.grad_accum_steps):
        raise UserError(
            f"data.batch_size: {config.data.batch_size} must divide by {' × '.join(f'mesh.{axis}' for axis in axes)} × "
            f"train.grad_accum_steps = {' × '.join(map(str, axes.values()))} × {config.train.grad_accum_steps}"
        )


def _check_stages(config: Config, setup: Setup) -> None:
    stages, accumulation = setup.mesh.shape["pipeline"], config.train.grad_accum_steps
    if stages == 1:
        return
    if not any("layers" in axes for axes in jax.tree.leaves(setup.axes, is_leaf=lambda x: isinstance(x, tuple))):
        kind = config.model.kind
        raise UserError(f"mesh.pipeline: {stages}: the layers of model.kind: {kind} share their parameters")
    if accumulation < stages:
        raise UserError(
            f"train.grad_accum_steps: {accumulation} is below mesh.pipeline: {stages}: each stage works on its own "
            f"microbatch; 4 × mesh.pipeline or more leave little idle"
        )


def _check_experts(config: Config) -> None:
    """Microbatches cut what is a mean of more than one row."""
    accumulation = config.train.grad_accum_steps
    if accumulation == 1 or not getattr(config.model, "experts", None):
        return
    if config.model.balance == "mixtral" and config.model.balance_weight:
        raise UserError(
            f"train.grad_accum_steps: {accumulation}: the loss of model.balance: mixtral is a product of means of the "
            f"whole batch, which microbatches do not know; set model.balance=switch, or train.grad_accum_steps=1"
        )
    if config.model.group_rows > 1:
        raise UserError(
            f"train.grad_accum_steps: {accumulation}: cuts groups of model.group_rows: {config.model.group_rows}; set "
            f"model.group_rows=1, or train.grad_accum_steps=1"
        )


def put(batch: dict[str, Any], setup: Setup) -> Batch:
    """This process's rows (numpy) as arrays of the global batch."""
    with setup.use():
        return distributed.put(batch, setup.mesh, setup.config.data.batch_size)
