"""Small runs in processes that are forked from one that has imported everything and started no backend.

For `tools/kills.py` and `tools/injections.py`. Exit codes are None for a process that was stuck, which is a failure.
"""

import json
import multiprocessing
import os
import pydoc_data.topics
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
DEADLINE = 300
"""Seconds after which a process counts as stuck."""
CONTEXT = multiprocessing.get_context("forkserver")


def begin(folder, *preload):
    """Writes a corpus into a folder, where caches will be too; what is forked from now on has imported `preload`."""
    os.environ |= {"XDG_CACHE_HOME": f"{folder}/cache", "COLUMNS": "200", "JAX_PLATFORMS": "cpu"}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    modules = ["jaxpt.cli", "jaxpt.train.loop", "jaxpt.data.datasets", "tests.runs", "tensorflow", *preload]
    CONTEXT.set_forkserver_preload(modules)
    write_corpus(folder, 200_000)


def write_corpus(folder, size):
    """Writes `corpus.txt`: so many characters of Python's help, 400 a line."""
    text = " ".join("\n".join(pydoc_data.topics.topics.values()).split())
    lines = [text[at : at + 400] for at in range(0, size, 400)]
    (folder / "corpus.txt").write_text("\n".join(lines))


def train(arguments, log, place, devices, prepare):
    """A process of a run: `jaxpt train`, whose lines go into a file.

    Args:
      arguments: of `jaxpt train`.
      log: the file.
      place: variables of the environment that say which process it is.
      devices: of its own.
      prepare: is called before; None: nothing is.
    """
    os.setsid()
    with open(log, "w", buffering=1) as lines:
        for descriptor in (1, 2):
            os.dup2(lines.fileno(), descriptor)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.update(place)
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    from jaxpt import cli

    if prepare is not None:
        prepare()
    code = cli.main(["train", *arguments])
    sys.stdout.flush()
    os._exit(code)


class Run:
    """The processes of one start of a run."""

    def __init__(self, recipe, overrides, run_dir, count=1, devices=1, prepare=None):
        """Starts `count` processes with so many devices each."""
        from tests.processes import free_port

        port = free_port()
        self.logs = [Path(f"{run_dir}.{number}.log") for number in range(count)]
        self.processes = []
        for number, log in enumerate(self.logs):
            place = {"COORDINATOR": f"localhost:{port}", "PROCESSES": str(count), "PROCESS": str(number)}
            place = {f"JAXPT_{name}": text for name, text in place.items()} if count > 1 else {}
            arguments = (str(recipe), f"run_dir={run_dir}", *overrides)
            log.unlink(missing_ok=True)
            self.processes.append(CONTEXT.Process(target=train, args=(arguments, log, place, devices, prepare)))
            self.processes[-1].start()

    def said(self, number=0):
        """The lines of a process."""
        return self.logs[number].read_text() if self.logs[number].exists() else ""

    def is_alive(self):
        """True while all processes live."""
        return all(process.is_alive() for process in self.processes)

    def wait_for(self, pattern):
        """Returns at a line that matches, or where a process has ended, or at the deadline."""
        end = time.monotonic() + DEADLINE
        while self.is_alive() and time.monotonic() < end and not re.search(pattern, self.said(), re.MULTILINE):
            time.sleep(0.01)

    def codes(self, but=None):
        """The exit codes of processes that end by themselves, but one; None for one that is stuck, and is killed."""
        return [self._end(process) for process in self.processes if process is not but]

    def _end(self, process):
        process.join(DEADLINE)
        if process.exitcode is None:
            process.kill()
            process.join()
            return None
        return process.exitcode


def ended(process, seconds=DEADLINE):
    """The exit code of a `subprocess.Popen`; None if it is stuck, and is killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def newest(run_dir):
    """The step of the newest checkpoint that is whole by its name; None without one."""
    return max((int(path.name) for path in Path(run_dir).glob("checkpoints/*") if path.name.isdigit()), default=None)


def metrics(run_dir):
    """Rows of the run's metrics, as they were written."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def digests(run_dir, step):
    """The SHA-256 of each array of a checkpoint, read in a process of its own: JAX must not start in this one."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    reader = CONTEXT.Process(target=_send_digests, args=(run_dir, step, theirs))
    reader.start()
    theirs.close()
    found = ours.recv()
    reader.join()
    return found


def _send_digests(run_dir, step, pipe):
    import hashlib

    import jax
    import numpy as np

    from tests.runs import final

    jax.config.update("jax_num_cpu_devices", 4)  # as many as a run has at most
    leaves = jax.tree.leaves(final(run_dir, step))
    pipe.send([hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in leaves])
