"""What is said where a run does not fit in memory: what to lower, with the values of the run."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import sys
from collections.abc import Iterator

import jax

from jaxpt.config import AXES, Config
from jaxpt.errors import UserError
from jaxpt.parallel import rules

_MEMORY = re.compile(r"out of memory|allocat|memory space|bad_alloc", re.IGNORECASE)


@contextlib.contextmanager
def explained(config: Config) -> Iterator[None]:
    """Within it an allocation that fails, while compiling or running, on the devices or the host, is a user's error.

    Args:
      config: of the phase that runs.

    Raises:
      UserError: instead of the exception of XLA, NumPy or Python.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        of_host = isinstance(error, MemoryError)
        raise UserError(advice(config, str(error), jax.device_count(), of_host)) from error


def is_out_of_memory(error: Exception) -> bool:
    """True for an allocation that failed; XLA has the same status for a full disk or too large a message.

    Example:
      >>> is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."))
      True
      >>> is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Received message larger than max"))
      False
    """
    text = str(error)
    exhausted = "RESOURCE_EXHAUSTED" in text or "bad_alloc" in text
    return isinstance(error, MemoryError) or (exhausted and _MEMORY.search(text) is not None)


def advice(config: Config, words: str, devices: int, of_host: bool = False) -> str:
    """The line: first what changes no result, then what does.

    Args:
      config: of the phase that ran.
      words: of the exception; its first line is quoted.
      devices: of the mesh.
      of_host: True if Python or NumPy found no memory: then only smaller batches help.

    Returns:
      The line.
    """
    sizes = [getattr(config.mesh, axis) for axis in AXES]
    rest = devices // math.prod(size for size in sizes if size != -1)
    mesh = dict(zip(AXES, (rest if size == -1 else size for size in sizes)))
    steps, batch = config.train.grad_accum_steps, config.data.batch_size
    rows = batch / (math.prod(mesh[axis] for axis in rules.BATCH) * steps)
    lower = []
    if rows > 1 and not of_host:
        lower.append(f"raise train.grad_accum_steps={steps} (a device has {rows:g} of {batch} rows at a time)")
    if config.model.remat != "full" and not of_host:
        lower.append(f"set model.remat=full (is {config.model.remat})")
    if mesh["fsdp"] < devices and not of_host:
        lower.append(f"raise mesh.fsdp={mesh['fsdp']} (of {devices} devices)")
    lower.append(f"lower data.batch_size={batch} or data.length={config.data.length}")
    first = words.strip().splitlines()[0][:200].rstrip(".") if words.strip() else "MemoryError"
    plan = "" if of_host else f"; {_plan(config)}"
    return f"out of memory{' on the host' if of_host else ''} ({first}): {', '.join(lower)}{plan}"


def _plan(config: Config) -> str:
    """The command that helps: a search needs the name of a TPU slice, or of GPUs."""
    recipe = shlex.join(sys.argv[2:]) if sys.argv[1:2] == ["train"] else "RECIPE"
    if config.plan.topology is None and jax.default_backend() == "cpu":
        return f"`jaxpt plan {recipe}` shows what takes the memory"
    devices = "" if config.plan.topology and jax.default_backend() != "gpu" else " --topology DEVICES"
    return f"`jaxpt plan {recipe}{devices} --search` looks for settings that fit"
