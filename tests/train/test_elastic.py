"""The global batches of a run are the same for any number of processes, and whether or not it was stopped on the way.

Real processes, joined by `jax.distributed` over loopback.
"""

import json
import os
import random
import signal
import zlib

import numpy as np
import pytest
import yaml

from tests import families
from tests.processes import run

STEPS, BATCH = 28, 8
WORDS = ("the", "of", "and", "to", "in", "a", "is", "was")
DOCUMENTS = {"a": 40, "b": 25, "c": 12}  # several epochs of each in 28 steps


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
        train={"steps": STEPS, "log_every": 10, "eval_every": 14},
        log={"tensorboard": False},
    )
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return folder / "recipe.yaml"


def process(number, arguments, count, folder, stop_at):
    """One process of a run: trains, and writes a checksum of each row of each batch that it makes."""
    from jaxpt import cli
    from jaxpt.parallel import distributed

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
        return cli.main(["--debug", "train", *arguments])
    finally:
        (folder / f"{number}.json").write_text(json.dumps(seen))


def train(arguments, count, folder, stop_at=None, devices=1):
    """Runs `count` processes; the last of them gets a signal after `stop_at` batches. Gives the rows of each step."""
    codes, logs = run(process, count, devices, folder, arguments, count, folder, stop_at)
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
    # Processes and devices of each.
    stages = (
        (2, 1, []), (4, 2, ["mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"]), (1, 1, []), (2, 4, None),
    )  # fmt: skip
    for number, (count, devices, overrides) in enumerate(stages):
        stop_at = None if overrides is None else random.Random().randint(3, 8)
        steps, logs = train([*arguments, *(overrides or [])], count, tmp_path / f"{number + 1}", stop_at, devices)
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
