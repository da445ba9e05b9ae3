"""Options that the compiler is given for a device, each with the reason and the measurement behind it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

OPTIONS: dict[str, dict[str, str | bool | int]] = {
    # jaxlib 0.10 hands sums to a library that is slow on leading axes: [32, 4, 128, 128] → [4, 128, 128], the gradient
    # of T5's position bias, takes 10 ms with it and 0.3 ms without (2 cores); products stay with that library.
    "cpu": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"},
}


@functools.cache
def options() -> dict[str, str | bool | int]:
    """Compiler options for the default device; those that this version of XLA does not know are left out.

    Returns:
      What `jax.stages.Lowered.compile(compiler_options=…)` takes.
    """
    lowered = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), jnp.float32))
    known = {}
    for name, value in OPTIONS.get(jax.default_backend(), {}).items():
        try:
            lowered.compile(compiler_options={name: value})
        except Exception:  # XLA has no class of its own for an unknown option
            continue
        known[name] = value
    return known
