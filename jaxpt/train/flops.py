"""Counts the floating-point operations of a program from its jaxpr."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from jaxpt.models.attention import VISIBLE
from jaxpt.models.kernels import BLOCKS
from jaxpt.models.mask import Mask
from jaxpt.objectives.base import carried_loss
from jaxpt.parallel import chips
from jaxpt.train import trainable

if TYPE_CHECKING:
    from jaxpt.models.network import Network
    from jaxpt.objectives.base import Objective
    from jaxpt.train.state import Setup


def peak(device: jax.Device) -> float | None:
    """Peak dense bf16 FLOP/s of a device, None where it is not known (CPUs)."""
    chip = chips.chip(device.device_kind)
    return None if chip is None else chip.flops / chip.devices


def matmul_flops(function: Callable[..., Any], *args: Any) -> int:
    """FLOPs of all matrix products that a function cannot do without, see `count`: of attention what masks leave.

    Args:
      function: what is traced.
      *args: arrays or ShapeDtypeStructs.

    Returns:
      The number of FLOPs, over all devices.

    Example:
      >>> import jax.numpy as jnp
      >>> matmul_flops(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 5)))
      60
    """
    return count(jax.make_jaxpr(function)(*args).jaxpr, needed=True)


def model_flops(
    network: Network,
    objective: Objective,
    params: Any,
    batch: Any,
    teachers: Mapping[str, tuple[Network, Any]] | None = None,
    carry: Any = None,
) -> int:
    """FLOPs that a training step of this model cannot do without: three times those of the forward pass's products.

    The forward pass takes 2 per weight and token, the backward pass twice that, so this is 6·N·D (N weights of
    matrices, each counted for the D tokens that pass it; looking up embeddings takes none), and attention: 12·L·S·H·K a
    layer and text, half of that under a causal mask, which hides the other half, and less under a window. What is
    computed again in the backward pass does not count.

    Args:
      network: what is trained.
      objective: gives the loss.
      params: arrays or ShapeDtypeStructs.
      batch: features of a global batch, arrays or ShapeDtypeStructs.
      teachers: models that the loss looks at. Their pass counts three times too: `step_flops` counts it once.
      carry: what goes from batch to batch, likewise.

    Returns:
      The number of FLOPs, over all devices.

    Paper: https://arxiv.org/abs/2204.02311 (appendix B)
    """
    loss, arrays = _loss(network, objective, teachers)
    return 3 * matmul_flops(loss, params, batch, arrays, carry)


def step_flops(setup: Setup, batch: Any) -> int:
    """FLOPs that a training step cannot do without: `model_flops`, and where parameters are frozen, or a teacher is
    looked at, those of the forward passes and of the backward pass to the trained parameters.

    Args:
      setup: of the phase.
      batch: features of a global batch, arrays or ShapeDtypeStructs.

    Returns:
      The number of FLOPs, over all devices.
    """
    objective, shapes, teachers = setup.config.objective, setup.shapes, setup.loss_options().get("teachers")
    trained, frozen = trainable.partition(shapes.params, setup.trained)
    if not frozen and not teachers:
        return model_flops(setup.network, objective, shapes.params, batch, teachers, shapes.carry)
    loss, arrays = _loss(setup.network.with_model(remat="none"), objective, teachers)

    def total(trained: Any, frozen: Any, *given: Any) -> Any:
        return sum(jax.tree.leaves(loss(setup.assemble(trained, frozen, None), *given)))

    jaxpr = jax.make_jaxpr(jax.value_and_grad(total))(trained, frozen, batch, arrays, shapes.carry).jaxpr
    used, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))  # without gradients of frozen tables
    return count(used, needed=True)


def _loss(
    network: Network, objective: Objective, teachers: Mapping[str, tuple[Network, Any]] | None
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """(the loss's sums as a function of parameters, batch, the teachers' weights and carry, these weights)"""
    plain = network.with_model(attention="xla")  # kernels pad heads to 128 columns
    if getattr(network.config, "experts", None):
        plain = plain.with_model(grouped="ragged")  # blocks are a loop whose length is not known
    arrays = {name: weights for name, (_, weights) in (teachers or {}).items()}

    def loss(params: Any, batch: Any, arrays: Any, carry: Any) -> Any:
        models = {name: (teachers[name][0], weights) for name, weights in arrays.items()}
        options = {"teachers": models} if models else {}
        return carried_loss(objective, plain.bind(params), batch, carry, **options)[0]

    return loss, arrays


def count(jaxpr: core.Jaxpr, needed: bool = False) -> int:
    """FLOPs of all products of a program, over all devices.

    A product of [m, k] and [k, n] counts 2·m·k·n, also where each row has the weights of its expert. A loop (`scan`)
    counts as often as it runs, the longest branch of a condition counts, a region that each shard of a mesh runs counts
    for every shard. A kernel counts what it declares, or the products of its body in every cell of its grid; of splash
    attention in those that its mask leaves.

    Args:
      jaxpr: the program.
      needed: of the products of attention only the share counts that causality and a window leave.

    Returns:
      The number of FLOPs.
    """
    return sum(_one(eqn, needed) for eqn in jaxpr.eqns)


def _one(eqn: core.JaxprEqn, needed: bool, share: float = 1.0) -> int:
    """`share`: of the scores that a mask leaves, in an operation of attention, which alone has the scope's name."""
    name, params, scope = eqn.primitive.name, eqn.params, str(eqn.source_info.name_stack)
    if needed and share == 1:
        visible, scores = _counts(VISIBLE, scope)
        share = visible / scores
    if name == "dot_general":
        (contract, _), _ = params["dimension_numbers"]
        depth = math.prod(eqn.invars[0].aval.shape[axis] for axis in contract)
        return round(share * 2 * depth * math.prod(eqn.outvars[0].aval.shape))
    if name == "ragged_dot_general":  # each row with the weights of one group
        rows, depth = eqn.invars[0].aval.shape
        return 2 * rows * depth * eqn.outvars[0].aval.shape[-1]
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        outputs = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2 * math.prod(kernel) // outputs * math.prod(eqn.outvars[0].aval.shape)
    if name == "pallas_call" and params["cost_estimate"] is not None:
        return int(params["cost_estimate"].flops)
    if name.startswith("dot_product_attention_"):  # cuDNN's, which skips what a causal mask hides
        (B, L, H, K), S = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape[1]
        products, window = 5 if "_bwd" in name else 2, params["sliding_window_length"] or None
        mask = Mask(causal="CAUSAL" in str(params["mask_type"]), window=window)
        return round(products * 2 * B * H * L * S * K * mask.visible_share(S))
    inner = [
        sum(_one(sub_eqn, needed, share) for sub_eqn in sub.eqns)
        for value in params.values()
        for sub in _subjaxprs(value)
    ]
    if name == "cond":
        return max(inner, default=0)
    run, cells = _counts(BLOCKS, scope)
    return _times(name, params) * sum(inner) * run // cells


def _counts(pattern: str, scope: str) -> tuple[int, int]:
    """(what counts, all) by a scope such as `BLOCKS`, which is named on the outermost operation alone.

    Example:
      >>> _counts(BLOCKS, "jvp(layer)/vmap(splash_36_of_64_blocks)"), _counts(BLOCKS, "layer")
      ((36, 64), (1, 1))
    """
    match = re.search(pattern.format(r"(\d+)", r"(\d+)"), scope)
    return (int(match[1]), int(match[2])) if match else (1, 1)


def _times(name: str, params: dict[str, Any]) -> int:
    """How often what is inside of an operation runs."""
    if name == "scan":
        return params["length"]
    if name == "shard_map":
        axes = params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]
        return math.prod(params["mesh"].shape[axis] for axis in axes)
    if name == "pallas_call":
        return math.prod(size for size in params["grid_mapping"].grid if isinstance(size, int))
    return 1


def _subjaxprs(value: Any) -> list[core.Jaxpr]:
    if isinstance(value, core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, core.Jaxpr):
        return [value]
    if isinstance(value, (tuple, list)):
        return [sub for item in value for sub in _subjaxprs(item)]
    return []
