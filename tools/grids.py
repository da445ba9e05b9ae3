"""Runs the large grids of tests, and says when each last ran, on which commit.

    python tools/grids.py                            the grids, their cases, their last run
    python tools/grids.py run [WORD ...] [--seed N]  those whose name has one of the words; all without words

A grid is a test of which the suite has only a few cases; the others have the marker `grid` (`tests/grids.py`). Random
cases depend on the seed. Exits with 1 where a case fails, and with 2 where there is none to run.

The cases of a grid are run 25 at a time, in a process each, since what they compile stays in memory. A line for each
such piece is appended to `tools/grids.jsonl`: a call that was stopped goes on after the last one, on the same commit
without changes.
"""

import argparse
import collections
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tools" / "grids.jsonl"
PIECE = 25
"""Cases of a process."""


def collected(seed: int) -> dict[str, list[str]]:
    """{a test: its cases that only a grid has}; those of random grids have the seed in their names."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", "grid"]
    environment = os.environ | {"JAXPT_GRID_SEED": str(seed)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):
        errors = re.findall(r"^ERROR (.+)", done.stdout, re.MULTILINE) or (done.stdout + done.stderr).splitlines()[-1:]
        _refuse(f"pytest could not collect the tests, exit code {done.returncode}: {'; '.join(errors)}")
    grids = collections.defaultdict(list)
    for line in done.stdout.splitlines():
        if "::" in line:
            grids[line.partition("[")[0]].append(line)
    return dict(grids)


def _refuse(message: str) -> NoReturn:
    print(f"grids.py: {message}", file=sys.stderr)
    sys.exit(2)


def results() -> list[dict]:
    """The lines of the results."""
    return [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()] if RESULTS.exists() else []


def last_runs() -> dict[str, dict]:
    """{a test: its last run}, whose pieces are one; `to` is the case after its last one."""
    runs: dict[str, dict] = {}
    for row in results():
        last = runs.get(row["grid"])
        if last is None or not row.get("from") or any(last[key] != row[key] for key in ("commit", "seed")):
            runs[row["grid"]] = row
            continue
        counts = {word: last.get(word, 0) + row.get(word, 0) for word in ("passed", "failed", "skipped", "error")}
        ended = {"exit": last.get("exit") or row.get("exit", 0)}
        runs[row["grid"]] = last | row | ended | {word: count for word, count in counts.items() if count}
    return runs


def run(grid: str, cases: list[str], seed: int, begin: int) -> dict:
    """Runs the cases of a grid from `begin` on, at most a piece of them, and gives the line of the results."""
    with tempfile.TemporaryDirectory() as directory:
        costs = Path(directory, "costs.jsonl")
        environment = os.environ | {"JAXPT_GRID_SEED": str(seed), "JAXPT_TEST_COSTS": str(costs)}
        chosen = cases[begin : begin + PIECE]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-rfE", "-m", "grid", *chosen]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        rows = [json.loads(line) for line in costs.read_text("utf-8").splitlines()] if costs.exists() else []
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    return {
        "grid": grid,
        "date": datetime.date.today().isoformat(),
        "commit": revision(),
        "seed": seed,
        "from": begin,
        "to": begin + len(chosen),
        **counts,
        "exit": done.returncode,
        "cpu_seconds": round(sum(row["cpu"] for row in rows)),
        "python": platform.python_version(),
    }


def revision() -> str:
    """The commit, with a "+" where the code or the tests are others; "+" outside of git."""
    code = ("jaxpt", "tests", "tools", ":(exclude)tools/*.jsonl")
    head, changed = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--", *code))
    )
    return head.stdout.strip() + ("+" if head.returncode or changed.stdout else "")


def show(grids: dict[str, list[str]]) -> None:
    last = last_runs()
    for grid, cases in sorted(grids.items()):
        ran = last.get(grid)
        when = "never ran" if ran is None else f"{ran['date']} on {ran['commit']}, {ran.get('passed', 0)} passed"
        failed = ran.get("failed", 0) + ran.get("error", 0) if ran else 0
        when += f", {failed} FAILED" if failed else f", FAILED with {ran['exit']}" if ran and ran.get("exit") else ""
        when += f", stopped after {ran['to']}" if ran and ran.get("to", len(cases)) < len(cases) else ""
        print(f"{len(cases):4} cases  {grid}: {when}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    running = commands.add_parser("run")
    running.add_argument("words", nargs="*")
    running.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.command is None:
        show(collected(0))
        return 0
    grids = collected(options.seed)
    chosen = [grid for grid in sorted(grids) if not options.words or any(word in grid for word in options.words)]
    if not chosen:
        _refuse(f"no grid has {' or '.join(options.words)} in its name; tools/grids.py lists them")
    failed = False
    last, commit = last_runs(), revision()
    for grid in chosen:
        ran = last.get(grid, {})
        is_under_way = (ran.get("commit"), ran.get("seed")) == (commit, options.seed)
        begin = ran.get("to", 0) if is_under_way and "+" not in commit and ran.get("to", 0) < len(grids[grid]) else 0
        for number in range(begin, len(grids[grid]), PIECE):
            row = run(grid, grids[grid], options.seed, number)
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
            failed |= bool(row["exit"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
