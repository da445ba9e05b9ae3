"""Real processes that are forked from one that has imported what they need, and that end as a program does.

Those of `tests.processes` are forked as well, but nothing is called at their exit.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_LAUNCH = """
import importlib, json, os, sys
modules, groups, folder = json.loads(sys.argv[1])
for module in modules:
    importlib.import_module(module)
codes = {}
for number, group in enumerate(groups):
    pids = {}
    for place, (code, words, environment) in enumerate(group):
        pids[place] = os.fork()
        if not pids[place]:
            for name, to in (("out", 1), ("err", 2)):
                os.dup2(os.open(f"{folder}/{number}-{place}.{name}", os.O_CREAT | os.O_WRONLY), to)
            os.environ.update(environment)
            sys.argv[1:] = words
            exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
            sys.exit()
    codes[number] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids.values()]
print(json.dumps(codes))
"""


class Ended(NamedTuple):
    """What is left of a process."""

    code: int
    out: str
    err: str


def run(modules, groups, folder, **environment):
    """Runs groups of processes, one group after the other.

    Args:
      modules: what is imported before.
      groups: of each process (its program, its arguments, its own environment variables).
      folder: where they write.
      **environment: variables of all of them.

    Returns:
      A list of `Ended` for each group.
    """
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **environment}
    words = [sys.executable, "-c", _LAUNCH, json.dumps([list(modules), list(groups), str(folder)])]
    done = subprocess.run(words, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    codes = json.loads(done.stdout)

    def ended(number, place, code):
        return Ended(code, *((folder / f"{number}-{place}.{name}").read_text("utf-8") for name in ("out", "err")))

    return [[ended(n, place, code) for place, code in enumerate(codes[str(n)])] for n in range(len(codes))]
