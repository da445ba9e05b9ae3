"""Real processes, all forked from one that has imported what they need: importing takes longer than what they do.

`run` joins some by `jax.distributed` over loopback, each with CPU devices of its own.
"""

import multiprocessing.context
import os
import re
import socket
import sys
import traceback

PRELOADED = [
    "pytest", "jaxpt.train.loop", "jaxpt.data.datasets", "jaxpt.models.gpt2", "tests.families", "tests.garbage",
]  # fmt: skip


class _Process(multiprocessing.context.ForkServerProcess):
    """Has the environment of its parent, not that of the first test which started the server."""

    def start(self):
        self.environment = dict(os.environ)
        super().start()

    def run(self):
        os.environ.clear()
        os.environ.update(self.environment)
        super().run()


class _Context(multiprocessing.context.ForkServerContext):
    Process = _Process


def forked():
    """The context of processes that are forked from one that has imported jaxpt, and run nothing yet."""
    context = _Context()
    context.set_forkserver_preload(PRELOADED)
    return context


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def run(target, count, devices, folder, *arguments):
    """Calls `target(number, *arguments)` in each of `count` processes; each writes into folder/NUMBER.log.

    The target joins the others itself (`processes.start`): the environment says who they are.

    Returns:
      (exit codes, what they wrote).
    """
    folder.mkdir()
    port, context = free_port(), forked()
    workers = [
        context.Process(target=_enter, args=(target, number, count, devices, port, folder, arguments))
        for number in range(count)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
        worker.kill()  # one that hangs
    return [worker.exitcode for worker in workers], "\n".join((folder / f"{n}.log").read_text() for n in range(count))


def _enter(target, number, count, devices, port, folder, arguments):
    # The tests' own flags compile in a fraction of the time; the number of devices is said below.
    os.environ["XLA_FLAGS"] = re.sub(r"\S*device_count=\S*", "", os.environ["XLA_FLAGS"])
    os.environ["JAXPT_COORDINATOR"] = f"localhost:{port}"
    os.environ |= {"JAXPT_PROCESSES": str(count), "JAXPT_PROCESS": str(number)}
    sys.stdout = sys.stderr = open(folder / f"{number}.log", "w", buffering=1)  # noqa: SIM115
    for descriptor in (1, 2):  # the last words of a process that is ended at once
        os.dup2(sys.stdout.fileno(), descriptor)
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    try:
        code = target(number, *arguments)
    except Exception:
        traceback.print_exc()
        code = 1
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()  # waits for the others; here nothing is called at a process's exit
    sys.exit(code or 0)
