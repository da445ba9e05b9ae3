"""Peak memory of a step as `jaxpt plan` predicts it, and as it is when the step runs on this machine's CPU.

Command: python tools/plan_memory.py CONFIG [key=value …]

Prints both in MiB and their ratio. PlanResult is the peak of the process's resident memory while three steps run, less
what it holds without any array: after twice as many have run, whose state is gone again. The first steps leave some 20
to 45 MiB behind that are no arrays: threads, scratch of the libraries for products, code that is paged in.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import command_line
import jax
import jax.numpy as jnp

from jaxpt.config import Config, at_phase, load
from jaxpt.plan import program
from jaxpt.train import state, step


@command_line.one_line()
def main(path: str, *overrides: str) -> None:
    config = load(path, overrides)
    predicted = program.measure(config, program.Target()).total
    actual = measured(at_phase(config, 0))
    print(f"predicted {predicted / 2**20:.1f} MiB, measured {actual / 2**20:.1f} MiB, ratio {predicted / actual:.3f}")


def measured(config: Config) -> int:
    """Bytes that three steps take at their peak."""
    setup = state.setup(config)
    compiled = step.traced(setup, config.objective).lower().compile()
    shapes = setup.placed_shapes(), step.batch_shapes(setup, config.objective)
    fill = jax.jit(lambda: jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)).lower().compile()

    def run(steps: int) -> None:
        current, batch = fill()
        for _ in range(steps):
            current, figures = compiled(current, batch)
        jax.block_until_ready((current, figures))

    for _ in range(2):
        run(3)  # after one step alone the next three still took 5 to 30 MiB more, and kept them
    jax.clear_caches()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    run(3)
    return resident("VmHWM") - before


def resident(name: str) -> int:
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("overrides", metavar="key=value", nargs="*")
    arguments = parser.parse_args()
    main(arguments.config, *arguments.overrides)
