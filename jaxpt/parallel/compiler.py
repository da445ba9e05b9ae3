"""Compiler options of each device, with their reasons and measurements, and the compilation cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

OPTIONS: dict[str, dict[str, str | bool | int]] = {
    # jaxlib 0.10 hands parts of a program to a library (YNN) whose results can be wrong: sums, and what is fused with
    # them (of a vmap over gradients of a cross-entropy after a norm: off by half,
    # tests/parallel/test_compiler.py), and products with a broadcast operand (tests/generate/test_likelihood.py). It
    # is slow too (2 cores, with and without it): [32, 4, 128, 128] → [4, 128, 128], the gradient of T5's position bias,
    # 10 against 0.3 ms; attention over 16 × 128 tokens with 12 heads, 53 against 16 ms.
    "cpu": {"xla_cpu_experimental_ynn_fusion_type": ""},
}


def platform() -> str:
    """Where what is traced now will run: "cpu", "gpu" or "tpu".

    That is the platform of the mesh in use, whose devices need not be here (`jaxpt plan --topology`); without a mesh it
    is that of JAX's default device.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def options(platform: str) -> dict[str, str | bool | int]:
    """Compiler options for a platform: all versions of XLA that jaxpt supports know them; another one refuses them.

    Args:
      platform: "cpu", "gpu" or "tpu".

    Returns:
      What `jax.jit(compiler_options=…)` takes.
    """
    return OPTIONS.get(platform, {})


def jit(fun: Callable[..., Any], **kwargs: Any) -> Any:
    """`jax.jit` with the options of the platform in use; the result cannot be called inside another `jax.jit`.

    Args:
      fun: the function.
      **kwargs: as for `jax.jit`.

    Returns:
      The jitted function.
    """
    return jax.jit(fun, compiler_options=options(platform()), **kwargs)


CACHE_BYTES = 4 << 30
"""Where the programs take more, those not used for longest go."""


def enable_compilation_cache() -> Path | None:
    """Lets JAX keep compiled programs on disk, so that a second start does not compile them again.

    They are kept in `$XDG_CACHE_HOME/jaxpt/compiled`, or `~/.cache/jaxpt/compiled`. JAX's own settings win: another
    place with `JAX_COMPILATION_CACHE_DIR`, none with `JAX_ENABLE_COMPILATION_CACHE=false`.

    Returns:
      The directory, None where programs are not kept.
    """
    if not jax.config.jax_enable_compilation_cache:
        return None
    if jax.config.jax_compilation_cache_dir is None:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxpt" / "compiled"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None  # a home that cannot be written: compile at every start
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_compilation_cache_max_size", CACHE_BYTES)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return Path(jax.config.jax_compilation_cache_dir)
