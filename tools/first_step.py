"""Time from the command to the first step with empty caches, of several checkouts in turn.

    python tools/first_step.py RECIPE.yaml --tree new=. --tree old=../old [--repeats 3] data.path=TEXT.jsonl.gz …

Each start is a process with a cache and a compilation cache of its own, which are removed afterwards; it is stopped
after one step. The table has medians: seconds of wall time, seconds of CPU of the process and its children, and where
the wall time went (`jaxpt train --timings`).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil


def cpu_seconds(process):
    """CPU of a process and of all that it has started."""
    times = [each.cpu_times() for each in [process, *process.children(recursive=True)]]
    return sum(time.user + time.system for time in times) + sum(process.cpu_times()[2:4])


def start(tree, recipe, overrides):
    """{part: seconds} of one start, and of it all "wall" and "CPU"."""
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {
            "PYTHONPATH": str(tree),
            "XDG_CACHE_HOME": f"{directory}/cache",
            "JAX_COMPILATION_CACHE_DIR": f"{directory}/programs",
        }
        # -P: PYTHONPATH selects the tree, wherever this is started; relative paths are the caller's.
        command = [sys.executable, "-P", "-m", "jaxpt", "train", str(recipe), "--timings", f"run_dir={directory}/run"]
        process = psutil.Popen(
            [*command, *overrides], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "beside the data:" in line:  # the last line of the table
                cpu = cpu_seconds(process)
                process.terminate()
                break
        process.communicate()
        output = "".join(lines)
        if "end of the first step" not in output:
            raise SystemExit(f"{tree}: exit code {process.returncode}\n{output}")
    parts = re.findall(r"^.*?([\d.]+) s  (\S.+)$", output[output.index("end of the first step") :], re.MULTILINE)
    total = re.search(r"end of the first step: ([\d.]+) s", output).group(1)
    return {"from the command to the end of the first step": float(total), "CPU of all processes": cpu} | {
        part: float(seconds) for seconds, part in parts
    }


def checkout(text):
    """An argument's type: NAME=DIRECTORY, as (name, absolute path)."""
    name, _, directory = text.partition("=")
    if not name or not directory or not Path(directory, "jaxpt").is_dir():
        raise argparse.ArgumentTypeError(f"wants NAME=DIRECTORY of a checkout, got {text!r}")
    return name, Path(directory).resolve()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "--tree", type=checkout, action="append", required=True, metavar="NAME=DIRECTORY", help="a checkout"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="key=value, as `jaxpt train` takes them")
    arguments = parser.parse_intermixed_args()
    trees = dict(arguments.tree)
    starts = {name: [] for name in trees}
    for _ in range(arguments.repeats):
        for name, directory in trees.items():
            starts[name].append(start(directory, arguments.recipe, arguments.overrides))
    parts = dict.fromkeys(part for of_tree in starts.values() for times in of_tree for part in times)
    print(f"{'seconds, medians of ' + str(arguments.repeats):56}" + "".join(f"{name:>10}" for name in trees))
    for part in parts:
        medians = [statistics.median(times.get(part, 0.0) for times in of_tree) for of_tree in starts.values()]
        print(f"{part:56}" + "".join(f"{seconds:10.1f}" for seconds in medians))


if __name__ == "__main__":
    main()
