"""Kills small runs of several kinds again and again, at random moments, and compares their ends with whole runs.

    python tools/kills.py [--kills 40] [--seed 0] [--only bert,gpt2,t5,xlnet,finetuning,processes]

A chain is one run: it is started, killed with SIGKILL, resumed, killed again, until it comes to its end. Its processes
are forked from one that has imported everything and started no backend, so that a kill costs about a second. Half of
the moments are uniform over what is left of the run, the others follow a line after which a save or an evaluation is
likely. Cold starts, whose imports, records and programs are killed too, are `tools/interrupt.py`'s.

| Kind | The run |
|---|---|
| bert, gpt2, t5, xlnet | pretraining; BERT in two phases of lengths 16 and 32, XLNet with carried memories |
| finetuning | a classifier that starts from the whole run of bert |
| processes | GPT-2 on 2 processes with 2 devices each; one of them is killed, the other one has to end by itself |

Wrong are: a run that refuses to go on, one that resumes at another step than that of its newest whole checkpoint, one
process that goes on without the other, and an end that differs from the whole run's in any bit of the arrays or in a
logged loss. Prints a line for each chain, the counts, and exits with 1 where something is wrong.
"""

import argparse
import json
import multiprocessing
import os
import pydoc_data.topics
import random
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
STEPS = 40
SMOKE = ROOT / "configs/smoke"
COMMON = (
    "data.batch_size=8", "model.layers=1", f"train.steps={STEPS}", "train.eval_every=10", "train.log_every=1",
    "checkpoint.every=5", "optimizer.schedule.warmup_steps=10", "log.tensorboard=false",
)  # fmt: skip
TEXT = ("data.path={folder}/corpus.txt", "data.cache_dir={folder}/cache", "data.length=32", "train.eval_examples=64")
PHASES = f"train.phases=[{{steps: {STEPS // 2}, set: {{data.length: 16}}}}, {{set: {{data.length: 32}}}}]"
KINDS = {
    "bert": (SMOKE / "bert_tiny.yaml", (*TEXT[:2], TEXT[3], PHASES)),
    "gpt2": (SMOKE / "gpt2_tiny.yaml", TEXT),
    "t5": (SMOKE / "t5_tiny.yaml", TEXT),
    "xlnet": (SMOKE / "xlnet_tiny.yaml", (*TEXT, "model.memory_length=16", "model.reuse_length=16")),
    "finetuning": (ROOT / "configs/finetune/smoke/classify_tiny.yaml", ("init_from.path={folder}/bert",)),
    "processes": (SMOKE / "gpt2_tiny.yaml", (*TEXT, "mesh.data=4")),
}
"""{kind: (recipe, overrides)}."""
WORLD = {"processes": 2}
"""{kind: processes}, where there are several."""
MOMENTS = ("validation:", r"^step \d*[05]/")
DEADLINE = 300
"""Seconds after which a process counts as stuck."""


def train(recipe, overrides, run_dir, log, number, count, port):
    """A process of a run: `jaxpt train`, whose lines go into a file."""
    os.setsid()
    with open(log, "w", buffering=1) as lines:
        for descriptor in (1, 2):
            os.dup2(lines.fileno(), descriptor)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = sys.stdout
    if count > 1:
        place = {"COORDINATOR": f"localhost:{port}", "PROCESSES": count, "PROCESS": number}
        os.environ.update({f"JAXPT_{name}": str(value) for name, value in place.items()})
    import jax

    jax.config.update("jax_num_cpu_devices", 2 if count > 1 else 1)
    from jaxpt import cli

    code = cli.main(["train", str(recipe), f"run_dir={run_dir}", *overrides])
    sys.stdout.flush()
    os._exit(code)


class Run:
    """The processes of one start of a run."""

    def __init__(self, kind, folder, run_dir):
        from tests.processes import free_port

        recipe, overrides = KINDS[kind]
        overrides = (*COMMON, *(override.replace("{folder}", str(folder)) for override in overrides))
        count, port, context = WORLD.get(kind, 1), free_port(), multiprocessing.get_context("forkserver")
        self.logs = [Path(f"{run_dir}.{number}.log") for number in range(count)]
        self.processes = [
            context.Process(target=train, args=(recipe, overrides, run_dir, log, number, count, port))
            for number, log in enumerate(self.logs)
        ]
        for log, process in zip(self.logs, self.processes, strict=True):
            log.unlink(missing_ok=True)
            process.start()

    def said(self, number=0):
        return self.logs[number].read_text() if self.logs[number].exists() else ""

    def is_alive(self):
        return all(process.is_alive() for process in self.processes)

    def wait_for(self, pattern):
        """Returns at a line that matches, or where a process has ended."""
        while self.is_alive() and not re.search(pattern, self.said(), re.MULTILINE):
            time.sleep(0.01)

    def kill(self, rng):
        """Kills one of the processes.

        Returns:
          (its signal was in time, exit codes of the others)
        """
        victim = rng.choice(self.processes)
        in_time = victim.is_alive()
        victim.kill()
        return in_time, [self.end(process) for process in self.processes if process is not victim]

    def end(self, process):
        """The exit code of a process that ends by itself; None where it is stuck, and is killed then."""
        process.join(DEADLINE)
        if process.exitcode is None:
            process.kill()
            process.join()
            return None
        return process.exitcode

    def codes(self):
        return [self.end(process) for process in self.processes]


def newest(run_dir):
    """The step of the newest checkpoint that is whole by its name; None without one."""
    return max((int(path.name) for path in Path(run_dir).glob("checkpoints/*") if path.name.isdigit()), default=None)


def end_of(run_dir):
    """What a run came to: digests of its last state, and its losses by step, the last time that each was logged."""
    losses = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        losses |= {(row["step"], name): row[name] for name in row if "loss" in name}
    return digests(run_dir), losses


def digests(run_dir):
    """SHA-256 of each array of a run's last checkpoint; read in a process of its own, since JAX must not start here."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    reader = context.Process(target=send_digests, args=(run_dir, theirs))
    reader.start()
    found = ours.recv()
    reader.join()
    return found


def send_digests(run_dir, pipe):
    import hashlib

    import jax
    import numpy as np

    from tests.runs import final

    jax.config.update("jax_num_cpu_devices", 4)
    leaves = jax.tree.leaves(final(run_dir, STEPS))
    pipe.send([hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in leaves])


def refusal(run, codes, before):
    """Why a start of a run is wrong, "" if it is not.

    Args:
      run: the start.
      codes: exit codes of processes that nobody killed.
      before: the step of the newest checkpoint as it began.
    """
    said = run.said()
    if bad := [code for code in codes if code not in (0, 75)]:
        return f"exit codes {bad}: {said.splitlines()[-3:]}"
    resumed = re.search(r"^resuming from step (\d+)", said, re.MULTILINE)
    if resumed and int(resumed[1]) != before:
        return f"resumed at {resumed[1]}, the newest checkpoint has {before}"
    if not resumed and before is not None and re.search(r"^step \d+/", said, re.MULTILINE):
        return f"began anew beside the checkpoint of step {before}"
    return ""


def chain(kind, folder, run_dir, seconds, rng, kills):
    """One run, killed until it has come to its end or `kills` are spent.

    Returns:
      (kills, what was wrong)
    """
    done, wrong = 0, []
    while True:
        before, begun = newest(run_dir), time.monotonic()
        run = Run(kind, folder, run_dir)
        if done >= kills or before == STEPS:
            codes = run.codes()
            wrong += [problem] if (problem := refusal(run, codes, before)) else []
            wrong += [f"ended with {codes}"] if any(codes) else []
            return done, wrong
        if rng.random() < 0.5:
            time.sleep(rng.random() * seconds * (1 - 0.6 * (before or 0) / STEPS))
        else:
            run.wait_for(rng.choice(MOMENTS))
            time.sleep(rng.random() * 0.2)
        in_time, codes = run.kill(rng)
        done += in_time
        if problem := refusal(run, codes, before):
            wrong.append(f"{problem} ({time.monotonic() - begun:.1f} s after the start)")
        if in_time and 0 in codes and newest(run_dir) != STEPS:
            wrong.append(f"a process went on without the other: {codes}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="in all kinds together, at least (40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, with commas between")
    arguments = parser.parse_args()
    kinds = arguments.only.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--only: no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    rng, total, wrong = random.Random(arguments.seed), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"XDG_CACHE_HOME": f"{folder}/cache", "COLUMNS": "200", "JAX_PLATFORMS": "cpu"}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        modules = ["jaxpt.cli", "jaxpt.train.loop", "jaxpt.data.datasets", "tests.runs", "tensorflow"]
        multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
        text = " ".join("\n".join(pydoc_data.topics.topics.values()).split())
        (folder / "corpus.txt").write_text("\n".join(text[at : at + 400] for at in range(0, 200_000, 400)))
        whole = {}
        for kind in dict.fromkeys(["bert", *kinds] if "finetuning" in kinds else kinds):
            for run_dir in (folder / f"first_{kind}", folder / kind):  # the second one finds records and programs
                begun, run = time.monotonic(), Run(kind, folder, run_dir)
                if any(codes := run.codes()):
                    raise SystemExit(f"{kind}: the whole run ended with {codes}\n{run.said()}")
            whole[kind] = end_of(folder / kind), time.monotonic() - begun
            print(f"{kind:11} whole, {whole[kind][1]:5.1f} s", flush=True)
        number = 0
        while total < arguments.kills:
            kind = kinds[number % len(kinds)]
            run_dir, begun = folder / f"chain_{number}", time.monotonic()
            kills, problems = chain(kind, folder, run_dir, whole[kind][1], rng, min(8, arguments.kills - total))
            digests_equal, losses_equal = (a == b for a, b in zip(end_of(run_dir), whole[kind][0], strict=True))
            problems += [] if digests_equal else ["other arrays"]
            problems += [] if losses_equal else ["other losses"]
            total, wrong, number = total + kills, wrong + len(problems), number + 1
            print(f"{kind:11} {kills} kills, {time.monotonic() - begun:5.1f} s", flush=True)
            for problem in problems:
                print(f"WRONG {kind}: {problem}", flush=True)
    print(f"{wrong} of {total} wrong; {number} chains; seed {arguments.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
