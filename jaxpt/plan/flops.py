"""Counts the floating-point operations of a program from its jaxpr, and knows what devices can do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

# Peak dense bf16 FLOP/s of one JAX device, from the makers' data sheets.
PEAKS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 2307e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


def peak(device: jax.Device) -> float | None:
    """Peak dense bf16 FLOP/s of a device, None where it is not known (CPUs)."""
    matches = [name for name in PEAKS if device.device_kind.startswith(name)]
    return PEAKS[max(matches, key=len)] if matches else None


def matmul_flops(function: Callable[..., Any], *args: Any) -> int:
    """FLOPs of all matrix products of a function; loops (`scan`) count as often as they run.

    A product of [m, k] and [k, n] counts 2·m·k·n. Attention counts in full, also where a mask hides half of it.

    Args:
      function: what is traced.
      *args: arrays or ShapeDtypeStructs.

    Returns:
      The number of FLOPs.

    Example:
      >>> import jax.numpy as jnp
      >>> matmul_flops(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 5)))
      60
    """
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr: core.Jaxpr) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contract, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(eqn.invars[0].aval.shape[axis] for axis in contract)
            total += 2 * depth * math.prod(eqn.outvars[0].aval.shape)
            continue
        inner = [_count(sub) for value in eqn.params.values() for sub in _subjaxprs(value)]
        if eqn.primitive.name == "cond":
            total += max(inner, default=0)
        else:
            total += eqn.params.get("length", 1) * sum(inner) if eqn.primitive.name == "scan" else sum(inner)
    return total


def _subjaxprs(value: Any) -> list[core.Jaxpr]:
    if isinstance(value, core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, core.Jaxpr):
        return [value]
    if isinstance(value, (tuple, list)):
        return [sub for item in value for sub in _subjaxprs(item)]
    return []
