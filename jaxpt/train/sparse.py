"""The training step of objectives that read rows of tables: it costs what it reads, however large the tables are.

    ids = objective.rows(examples)       rows = tables[ids]           one for each time that a row is read
    g = ∂ Σ loss / ∂ rows                tables[ids] += optimizer(g)  in place: the state is donated

A step makes `optimizer.updates` of these one after the other, each of a share of the batch's examples. The gradient is
of the sum over examples, each part times its coefficient; the metrics are means over the step, as everywhere. An update
whose loss or gradient is not finite adds zeros, and its step counts as skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from jaxpt.errors import UserError
from jaxpt.objectives.base import Objective
from jaxpt.objectives.checks import check_parts
from jaxpt.objectives.rows import RowObjective, lookup
from jaxpt.parallel import rules
from jaxpt.train.optimizers.rows import RowOptimizer, RowState
from jaxpt.train.state import Setup, State

Batch = dict[str, jax.Array]


def applies(setup: Setup, objective: Objective) -> bool:
    """True if the optimizer of a run is one of rows.

    Raises:
      UserError: the objective reads more than rows, some parameters are trained in some phases alone, or an option is
        set that reads whole tables.
    """
    optimizer, train = setup.config.optimizer, setup.config.train
    if not isinstance(optimizer, RowOptimizer):
        return False
    if not isinstance(objective, RowObjective):
        raise UserError(
            f"optimizer.kind: {optimizer.kind}: is for objectives that read rows of tables (skip_gram, cbow, glove), "
            f"not for objective.kind: {objective.kind}"
        )
    if not isinstance(setup.shapes.opt_state[0], RowState):  # but states of groups, by their names
        raise UserError(f"optimizer.kind: {optimizer.kind}: trains the same parameters in all phases; see train.phases")
    options = {"lora": train.lora is not None, "layer_norms": train.layer_norms, "on_spike": train.on_spike != "keep"}
    if chosen := [name for name, is_set in options.items() if is_set]:
        raise UserError(f"train.{chosen[0]}: reads whole tables; optimizer.kind: {optimizer.kind} does not have it")
    return True


def row_gradients(
    objective: RowObjective, tables: Batch, examples: Batch, micro: Batch | None = None
) -> tuple[Batch, Batch, dict[str, Any]]:
    """Gradients of the summed loss by the rows that examples read.

    Args:
      objective: gives ids and loss.
      tables: {path: [rows, width]}.
      examples: of `RowObjective.examples`.
      micro: the same in microbatches, [accumulation, examples / accumulation, ...], to be read one after the other.

    Returns:
      ({path: ids int32 [n]}, {path: gradients [n, width]}, metrics as sums): of each loss part and metric (Σ value,
      Σ weight), under their names.
    """
    coefficients, weights = objective.coefficients(), objective.example_weights(examples)

    def loss(rows: Batch, micro: Batch) -> tuple[jax.Array, Any]:
        sums, metrics = objective.loss_from_rows(rows, micro)
        check_parts(objective.kind, coefficients, sums, weights)
        return sum(coefficients[part] * total for part, total in sums.items()), (sums, metrics)

    def of_rows(micro: Batch) -> tuple[Batch, Batch, Any]:
        ids = objective.rows(micro)
        rows = {path: lookup(tables[path], ids[path]) for path in ids}
        grads, sums = jax.grad(loss, has_aux=True)(rows, micro)
        flat = {path: g.reshape(-1, g.shape[-1]) for path, g in grads.items()}
        return {path: x.reshape(-1) for path, x in ids.items()}, flat, sums

    if micro is None:
        ids, grads, (sums, metrics) = of_rows(examples)
    else:
        parts = jax.lax.map(of_rows, micro)
        ids, grads = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), parts[:2])
        sums, metrics = jax.tree.map(lambda x: x.sum(0), parts[2])
    return ids, grads, {part: (total, weights[part]) for part, total in sums.items()} | metrics


def make_update(
    setup: Setup, objective: RowObjective, to_microbatches: Callable[[Batch, int], Batch]
) -> Callable[[State, Batch], tuple[State, dict[str, Any]]]:
    """A step as a function of (state, batch), to be jitted with the state donated.

    Args:
      setup: model, optimizer, mesh and placement.
      objective: the objective in the current phase.
      to_microbatches: from a batch and how many there are to them.

    Returns:
      (state, batch) → (state, metrics), as `jaxpt.train.step.make_train_step`.
    """
    optimizer, accumulation = setup.config.optimizer, setup.config.train.grad_accum_steps
    coefficients, replicated = objective.coefficients(), rules.replicated(setup.mesh)

    def update(tables: Batch, slots: Batch, examples: Batch, rate: jax.Array) -> tuple[Batch, Batch, Any]:
        micro = to_microbatches(examples, accumulation) if accumulation > 1 else None
        ids, grads, sums = row_gradients(objective, tables, examples, micro)
        ids, grads = jax.lax.with_sharding_constraint((ids, grads), replicated)
        norm = optax.global_norm(grads)
        is_finite = jnp.isfinite(norm) & jnp.isfinite(jnp.stack([total for total, _ in sums.values()])).all()
        # Not a choice between two tables, which would copy them.
        grads = {path: jnp.where(is_finite, g, 0.0) for path, g in grads.items() if path in setup.trained}
        with jax.named_scope("optimizer"):
            read = ({path: x[path] for path in grads if path in x} for x in (tables, slots))
            new = optimizer.update_rows(*read, ids, grads, rate)
        return tables | new[0], slots | new[1], (sums, norm, is_finite)

    def step(state: State, batch: Batch) -> tuple[State, dict[str, Any]]:
        params, (rows,) = traverse_util.flatten_dict(state.params, sep="/"), state.opt_state
        rate, slots = setup.schedule(rows.schedule.count), traverse_util.flatten_dict(rows.slots or {}, sep="/")

        def body(carry: Any, share: Batch) -> Any:
            *carry, outputs = update(*carry, share, rate)
            return tuple(carry), outputs

        examples = objective.examples(batch)
        _check_shares(setup, len(jax.tree.leaves(examples)[0]))
        shares = to_microbatches(examples, optimizer.updates)
        (params, slots), (sums, norms, are_finite) = jax.lax.scan(body, (params, slots), shares)
        metrics = {name: x.sum() / jnp.maximum(weight.sum(), 1e-9) for name, (x, weight) in sums.items()}
        is_finite = are_finite.all()
        schedule = optax.ScaleByScheduleState(rows.schedule.count + is_finite)
        new = state.replace(
            step=state.step + 1,
            params=traverse_util.unflatten_dict(params, sep="/"),
            opt_state=(rows._replace(schedule=schedule, slots=traverse_util.unflatten_dict(slots, sep="/") or ()),),
            skipped=jnp.where(is_finite, 0, state.skipped + 1),
            skipped_total=state.skipped_total + ~is_finite,
        )
        metrics["loss"] = sum(coefficients[part] * metrics[part] for part in coefficients)
        norm = jnp.sqrt(jnp.square(norms).sum())
        return new, metrics | {"learning_rate": rate, "gradient_norm": norm, "skipped": 1.0 - is_finite}

    return step


def _check_shares(setup: Setup, examples: int) -> None:
    config = setup.config
    accumulation, updates = config.train.grad_accum_steps, config.optimizer.updates
    if examples % (accumulation * updates):
        raise UserError(
            f"optimizer.updates: {updates} × train.grad_accum_steps {accumulation} must divide the {examples} examples "
            f"of a batch (data.batch_size {config.data.batch_size})"
        )
