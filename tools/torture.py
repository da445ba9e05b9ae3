"""What a run survives, counted: kills, signals, damaged and hostile files, flipped bits, full disks.

    python tools/torture.py [--minutes 10] [--seed 0] [--only kills,signals] [--results tools/torture.jsonl]

Takes parts in turn, each with a new seed, until the time is over; a part that has begun is finished. Each result is a
line of the file, which later calls go on with. Then prints for each part how many trials went wrong, over all lines of
the file for the current commit (where the code is another one, over those of this call), and the upper 95 % bound of
the share (Clopper and Pearson): of n trials without a failure it is 1 - 0.05^(1/n), about 3/n. Exits with 1 where a
trial was wrong.

    python tools/torture.py --full           the counts of a release, for days on two cores; a later call goes on
    python tools/torture.py --short          a few kills, damaged files and flips; no line is kept

| Part | A trial | Tool |
|---|---|---|
| kills | `kill -9` at a random moment of a warm run of six kinds; resumed, it ends with equal bits | tools/kills.py |
| study_kills | likewise of a study, or of the process that trains its run | tools/kill_study.py |
| cold_kills | `kill -9` in a random stage, imports and preparation included | tools/interrupt.py |
| signals | SIGINT or SIGTERM likewise, code 128 + signal; SIGUSR1 or SIGHUP, and it saves | tools/interrupt.py |
| fuzz | a damaged or hostile recipe, directory or data file | tools/fuzz.py |
| flips | a flipped, zeroed or cut piece of a file of a run, a cache or of results | tools/flips.py |
| injections | a run with a fault in a step, a replica, the data or a process; or a clean run | tools/injections.py |
| full_disk | a writer on a disk of some size | tools/full_disk.py |
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import command_line
import grids
from scipy import stats

ROOT = Path(__file__).parents[1]
PARTS = {
    "kills": (("kills.py", "--kills", "40"), r"(\d+) of (\d+) wrong"),
    "study_kills": (("kill_study.py", "--kills", "20"), r"(\d+) of (\d+) wrong"),
    "cold_kills": (("interrupt.py", "--each", "1", "--signals", "SIGKILL"), r"(\d+) signals;"),
    "signals": (("interrupt.py", "--each", "2"), r"(\d+) signals;"),
    "fuzz": (("fuzz.py", "--cases", "100", "--jobs", "2"), r"(\d+) of (\d+) wrong"),
    "flips": (("flips.py", "--flips", "200", "--jobs", "2"), r"(\d+) of (\d+) wrong"),
    "injections": (("injections.py", "--trials", "2", "--clean", "2"), r"(\d+) of (\d+) wrong"),
    "full_disk": (("full_disk.py", "--sizes", "4", "--jobs", "2"), r"(\d+) of (\d+) wrong"),
}
"""{part: (its command, the line with its counts)}."""
FULL = {
    "kills": 1000,
    "study_kills": 100,
    "cold_kills": 60,
    "signals": 1000,
    "fuzz": 10_000,
    "flips": 10_000,
    "injections": 140,
    "full_disk": 120,
}
"""{part: trials of a release}."""
SHORT = {
    "kills": ("--kills", "4", "--only", "gpt2"),
    "fuzz": ("--cases", "30", "--jobs", "2"),
    "flips": ("--flips", "20", "--jobs", "2"),
}
"""{part: arguments of the short form}."""


def counts(part, said, code):
    """(trials, wrong ones) of what a part's tool printed; one wrong trial where it did not come to its end."""
    match = re.search(PARTS[part][1], said)
    if match is None:
        return 1, 1
    if part in ("cold_kills", "signals"):  # one line for each wrong one, and an unequal end
        trials, wrong = int(match[1]), len(re.findall(r"^WRONG", said, re.MULTILINE)) + ("bit-equal: False" in said)
    else:
        wrong, trials = int(match[1]), int(match[2])
    wrong = max(wrong, int(code != 0))
    return max(trials, wrong), wrong


def upper_bound(wrong, trials):
    """The largest share of failures that so many wrong trials do not exclude, at 95 %.

    Example:
      >>> round(upper_bound(0, 300), 4)
      0.0099
    """
    return float(stats.beta.ppf(0.95, wrong + 1, trials - wrong)) if wrong < trials else 1.0


def run_part(part, seed, arguments=None):
    """Runs a part's tool once; prints what it says where a trial is wrong."""
    tool, *usual = PARTS[part][0]
    argv = [sys.executable, str(ROOT / "tools" / tool), *(arguments or usual), "--seed", str(seed)]
    begun = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    trials, wrong = counts(part, done.stdout, done.returncode)
    if wrong:
        print(f"{part}, seed {seed}:\n{done.stdout[-4000:]}{done.stderr[-2000:]}", flush=True)
    return {"part": part, "seed": seed, "trials": trials, "wrong": wrong, "seconds": round(time.monotonic() - begun, 1)}


def table(rows):
    """Lines: a part, its trials, wrong ones and bound."""
    lines = [f"{'part':11} {'trials':>7} {'wrong':>6}  at most"]
    for part in PARTS:
        trials, wrong = (sum(row[name] for row in rows if row["part"] == part) for name in ("trials", "wrong"))
        if trials:
            lines.append(f"{part:11} {trials:7} {wrong:6}  {upper_bound(wrong, trials):.2%}")
    return lines


def wanting(rows, parts):
    """The parts whose trials of a release are not done yet."""
    return [part for part in parts if sum(row["trials"] for row in rows if row["part"] == part) < FULL[part]]


def main():
    """The campaign; 1 where a trial was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="no part begins later (10)")
    parser.add_argument("--seed", type=int, default=0, help="of the first turn (0)")
    parser.add_argument(
        "--only", type=command_line.names(PARTS), default=",".join(PARTS), help="parts, with commas between"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "tools/torture.jsonl")
    parser.add_argument("--full", action="store_true", help="until each part has the counts of a release")
    parser.add_argument("--short", action="store_true", help="a few cheap trials, of which no line is kept")
    options = parser.parse_args()
    parts = options.only
    if options.short:
        if not set(parts) & set(SHORT):
            parser.error(f"--only: --short has {', '.join(SHORT)}")
        rows = [run_part(part, options.seed, arguments) for part, arguments in SHORT.items() if part in parts]
        print("\n".join(table(rows)))
        return 1 if any(row["wrong"] for row in rows) else 0
    commit = grids.revision()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    rows = [row for row in rows if row["commit"] == commit and "+" not in commit]
    done = {(row["part"], row["seed"]) for row in rows}
    end, seed = time.monotonic() + 60 * options.minutes, options.seed
    if options.full:
        end = float("inf")
    while time.monotonic() < end and (not options.full or wanting(rows, parts)):
        for part in wanting(rows, parts) if options.full else parts:
            if (part, seed) in done or time.monotonic() >= end:
                continue
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            rows.append({"commit": commit, "date": today, **run_part(part, seed)})
            with options.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        seed += 1
    print("\n".join(table(rows)))
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
