"""The programs that a phase of a run calls on its devices, compiled before the first step."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxpt.config import batch_text
from jaxpt.errors import UserError
from jaxpt.train import compiled, flops, step
from jaxpt.train.display import number
from jaxpt.train.state import Setup


class Programs(NamedTuple):
    """Compiled, and the size of a step."""

    train: Any
    """(state, batch) → (state, figures)"""
    check: Any
    """state → (whether each of its arrays is finite, its digest)"""
    flops: float
    """Floating-point operations of a step."""
    digest: str | None
    """Of the machine code of `train.compiled`."""
    trace_seconds: float
    """What tracing the step took."""
    compile_seconds: float
    """What compiling it, or loading it, took."""
    lines: list[str]
    """What a step takes, and whose code it is, for the user."""


def start(setup: Setup, phase: int) -> Callable[[], Programs]:
    """Calls `build` in another thread, for XLA compiles without Python's lock: the caller makes state and data beside.

    Args:
      setup: of the phase.
      phase: its number, from 0.

    Returns:
      A function that waits for the programs, and raises what `build` raised.
    """
    future: futures.Future[Programs] = futures.Future()

    def work() -> None:
        try:
            future.set_result(build(setup, phase))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="jaxpt-compile").start()
    return future.result


def build(setup: Setup, phase: int) -> Programs:
    """Compiles the programs of a phase, or loads its step where `train.compiled` says so.

    All of them before the first step: compiled when it is first called, a program would keep a signal waiting while the
    state is not saved.

    Args:
      setup: of the phase.
      phase: its number, from 0.

    Returns:
      The programs.
    """
    config, objective = setup.config, setup.config.objective
    begun, saved, digest, lines = time.perf_counter(), config.train.compiled, None, []
    traced_at = begun
    if saved is None:
        lowered = step.traced(setup, objective).lower()
        traced_at = time.perf_counter()
        train_step = _compiled(lowered)
    else:
        train_step = compiled.load(setup, Path(saved), phase)
        digest, line = compiled.origin(Path(saved), phase)
        lines.append(line)
    compiled_at = time.perf_counter()
    placed = setup.placed_shapes()
    with setup.use():
        batch = step.batch_shapes(setup, objective)
        of_step = flops.step_flops(setup, batch)
    passes = "forward × 3" if len(setup.trained) == len(jax.tree.leaves(placed.params)) else "forward and backward"
    passes += "" if config.model.family == "encoder" else ", attention as masked"
    memory = train_step.memory_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes if memory else 0
    lines.append(
        f"step of {batch_text(config)} "
        f"{'compiled' if saved is None else f'loaded from {saved}'} in {compiled_at - begun:.1f} s: "
        f"{number(of_step)}FLOP ({passes}), {used / 1e6:.0f} MB a device"
    )
    if getattr(config.model, "score_cap", None) and setup.mesh.devices.flat[0].platform == "gpu":
        lines.append("model.score_cap: no attention kernel for GPUs has a cap of scores; XLA computes it")
    with setup.use():
        check = step.make_state_check(setup).lower(placed)
    _ = setup.to_model  # compiled now: evaluations need it
    times = traced_at - begun, compiled_at - traced_at
    return Programs(train_step, check.compile(), of_step, digest, *times, lines)


def _compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if match := re.search(r"No such compile option: '(\w+)'", str(error)):
            raise UserError(
                f"train.compiler_options: {match[1]} is no option of the compiler that is installed"
            ) from None
        raise
