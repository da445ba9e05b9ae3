"""Compilation with the options of the device in use, and the compilation cache.

Each option says what it gives and how that was measured. A recipe adds options and leaves these out with
`train.compiler_options`. None of them changes what a program computes: they move data in another way, or guard its
numbers.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxpt.errors import UserError
from jaxpt.runtime import disk

Options = dict[str, str | bool | int]

CPU: Options = {
    # jaxlib 0.10 hands parts of a program to a library (YNN) whose results can be wrong: sums, and what is fused with
    # them (of a vmap over gradients of a cross-entropy after a norm: off by half,
    # tests/parallel/test_compiler.py), and products with a broadcast operand (tests/decode/test_likelihood.py). It
    # is slow too (2 cores, with and without it): [32, 4, 128, 128] → [4, 128, 128], the gradient of T5's position bias,
    # 10 against 0.3 ms; attention over 16 × 128 tokens with 12 heads, 53 against 16 ms.
    "xla_cpu_experimental_ynn_fusion_type": "",
}

# Compiled with them by libtpu 0.0.52: v5e and v5p; not yet tried: v4, v6e, tpu7x.
TPU: Options = {
    # A product with a gathered operand becomes a ring: a permute and a product for each device's piece, of 64 columns
    # where 1,024 are sharded 16 ways; every turn reads and writes the sum of all of them. Above this size of an operand
    # (MiB) alone; here never. T5 1.1 large on v5e:4x4, fsdp 16, 8 rows a chip: 19,176 permutes, 57 GiB of traffic,
    # a least time of 157 ms with rings; without them 50 GiB, 126 ms. The all-gathers left overlap with products.
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": 100_000,
}

# For `train.deterministic`. No scatter or reduction adds in the order in which threads come, and no kernel is chosen by
# a measurement, which comes out otherwise in another run.
DETERMINISTIC: Options = {"xla_gpu_deterministic_ops": True}

# On a CPU a computation ends before the next one is begun: set here, since JAX reads it when it first meets the CPU.
# One that is queued has its temporaries already, and `jaxpt.runtime.process` keeps what was taken: with twelve steps
# queued a small GPT-2 took 4.3 GiB, of which it uses 2.2. The queue brings a CPU nothing, whose cores do the host's
# work too.
jax.config.update("jax_cpu_enable_async_dispatch", False)


def platform() -> str:
    """The platform for which JAX traces now: "cpu", "gpu" or "tpu".

    It is that of the mesh in use, whose devices need not be present (`jaxpt plan --topology`). Without a mesh it is
    that of JAX's default device.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def device_kind() -> str:
    """JAX's name for the devices of `platform`, such as "TPU v5 lite"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind


_DETERMINISTIC = contextvars.ContextVar("deterministic", default=False)


@contextlib.contextmanager
def deterministic(is_on: bool) -> Iterator[None]:
    """Programs traced and compiled within it give the same bits in each run, on GPUs too (`train.deterministic`)."""
    token = _DETERMINISTIC.set(is_on)
    try:
        yield
    finally:
        _DETERMINISTIC.reset(token)


def is_deterministic() -> bool:
    """True within `deterministic` on a GPU: CPUs and TPUs need nothing for it."""
    return _DETERMINISTIC.get() and platform() == "gpu"


def options(changes: Sequence[str] = ()) -> Options:
    """Compiler options for the devices in use. A version of XLA that does not know one refuses it.

    Training, plans and saved steps all take them from here.

    Args:
      changes: `train.compiler_options`: "name=value" adds one or replaces its value, "!name" leaves it to XLA.

    Returns:
      What `jax.jit(compiler_options=…)` takes.

    Example:
      >>> options(["!xla_cpu_experimental_ynn_fusion_type", "xla_embed_ir_in_executable=true"])
      {'xla_embed_ir_in_executable': True}
    """
    flags = dict({"cpu": CPU, "tpu": TPU}.get(platform(), {}))
    if is_deterministic():
        flags |= DETERMINISTIC
    for change in changes:
        name, equals, value = change.removeprefix("!").partition("=")
        if equals:
            flags[name] = _value(value)
        else:
            flags.pop(name, None)
    return flags


def _value(text: str) -> str | bool | int:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def jit(fun: Callable[..., Any], *, changes: Sequence[str] = (), **kwargs: Any) -> Any:
    """`jax.jit` with the options of the devices in use; the result cannot be called inside another `jax.jit`.

    Args:
      fun: the function.
      changes: as for `options`.
      **kwargs: as for `jax.jit`.

    Returns:
      The jitted function.
    """
    return jax.jit(fun, compiler_options=options(changes), **kwargs)


CACHE_BYTES = 4 << 30
"""Maximum size of the cache: beyond it, the programs that were not used for longest are deleted."""


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
        try:
            directory = disk.cache_home() / "jaxpt" / "compiled"
            directory.mkdir(parents=True, exist_ok=True)
        except (OSError, UserError):
            return None  # no home, or a home that cannot be written: compile at every start
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_compilation_cache_max_size", CACHE_BYTES)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return Path(jax.config.jax_compilation_cache_dir)
