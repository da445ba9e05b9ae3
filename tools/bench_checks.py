"""What the checks of a run cost: steps with `train.on_spike: rewind` beside `keep`, and digests of replicas.

    python tools/bench_checks.py [RECIPE] [key=value …] [--devices 2] [--pairs 30]

Both programs have the same weights and the same random batch, and take turns in one process, a step each, in changing
order. The cost of the step's check is the median of the pairs' differences; a digest of all replicas is timed by itself
and divided by `train.check_replicas_every`. Where other programs run, the quartiles are far apart. FLOPs and bytes:
`jaxpt plan` of the recipe with both values.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import command_line
import jax

from jaxpt import config as configs
from jaxpt.runtime import process
from jaxpt.train import corruption, state, step

sys.path.insert(0, str(Path(__file__).parent / "bench"))
from cases import random_batch

RECIPE = Path(__file__).parents[1] / "configs/pretrain/gpt2_124m.yaml"
SMALL = ("data.batch_size=4", "data.length=256", "train.grad_accum_steps=1", "mesh={data: -1, fsdp: 1}")
"""What fits a CPU."""


class Side:
    """A program of the step with its own state."""

    def __init__(self, recipe, overrides):
        self.setup = state.setup(config := configs.load(recipe, overrides))
        shapes = step.batch_shapes(self.setup, config.objective)
        self._update = step.traced(self.setup, config.objective).lower().compile()
        self.batch = step.put(random_batch(shapes, config.model.vocab_size), self.setup)
        self.state = self.setup.init()

    def step(self):
        """The seconds of a step."""
        begun = time.perf_counter()
        self.state, metrics = self._update(self.state, self.batch)
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - begun


def digest_seconds(side, rounds):
    """The seconds of comparing the replicas, once for each round."""
    with side.setup.use():
        digests = corruption.make_local_digests(side.setup).lower(side.setup.placed_shapes()).compile()
    seconds = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        jax.device_get(digests(side.state))
        seconds.append(time.perf_counter() - begun)
    return seconds[1:]


@command_line.one_line()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="RECIPE | key=value")
    parser.add_argument("--devices", type=command_line.count, default=2, help="of a CPU; replicas (2)")
    parser.add_argument("--pairs", type=command_line.count, default=30, help="(30)")
    arguments = parser.parse_args()
    if jax.config.jax_platforms == "cpu":
        jax.config.update("jax_num_cpu_devices", arguments.devices)
    process.keep_freed_memory()  # as `jaxpt train`
    recipe = next((word for word in arguments.words if "=" not in word), str(RECIPE))
    overrides = [*SMALL, *(word for word in arguments.words if "=" in word)]
    sides = {name: Side(recipe, [*overrides, f"train.on_spike={name}"]) for name in ("keep", "rewind")}
    for side in sides.values():
        side.step()
    differences, steps = [], []
    for number in range(arguments.pairs):
        order = list(sides) if number % 2 else list(sides)[::-1]
        seconds = {name: sides[name].step() for name in order}
        steps.append(seconds["keep"])
        differences.append(seconds["rewind"] - seconds["keep"])
    typical = statistics.median(steps)
    low, median, high = statistics.quantiles(differences, n=4)
    every = sides["keep"].setup.config.train.check_replicas_every
    digest = statistics.median(digest_seconds(sides["rewind"], 5))
    devices, parameters = jax.devices(), sides["keep"].setup.network.count_params()
    print(f"{len(devices)} × {devices[0].device_kind}, {parameters:,} parameters; a step {typical:.3f} s")
    print(f"on_spike=rewind {median / typical:+.2%} (quartiles {low / typical:+.2%}, {high / typical:+.2%})")
    print(f"replicas compared in {digest:.3f} s, every {every} steps: {digest / every / typical:.2%} of a step")


if __name__ == "__main__":
    main()
