"""Kills a small study again and again, at random moments, and compares its end with that of a whole one.

    python tools/kill_study.py [--kills 20] [--seed 0]

The study pretrains a BERT and a GPT-2, then fine-tunes each. Half of the kills take the study itself, whose processes
have to end with it; the others take the process that trains: the study goes on with what does not need it, and the next
start does it again. A study that comes to its end is begun anew.

Wrong are: an exit code of the study that is neither 0 nor 75, a last start that does not end with 0, and arrays of a
run, its logged losses or a figure of the table that differ from the whole study's in any bit. Prints a line for each
start, the counts, and exits with 1 where something is wrong.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import command_line
import forked
import kills
import psutil
import yaml

STEPS = 20
STUCK = 3600
"""Seconds after which a study counts as stuck."""
PRETRAINING = {
    "data.path": "{folder}/corpus.txt", "data.cache_dir": "{folder}/cache", "data.length": 32, "data.batch_size": 8,
    "model.layers": 1, "train.phases": [], "train.steps": STEPS, "train.eval_every": 10, "train.log_every": 1,
    "train.eval_examples": 64, "checkpoint.every": 5, "optimizer.schedule.warmup_steps": 5, "log.tensorboard": False,
}  # fmt: skip
FINETUNING = {
    "data.cache_dir": "{folder}/cache", "data.train_rows": 200, "train.steps": STEPS, "train.eval_every": 10,
    "train.log_every": 1, "checkpoint.every": 5, "optimizer.schedule.warmup_steps": 5, "log.tensorboard": False,
}  # fmt: skip
NOT_COMPARED = ("wall_seconds", "train_seconds", "run_dir", "recipe")
"""Figures of the table that a clock or a place gave."""


def write_study(folder):
    """Writes `study.yaml`; returns its path."""
    study = {
        "question": "Does it come to the same end?",
        "set": PRETRAINING,
        "rows": [{"name": name, "recipe": str(kills.SMOKE / f"{name}_tiny.yaml")} for name in ("bert", "gpt2")],
        "evaluate": {"finetune": {
            "seeds": [0], "starts": ["pretrained"], "set": FINETUNING,
            "tasks": [{"name": "modules", "recipe": str(forked.ROOT / "configs/finetune/smoke/classify_tiny.yaml")}],
        }},
    }  # fmt: skip
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study).replace("{folder}", str(folder)))
    return path


def start(path, directory, log):
    """The process of a study; its lines go into a file."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "jaxpt", "study", str(path), f"run_dir={directory}"]
    with log.open("w") as lines:
        return subprocess.Popen(command, stdout=lines, stderr=subprocess.STDOUT, env=environment, cwd=directory.parent)


def kill_one(study, rng):
    """Kills the study, or the process that trains; returns which one."""
    trainers = psutil.Process(study.pid).children()
    if trainers and rng.random() < 0.5:
        os.kill(rng.choice(trainers).pid, signal.SIGKILL)
        return "trainer"
    study.kill()
    return "study"


def end_of(directory):
    """{run: digests of its last state and its losses by step}, and the rows of the table."""
    run_dirs = [path.parent for path in directory.rglob("metrics.jsonl")]
    runs = {str(run_dir.relative_to(directory)): kills.end_of(run_dir, STEPS) for run_dir in run_dirs}
    rows = json.loads((directory / "table.json").read_text())["rows"]
    return runs, [{name: row[name] for name in row if name not in NOT_COMPARED} for row in rows]


def differences(ours, theirs):
    """Names of the runs and rows of a study that are not what they are in the whole one."""
    runs = [name for name in {*ours[0], *theirs[0]} if ours[0].get(name) != theirs[0].get(name)]
    rows = [f"row {ours['name']}" for ours, theirs in zip(ours[1], theirs[1], strict=True) if ours != theirs]
    return sorted(runs) + rows


def last_lines(log):
    """What a process said at last."""
    return "\n".join(log.read_text().splitlines()[-12:])


def main():
    """The campaign; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=command_line.count, default=20, help="at least (20)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, total, wrong, studies = random.Random(arguments.seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        forked.begin(folder := Path(name))
        path, log = write_study(folder), folder / "log"
        for directory in (folder / "first", folder / "whole"):  # the second one finds records and programs
            begun = time.monotonic()
            if (code := forked.ended(start(path, directory, log), STUCK)) != 0:
                raise SystemExit(f"the whole study ended with {code}\n{last_lines(log)}")
        seconds, whole = time.monotonic() - begun, end_of(folder / "whole")
        print(f"whole: {seconds:.0f} s, {len(whole[0])} runs", flush=True)
        while total < arguments.kills:
            directory, problems, killed = folder / f"study_{studies}", [], 0
            while True:
                begun, study, victim = time.monotonic(), start(path, directory, log), None
                if total + killed < arguments.kills:
                    try:
                        study.wait(rng.random() * seconds * 0.7)
                    except subprocess.TimeoutExpired:
                        victim = kill_one(study, rng)
                        killed += 1
                        print(f"{victim} killed after {time.monotonic() - begun:.1f} s", flush=True)
                code = forked.ended(study, STUCK)
                if code not in (0, 75, -signal.SIGKILL) or re.search("^Traceback", log.read_text(), re.MULTILINE):
                    problems.append(f"exit code {code}:\n{last_lines(log)}")
                if code in (0, None) or (code > 0 and victim is None):
                    break
            if code != 0:
                problems.append(f"ended with {code}:\n{last_lines(log)}")
            elif different := differences(end_of(directory), whole):
                problems.append(f"other ends: {different}")
            total, wrong, studies = total + killed, wrong + len(problems), studies + 1
            for problem in problems:
                print(f"WRONG {problem}", flush=True)
    print(f"{wrong} of {total} wrong; {studies} studies; seed {arguments.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
