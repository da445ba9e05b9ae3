"""The global batches of a run are the same for any number of processes, and whether or not it was stopped on the way.

Real processes, joined by `jax.distributed` over loopback, with one CPU device each. All are forked from one that has
imported everything: importing takes longer than training.
"""

import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import zlib

import numpy as np
import pytest
import yaml

from tests import families

STEPS, BATCH = 60, 8
WORDS = ("the", "of", "and", "to", "in", "a", "is", "was")
DOCUMENTS = {"a": 40, "b": 25, "c": 12}  # several epochs of each in 60 steps


def recipe(folder):
    rng = random.Random(0)
    for name, count in DOCUMENTS.items():
        words = [rng.choices(WORDS, k=rng.randint(2, 14)) for _ in range(count)]
        (folder / f"{name}.txt").write_text("\n".join(" ".join([name, *line]) for line in words))
    tasks = [
        {"name": n, "path": str(folder / f"{n}.txt"), "rate": r, "validation_fraction": 0.2}
        for n, r in (("a", 3), ("b", 2), ("c", 1))
    ]
    tree = families.tree(
        "gpt2",
        model={"vocab_size": 300, "layers": 1, "embed_dim": 16, "heads": 2},
        objective={"join_documents": False},
        data={"mixture": tasks, "packing": True, "cache_dir": str(folder / "cache"), "length": 32, "batch_size": BATCH},
        train={"steps": STEPS, "log_every": 10, "eval_every": 30},
        log={"tensorboard": False},
    )
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return folder / "recipe.yaml"


def process(arguments, number, count, port, folder, stop_at):
    """One process of a run: trains, and writes a checksum of each row of each batch that it makes."""
    os.environ |= {"XLA_FLAGS": "", "JAXPT_COORDINATOR": f"localhost:{port}"}
    os.environ |= {"JAXPT_PROCESSES": str(count), "JAXPT_PROCESS": str(number)}
    sys.stdout = sys.stderr = open(folder / f"{number}.log", "w", buffering=1)  # noqa: SIM115
    import jax

    from jaxpt import cli
    from jaxpt.parallel import distributed

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    put, seen = distributed.put, []

    def recorded(batch, mesh, size):
        if "probe_weights" not in batch:  # validation has it
            rows = distributed.rows(mesh, size)
            sums = [zlib.crc32(b"".join(batch[k][i].tobytes() for k in sorted(batch))) for i in range(len(rows))]
            seen.append(dict(zip(rows.tolist(), sums)))
            if len(seen) == stop_at and number == count - 1:
                os.kill(os.getpid(), signal.SIGTERM)
        return put(batch, mesh, size)

    distributed.put = recorded
    try:
        code = cli.main(["--debug", "train", *arguments])
    finally:
        (folder / f"{number}.json").write_text(json.dumps(seen))
    sys.exit(code)


def train(arguments, count, folder, stop_at=None):
    """Runs `count` processes; the last of them gets a signal after `stop_at` batches. Gives the rows of each step."""
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jaxpt.train.loop", "jaxpt.data.pipeline", "jaxpt.models.gpt2"])
    workers = [context.Process(target=process, args=(arguments, n, count, port, folder, stop_at)) for n in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    codes = [worker.exitcode for worker in workers]
    logs = "\n".join((folder / f"{n}.log").read_text() for n in range(count))
    assert codes == [0 if stop_at is None else 128 + signal.SIGTERM] * count, logs
    made = [json.loads((folder / f"{n}.json").read_text()) for n in range(count)]
    steps = []
    for parts in zip(*made, strict=True):
        rows = {}
        for part in parts:
            # Processes that hold the same rows, because the tensor axis spans them, make the same ones.
            assert all(rows.get(row, value) == value for row, value in part.items())
            rows |= part
        assert len(rows) == BATCH
        steps.append(rows)
    return steps, logs


@pytest.mark.slow
def test_stopped_and_resumed_on_other_numbers_of_processes(tmp_path):
    path = str(recipe(tmp_path))
    whole, logs = train([path, f"run_dir={tmp_path / 'whole'}"], 1, tmp_path / "0")
    assert len(whole) == STEPS and "packing a/train" in logs

    arguments, done = [path, f"run_dir={tmp_path / 'run'}"], 0
    stages = ((1, []), (2, []), (4, ["mesh.data=2", "mesh.tensor=2"]), (1, None))
    for number, (count, overrides) in enumerate(stages):
        stop_at = None if overrides is None else random.Random().randint(3, 15)
        steps, logs = train([*arguments, *(overrides or [])], count, tmp_path / f"{number + 1}", stop_at)
        assert steps == whole[done : done + len(steps)], f"{count} processes from step {done}, stopped at {stop_at}"
        if stop_at is not None:
            done = max(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.isdigit())
            assert f"stopped by a signal after step {done}" in logs
    assert done + len(steps) == STEPS
    last = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    names = {"validation/loss", "validation/a/loss", "validation/b/loss", "validation/c/loss"}
    for name in names:
        np.testing.assert_allclose(last[-1][name], first[-1][name], rtol=1e-4)
