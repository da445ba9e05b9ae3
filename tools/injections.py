"""Injects faults into small runs, and looks whether each is found, named and mended; and that clean runs say nothing.

    python tools/injections.py [--trials 2] [--clean 2] [--seed 0] [--only nan,spike,rewind,...]

All runs are of one recipe, GPT-2 on two devices, with the same intervals; the step of a fault is random.

| Kind | The fault | It has to be said | Then |
|---|---|---|---|
| nan | a loss that is not a number, in one step | an update was skipped | the run ends |
| spike | loss and gradient × 20, in one step | a spike, and the way back | the run ends |
| rewind | a spike likewise, and SIGKILL while the run goes back | at the next start, as of a spike | the run ends |
| replica | a random bit of a random weight, on one device | both devices, within 200 steps; exit code 75 | it resumes |
| slow_data | a batch takes longer than `train.stall_seconds` | that it is data; exit code 75 | it resumes |
| stopped | SIGSTOP of one of two processes | the other names it; exit code 75 | it resumes |
| lost | SIGKILL of one of two processes | the other names it; exit code 75 | it resumes |

An update can round the lowest bits of a weight away, after which nothing is wrong any more: where that comes before the
check does, another bit is drawn. A clean run has 2,000 steps, with a change of phase, and says none of these lines. The
validation losses of mended runs at their end are printed beside those of clean runs at the same step, of as many seeds.
Exits with 1 where a fault was not found or not mended, or where there was an alarm.
"""

import argparse
import functools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import command_line
import forked

STEPS, CLEAN_STEPS = 240, 2000
RECIPE = forked.ROOT / "configs/smoke/gpt2_tiny.yaml"
OVERRIDES = (
    "data.path={folder}/corpus.txt", "data.cache_dir={folder}/cache", "data.batch_size=8", "data.length=32",
    "model.layers=1", "mesh.data=2", "log.tensorboard=false", f"train.eval_every={STEPS}", "train.eval_examples=128",
    "train.log_every=10", "checkpoint.every=50", "optimizer.schedule={kind: constant, warmup_steps: 20}",
    "train.on_spike=rewind", "train.stall_seconds=20", "train.stall_exit=true",
)  # fmt: skip
SLOW_SECONDS = 30
HEALED = "replicas agree again in every bit at step"
FOUND = {
    "nan": r"step \d+: 1 update\(s\) skipped, the loss or its gradient was not finite",
    "spike": r"step {at}: a spike: [^\n]*its update is left out[^\n]*\n[^\n]*going back to step \d+",
    "rewind": r"step {at}: a spike: [^\n]*its update is left out[^\n]*\n[^\n]*going back to step \d+",
    "replica": r"process 0, device 1 \(cpu\): its replica differs from the others in params/",
    "slow_data": r"process 0: a batch of data after step \d+ has taken",
    "stopped": r"process 0: a [^\n]* has taken [^\n]*; process 1 gives no sign of life",
    "lost": r"process 1 (is gone|gives no sign of life)",  # the latter where the other one waits in a save
}
"""{kind: what the run, or its process 0, has to say}."""
CODES = {"nan": 0, "spike": 0, "rewind": -signal.SIGKILL, "replica": 75, "slow_data": 75, "stopped": 75, "lost": 75}
"""{kind: exit code of the run that met the fault}."""
ALARMS = r"a spike|not finite|differ|has taken|usually|warning|lost"
FIRST = {"nan": 2, "spike": 30, "rewind": 30, "replica": 1, "slow_data": 2, "stopped": 2, "lost": 2}
"""{kind: the earliest step of a fault}; a spike before has no scale, and nothing is saved to go back to."""


def inject(kind, at):
    """Has the steps of this process meet a fault, once; called before the run in its process."""
    from jaxpt.objectives.causal_lm import CausalLM
    from jaxpt.train import loop, programs, resources, step

    if kind == "rewind":
        go_back = loop.Run._rewind

        def killed(self, *arguments):
            threading.Timer(random.Random(at).random() * 0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return go_back(self, *arguments)

        loop.Run._rewind = killed
    if kind == "slow_data":
        fetch, calls = resources.InputWait.next, []

        def slow(self, *arguments):
            calls.append(at)
            if len(calls) == at:
                time.sleep(SLOW_SECONDS)
            return fetch(self, *arguments)

        resources.InputWait.next = slow
        return
    build, loss, done = programs.build, CausalLM.loss_from_hidden, []

    def odd_loss(self, *arguments):
        sums, figures = loss(self, *arguments)
        factor = float("nan") if kind == "nan" else 20.0
        return {name: factor * total for name, total in sums.items()}, figures

    def spoiled_build(setup, phase):
        made = build(setup, phase)
        if kind in ("nan", "spike", "rewind"):
            CausalLM.loss_from_hidden = odd_loss
            odd = step.traced(setup, setup.config.objective).lower().compile()
            CausalLM.loss_from_hidden = loss

        def spoiled(current, *rest):
            if int(current.step) + 1 != at or done:
                new, figures = made.train(current, *rest)
                if kind == "replica" and done == [at] and agree(new.params):
                    print(f"{HEALED} {int(new.step)}", flush=True)
                    done.append("healed")
                return new, figures
            done.append(at)
            if kind in ("nan", "spike", "rewind"):
                return odd(current, *rest)
            new, figures = made.train(current, *rest)
            return flipped(new, setup.mesh.devices.flat[1], at), figures

        return made._replace(train=spoiled)

    programs.build = spoiled_build


def flipped(current, device, seed):
    """The state with a random bit of a random weight changed in what one device holds of it."""
    import jax
    import numpy as np

    leaves, tree = jax.tree.flatten(current.params)
    rng = np.random.default_rng(seed)
    sizes = np.array([leaf.size for leaf in leaves])
    at = rng.choice(len(leaves), p=sizes / sizes.sum())
    place, bit = rng.integers(leaves[at].size), np.uint32(1) << np.uint32(rng.integers(32))
    pieces = []
    for shard in leaves[at].addressable_shards:
        local = np.array(shard.data)
        if shard.device == device:
            local.view(np.uint32).flat[place] ^= bit
        pieces.append(jax.device_put(local, shard.device))
    leaves[at] = jax.make_array_from_single_device_arrays(leaves[at].shape, leaves[at].sharding, pieces)
    return current.replace(params=jax.tree.unflatten(tree, leaves))


def agree(params):
    """Whether the replicas of all weights are equal in every bit."""
    import jax
    import numpy as np

    copies = [
        [np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards] for leaf in jax.tree.leaves(params)
    ]
    return all(copy == first for first, *others in copies for copy in others)


def start(folder, run_dir, kind, at, *overrides):
    """A run; `at`: the step of its fault, None for one without."""
    overrides = (*(override.replace("{folder}", str(folder)) for override in OVERRIDES), *overrides)
    count = 2 if kind in ("stopped", "lost") else 1
    hook = None if at is None or count == 2 else functools.partial(inject, kind, at)
    return forked.Run(RECIPE, overrides, run_dir, count, 2 // count, hook)


def trial(kind, folder, run_dir, seed, at):
    """What was wrong with a run that met a fault, "" if nothing was."""
    overrides = (f"train.steps={STEPS}", f"seed={seed}")
    run = start(folder, run_dir, kind, at, *overrides)
    if len(run.processes) == 1:
        codes = run.codes()
    else:
        run.wait_for(rf"\bstep {at - at % 10 or 1}/")
        victim = run.processes[1]
        os.kill(victim.pid, signal.SIGSTOP if kind == "stopped" else signal.SIGKILL)
        codes = run.codes(but=victim)
        victim.kill()
        victim.join()
    said = run.said()
    if kind == "replica" and (healed := re.search(rf"^{HEALED} (\d+)", said, re.MULTILINE)):
        print(f"replica: the bit of step {at} was rounded away at step {healed[1]}; another one is drawn", flush=True)
        shutil.rmtree(run_dir)
        return trial(kind, folder, run_dir, seed + 1, at + 1)
    if codes != [CODES[kind]]:
        return f"exit codes {codes}, should be {CODES[kind]}: {said.splitlines()[-3:]}"
    if not re.search(FOUND[kind].replace("{at}", str(at)), said):
        return f"not named: {said.splitlines()[-3:]}"
    if kind == "replica" and not at <= (found := int(re.search(r"step (\d+): process 0, device", said)[1])) < at + 200:
        return f"a bit of step {at} was found at {found}"
    if kind == "rewind":  # the batch that makes the spike comes again
        return trial("spike", folder, run_dir, seed, at)
    if codes != [0] and set(codes := start(folder, run_dir, kind, None, *overrides).codes()) != {0}:
        return f"resumed, it ended with {codes}"
    return ""


def validation(run_dir, step):
    """The validation loss at a step."""
    (*_, loss) = [
        row["validation/loss"] for row in forked.metrics(run_dir) if row["step"] == step and "validation/loss" in row
    ]
    return loss


def alarms(folder, run_dir, seed):
    """Lines of a clean run that a fault would have caused, and its exit code where it is not 0."""
    phases = f"train.phases=[{{steps: {CLEAN_STEPS // 2}}}, {{set: {{data.length: 16}}}}]"
    run = start(folder, run_dir, "clean", None, f"train.steps={CLEAN_STEPS}", f"seed={seed}", phases)
    codes = run.codes()
    return [line for line in run.said().splitlines() if re.search(ALARMS, line)] + [code for code in codes if code != 0]


def report(kind, begun, result):
    """Prints a line for a run."""
    print(f"{kind:10} {time.monotonic() - begun:6.1f} s  {result}", flush=True)


def main():
    """The campaign; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2, help="of each fault (2)")
    parser.add_argument("--clean", type=int, default=2, help="clean runs (2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", type=command_line.names(FOUND), default=",".join(FOUND), help="kinds of faults, with commas between"
    )
    arguments = parser.parse_args()
    kinds = arguments.only
    rng, wrong, done, losses = random.Random(arguments.seed), 0, 0, {}
    with tempfile.TemporaryDirectory() as name:
        forked.begin(folder := Path(name), "jaxpt.train.programs")
        for number in range(max(arguments.trials, arguments.clean)):
            seed = arguments.seed * 1000 + number
            if number < arguments.clean:
                begun, lines = time.monotonic(), alarms(folder, run_dir := folder / f"clean_{number}", seed)
                done, wrong = done + 1, wrong + bool(lines)
                if not lines:
                    losses.setdefault("clean", []).append(validation(run_dir, STEPS))
                report("clean", begun, f"WRONG {lines[:3]}" if lines else "no alarm")
            for kind in kinds if number < arguments.trials else ():
                at, begun = rng.randrange(FIRST[kind] + 55, STEPS - 20), time.monotonic()
                problem = trial(kind, folder, run_dir := folder / f"{kind}_{number}", seed, at)
                done, wrong = done + 1, wrong + bool(problem)
                if not problem:
                    losses.setdefault(kind, []).append(validation(run_dir, STEPS))
                report(kind, begun, f"step {at}: {'WRONG ' + problem if problem else 'found and mended'}")
    for kind, found in losses.items():
        print(f"{kind:10} validation loss at step {STEPS}: {min(found):.3f} to {max(found):.3f}")
    print(f"{wrong} of {done} wrong; seed {arguments.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
