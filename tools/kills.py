"""Kills small runs of several kinds again and again, at random moments, and compares their ends with whole runs.

    python tools/kills.py [--kills 40] [--seed 0] [--only bert,gpt2,t5,xlnet,finetuning,processes]

A chain is one run: it is started, killed with SIGKILL, resumed, killed again, until it comes to its end. Its processes
are forked from one that has imported everything and started no backend, so that a kill costs few seconds. Half of the
moments are uniform over what is left of the run, the others follow a line after which a save or an evaluation is
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
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import command_line
import forked

STEPS = 40
SMOKE = forked.ROOT / "configs/smoke"
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
    "finetuning": (forked.ROOT / "configs/finetune/smoke/classify_tiny.yaml", ("init_from.path={folder}/bert",)),
    # Killed before the roll is called, one leaves the other to wait for it, by default as long as the deadline here.
    "processes": (SMOKE / "gpt2_tiny.yaml", (*TEXT, "mesh.data=4", "distributed.timeout=60")),
}
"""{kind: (recipe, overrides)}."""
WORLD = {"processes": {"count": 2, "devices": 2}}
"""{kind: its processes}, where there are several."""
MOMENTS = ("validation:", r"\bstep \d*[05]/")
MOST_KILLS = 8
"""Of a chain."""


def start(kind, folder, run_dir):
    """The processes of a start, or of a resume, of a run."""
    recipe, overrides = KINDS[kind]
    overrides = (*COMMON, *(override.replace("{folder}", str(folder)) for override in overrides))
    return forked.Run(recipe, overrides, run_dir, **WORLD.get(kind, {}))


def end_of(run_dir, steps=STEPS):
    """What a run of so many steps came to: digests of its last state, and its losses, as each was logged last."""
    losses = {}
    for row in forked.metrics(run_dir):
        losses |= {(row["step"], name): row[name] for name in row if "loss" in name}
    return forked.digests(run_dir, steps), losses


def refusal(run, codes, before):
    """Why a start of a run is wrong, "" if it is not.

    Args:
      run: the start.
      codes: exit codes of processes that nobody killed.
      before: the step of the newest checkpoint as it began.
    """
    said = run.said()
    # JAX aborts the others where one is killed outside a step (jaxpt/parallel/README.md): launchers start them again.
    retried = (0, 75, -signal.SIGABRT) if len(run.processes) > 1 else (0, 75)
    if bad := [code for code in codes if code not in retried]:
        lines = [line for log in run.logs for line in log.read_text().splitlines() if not line.startswith("    @ ")]
        return f"exit codes {bad}:\n" + "\n".join(lines[-40:])
    resumed = re.search(r"\bresuming from step (\d+)", said, re.MULTILINE)
    if resumed and int(resumed[1]) != before:
        return f"resumed at {resumed[1]}, the newest checkpoint has {before}"
    if not resumed and before is not None and re.search(r"\bstep \d+/", said, re.MULTILINE):
        return f"began anew beside the checkpoint of step {before}"
    return ""


def chain(kind, folder, run_dir, whole, seconds, rng, kills):
    """One run, killed until it has come to its end or `kills` are spent.

    Args:
      kind: a key of KINDS.
      folder: with the corpus and the whole runs.
      run_dir: of the chain.
      whole: the end of the whole run.
      seconds: what the whole run took.
      rng: of the moments.
      kills: at most.

    Returns:
      (kills, what was wrong)
    """
    done, wrong = 0, []
    while True:
        before, run = forked.newest(run_dir), start(kind, folder, run_dir)
        if done >= kills or before == STEPS:
            codes = run.codes()
            wrong += [problem] if (problem := refusal(run, codes, before)) else []
            if set(codes) == {0}:
                pairs = zip(("arrays", "losses"), end_of(run_dir), whole, strict=True)
                wrong += [f"other {what}" for what, ours, theirs in pairs if ours != theirs]
            elif not problem:
                wrong.append(f"ended with {codes}")
            return done, wrong
        if rng.random() < 0.5:
            time.sleep(rng.random() * seconds * (1 - 0.6 * (before or 0) / STEPS))
        else:
            run.wait_for(rng.choice(MOMENTS))
            time.sleep(rng.random() * 0.2)
        victim = rng.choice(run.processes)
        in_time = victim.is_alive()
        victim.kill()
        victim.join()
        codes = run.codes(but=victim)
        done += in_time
        if problem := refusal(run, codes, before):
            wrong.append(problem)
        if in_time and 0 in codes and forked.newest(run_dir) != STEPS:
            wrong.append(f"a process went on without the other: {codes}")


def main():
    """The campaign; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=command_line.count, default=40, help="in all kinds together, at least (40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", type=command_line.names(KINDS), default=",".join(KINDS), help="kinds, with commas between"
    )
    arguments = parser.parse_args()
    kinds = arguments.only
    rng, total, wrong = random.Random(arguments.seed), 0, 0
    with tempfile.TemporaryDirectory() as name:
        forked.begin(folder := Path(name))
        whole = {}
        for kind in dict.fromkeys(["bert", *kinds] if "finetuning" in kinds else kinds):
            for run_dir in (folder / f"first_{kind}", folder / kind):  # the second one finds records and programs
                begun, run = time.monotonic(), start(kind, folder, run_dir)
                if set(codes := run.codes()) != {0}:
                    raise SystemExit(f"{kind}: the whole run ended with {codes}\n{run.said()}")
            whole[kind] = end_of(folder / kind), time.monotonic() - begun
            print(f"{kind:11} whole, {whole[kind][1]:5.1f} s", flush=True)
        number = 0
        while total < arguments.kills:
            kind, run_dir, begun = kinds[number % len(kinds)], folder / f"chain_{number}", time.monotonic()
            most = min(MOST_KILLS, arguments.kills - total)
            kills, problems = chain(kind, folder, run_dir, *whole[kind], rng, most)
            total, wrong, number = total + kills, wrong + len(problems), number + 1
            print(f"{kind:11} {kills} kills, {time.monotonic() - begun:5.1f} s", flush=True)
            for problem in problems:
                print(f"WRONG {kind}: {problem}", flush=True)
    print(f"{wrong} of {total} wrong; {number} chains; seed {arguments.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
