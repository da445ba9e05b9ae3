"""Compilation with the options of the device in use, and the compilation cache."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxpt.errors import UserError
from jaxpt.parallel import compiler_options
from jaxpt.runtime import disk

# On a CPU a computation ends before the next one is begun: set here, since JAX reads it when it first meets the CPU.
# One that is queued has its temporaries already, and `jaxpt.runtime.allocator` keeps what was taken: with twelve steps
# queued a small GPT-2 took 4.3 GiB, of which it uses 2.2. The queue brings a CPU nothing, whose cores do the host's
# work too.
jax.config.update("jax_cpu_enable_async_dispatch", False)


def platform() -> str:
    """Where what is traced now will run: "cpu", "gpu" or "tpu".

    That is the platform of the mesh in use, whose devices need not be here (`jaxpt plan --topology`); without a mesh it
    is that of JAX's default device.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def device_kind() -> str:
    """What kind of device that is, as JAX names it, such as "TPU v5 lite"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind


_DETERMINISTIC = contextvars.ContextVar("deterministic", default=False)


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """What is traced and compiled within gives the same bits in each run on GPUs too: `train.deterministic`."""
    token = _DETERMINISTIC.set(wanted)
    try:
        yield
    finally:
        _DETERMINISTIC.reset(token)


def is_deterministic() -> bool:
    """Whether `deterministic` is in force, on a GPU: CPUs and TPUs need nothing for it."""
    return _DETERMINISTIC.get() and platform() == "gpu"


def options(changes: Sequence[str] = ()) -> dict[str, str | bool | int]:
    """Compiler options for the devices in use: all versions of XLA that jaxpt supports know them, another refuses them.

    Training, plans and saved steps take them from here alike.

    Args:
      changes: `train.compiler_options`: "name=value" adds one or replaces its value, "!name" leaves it to XLA.

    Returns:
      What `jax.jit(compiler_options=…)` takes.

    Example:
      >>> options(["!xla_cpu_experimental_ynn_fusion_type", "xla_embed_ir_in_executable=true"])
      {'xla_embed_ir_in_executable': True}
    """
    flags = dict(compiler_options.of_device(platform(), device_kind()))
    if is_deterministic():
        flags |= compiler_options.DETERMINISTIC
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
        try:
            directory = disk.cache_home() / "jaxpt" / "compiled"
            directory.mkdir(parents=True, exist_ok=True)
        except (OSError, UserError):
            return None  # no home, or a home that cannot be written: compile at every start
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_compilation_cache_max_size", CACHE_BYTES)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return Path(jax.config.jax_compilation_cache_dir)
