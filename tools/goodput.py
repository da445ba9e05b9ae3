"""A run of some minutes with kills and stalls: where its wall time went, by its own account and by the clock.

    python tools/goodput.py [--minutes 30] [--kills 5] [--stalls 2] [--seed 0]

The run is GPT-2's smoke recipe with a save every half minute. At random moments it is killed with SIGKILL, or stalls:
in turn a batch of data that takes longer than `train.stall_seconds`, after which the process ends itself with code 75,
and SIGSTOP for as long. Whenever it ends it is started again, and at last stopped by SIGTERM. Prints a line for each
start, then the parts of `run.json` beside the wall time; exits with 1 where they do not sum to it within 1 %.
"""

import argparse
import functools
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import forked
from injections import RECIPE, SLOW_SECONDS

OVERRIDES = (
    "data.path={folder}/corpus.txt", "data.cache_dir={folder}/cache", "log.tensorboard=false", "train.steps=1000000",
    "train.eval_every=1000", "train.eval_examples=64", "train.log_every=10", 
    "optimizer.schedule={kind: constant, warmup_steps: 20}",
    "checkpoint.every=100000", "checkpoint.every_minutes=0.5", "train.stall_seconds=20", "train.stall_exit=true",
)  # fmt: skip
KILL, DATA, STOP = "SIGKILL", "slow data", "SIGSTOP"


def stalled_by(file):
    """Has the next batch of this process's run wait once the file is there; called before the run."""
    from jaxpt.train import resources

    fetch = resources.InputWait.next

    def wait(self, *arguments):
        if file.exists():
            file.unlink()
            time.sleep(SLOW_SECONDS)
        return fetch(self, *arguments)

    resources.InputWait.next = wait


def one_start(folder, run_dir, events, end):
    """One process of the run, until it ends by itself, by a kill or at the end.

    Args:
      folder: with the corpus.
      run_dir: of the run.
      events: (moment, kind), those to come, in order; those that happen are dropped.
      end: when the run is stopped.

    Returns:
      Its exit code.
    """
    stall = folder / "stall"
    overrides = [override.replace("{folder}", str(folder)) for override in OVERRIDES]
    run = forked.Run(RECIPE, overrides, run_dir, prepare=functools.partial(stalled_by, stall))
    (process,) = run.processes
    while process.is_alive() and time.monotonic() < end:
        time.sleep(0.05)
        if not events or time.monotonic() < events[0][0]:
            continue
        kind = events.pop(0)[1]
        if kind == DATA:
            stall.touch()
            continue
        os.kill(process.pid, getattr(signal, kind))
        if kind == STOP:
            time.sleep(SLOW_SECONDS)
            os.kill(process.pid, signal.SIGCONT)
    if process.is_alive():
        process.terminate()
    (code,) = run.codes()
    if code == 2:
        raise SystemExit(run.said())
    return code


def main():
    """The run; 1 where its parts do not sum to the wall time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--stalls", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    kinds = [KILL] * arguments.kills + [(DATA, STOP)[number % 2] for number in range(arguments.stalls)]
    rng.shuffle(kinds)
    with tempfile.TemporaryDirectory() as name:
        forked.begin(folder := Path(name), "jaxpt.train.programs")
        first = forked.CONTEXT.Process(target=int)  # the first one waits for the imports
        first.start()
        first.join()
        run_dir, begun = folder / "run", time.monotonic()
        end = begun + 60 * arguments.minutes
        moments = sorted(begun + 60 * arguments.minutes * (0.05 + 0.85 * rng.random()) for _ in kinds)
        events = list(zip(moments, kinds, strict=True))
        print("\n".join(f"{moment - begun:6.0f} s  {kind}" for moment, kind in events), "\n", flush=True)
        while time.monotonic() < end:
            code = one_start(folder, run_dir, events, end)
            print(f"{time.monotonic() - begun:6.0f} s  exit {code:4}  step {forked.newest(run_dir)}", flush=True)
        wall = time.monotonic() - begun
        spent = json.loads((run_dir / "run.json").read_text())["time"]
    total = sum(spent["seconds"].values())
    for activity, seconds in spent["seconds"].items():
        print(f"{activity:11} {seconds:8.1f} s  {seconds / wall:6.1%}")
    print(
        f"{'sum':11} {total:8.1f} s  {total / wall:6.1%} of the wall time {wall:.1f} s; goodput {spent['goodput']:.1%}"
    )
    return 0 if abs(total - wall) <= 0.01 * wall else 1


if __name__ == "__main__":
    sys.exit(main())
