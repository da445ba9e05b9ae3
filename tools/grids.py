"""Runs the large grids of tests, and says when each last ran, on which commit.

    python tools/grids.py                            the grids, their cases, their last run
    python tools/grids.py run [WORD ...] [--seed N]  those whose name has one of the words; all without words

A grid is a test of which the suite has only a few cases; the others have the marker `grid` (`tests/grids.py`). Random
cases depend on the seed. A line for each grid is appended to `tools/grids.jsonl`. Exits with 1 where a case fails.
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

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tools" / "grids.jsonl"


def collected() -> dict[str, list[str]]:
    """{a test: its cases that only a grid has}"""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", "grid"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    grids = collections.defaultdict(list)
    for line in output.splitlines():
        if "::" in line:
            grids[line.partition("[")[0]].append(line)
    return dict(grids)


def last_runs() -> dict[str, dict]:
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.exists() else []
    return {row["grid"]: row for row in map(json.loads, lines)}


def run(grid: str, seed: int) -> dict:
    """Runs a grid's cases, and gives its line of the results."""
    with tempfile.TemporaryDirectory() as directory:
        costs = Path(directory, "costs.jsonl")
        environment = os.environ | {"JAXPT_GRID_SEED": str(seed), "JAXPT_TEST_COSTS": str(costs)}
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-rfE", "-m", "grid", grid]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        rows = [json.loads(line) for line in costs.read_text("utf-8").splitlines()] if costs.exists() else []
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    return {
        "grid": grid,
        "date": datetime.date.today().isoformat(),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "jaxpt") else ""),
        "seed": seed,
        **counts,
        "exit": done.returncode,
        "cpu_seconds": round(sum(row["cpu"] for row in rows)),
        "python": platform.python_version(),
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def show(grids: dict[str, list[str]]) -> None:
    last = last_runs()
    for grid, cases in sorted(grids.items()):
        ran = last.get(grid)
        when = "never ran" if ran is None else f"{ran['date']} on {ran['commit']}, {ran.get('passed', 0)} passed"
        failed = f", {ran['failed']} FAILED" if ran and ran.get("failed") else ""
        print(f"{len(cases):4} cases  {grid}: {when}{failed}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    running = commands.add_parser("run")
    running.add_argument("words", nargs="*")
    running.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    grids = collected()
    if options.command is None:
        show(grids)
        return 0
    chosen = [grid for grid in sorted(grids) if not options.words or any(word in grid for word in options.words)]
    failed = False
    for grid in chosen:
        row = run(grid, options.seed)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        failed |= bool(row["exit"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
