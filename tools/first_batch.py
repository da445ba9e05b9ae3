"""How long a training process waits for its first batch, its data being cached.

    python tools/first_batch.py RECIPE.yaml [key=value ...]

Prepares what is missing, then times a process of its own: imports, opening the data, the first batch, and one that lies
ten million steps ahead. Seconds on the clock, and of the processor in brackets.
"""

import argparse
import subprocess
import sys
import time

STEP = 10_000_000


class Clock:
    """Says how long each thing took."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def said(self, what: str) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        print(f"{what:32} {wall - self._wall:7.2f} s ({cpu - self._cpu:.2f})", flush=True)
        self._wall, self._cpu = time.perf_counter(), time.process_time()


def opened(arguments: list[str]) -> None:
    clock = Clock()
    from jaxpt.config import load
    from jaxpt.data import datasets
    from jaxpt.train import loop  # noqa: F401

    clock.said("imports")
    data = datasets.prepare(load(arguments[0], arguments[1:]), save=False)
    clock.said("opening the data")
    next(data.train.batches())
    clock.said("first batch")
    next(data.train.batches(STEP))
    clock.said(f"batch of step {STEP:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", metavar="RECIPE.yaml")
    parser.add_argument("overrides", metavar="key=value", nargs="*")
    parser.add_argument("--opened", action="store_true", help=argparse.SUPPRESS)  # the process that is timed
    given = parser.parse_args()
    words = [given.recipe, *given.overrides]
    if given.opened:
        opened(words)
    else:
        for command in (["-m", "jaxpt", "cache"], [__file__, "--opened"]):
            if code := subprocess.run([sys.executable, *command, *words], check=False).returncode:
                sys.exit(code)  # it has said why
