"""A run on two processes that one of them is told to stop goes on from there: on as many with the same bits, on other
numbers of processes and devices with the same global batches. One that loses processes for good goes on with fewer.

Real processes, joined by `jax.distributed` over loopback.
"""

import json
import os
import random
import shutil
import signal
import zlib

import jax
import numpy as np
import pytest
import yaml

from jaxpt.runtime import exit_codes
from tests import families, grids
from tests.processes import run
from tests.runs import assert_bit_equal, final

pytestmark = pytest.mark.slow
STEPS, BATCH = 16, 8
WORDS = ("the", "of", "and", "to", "in", "a", "is", "was")
DOCUMENTS = {"a": 24, "b": 16, "c": 12}  # several epochs of each in 16 steps


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
        train={"steps": STEPS, "log_every": 10, "eval_every": STEPS},
        log={"tensorboard": False},
    )
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return folder / "recipe.yaml"


def process(number, arguments, folder, stop_at, stops):
    """One process of a run: trains, writes a checksum of each row of each batch that it makes, and what it hashed."""
    from jaxpt import cli
    from jaxpt.parallel import distributed
    from jaxpt.runtime import signals
    from jaxpt.train import checksums

    host = folder.parent / f"host{number}"  # a path that is not absolute is another one on each "host"
    host.mkdir(exist_ok=True)
    os.chdir(host)
    put, digest, seen, hashed = distributed.put, checksums.digest, [], []

    def recorded(batch, mesh, size):
        if "eval_mask" not in batch:  # validation has it
            rows = distributed.rows(mesh, size)
            sums = [zlib.crc32(b"".join(batch[k][i].tobytes() for k in sorted(batch))) for i in range(len(rows))]
            seen.append(dict(zip(rows.tolist(), sums)))
            if len(seen) == stop_at and number in stops:
                os.kill(os.getpid(), stops[number])
        return put(batch, mesh, size)

    distributed.put = recorded
    checksums.digest = lambda path: hashed.append(str(path)) or digest(path)

    def note(_):
        (folder / f"{number}.json").write_text(json.dumps([seen, hashed]))

    signals.start()
    with signals.on_leave(note):
        code = cli.main([*([] if signal.SIGKILL in stops.values() else ["--debug"]), "train", *arguments])
    note(code)
    return code


def train(arguments, count, devices, folder, stop_at=None, code=0, stops=None):
    """Runs `count` processes; some get signals after `stop_at` batches: `stops` is {number: signal}.

    Returns:
      (the rows of each step, what each process hashed, what they said).
    """
    stops = stops or {}
    codes, logs = run(process, count, devices, folder, arguments, folder, stop_at, stops)
    killed = [number for number, sent in stops.items() if sent == signal.SIGKILL]
    assert codes == [-signal.SIGKILL if number in killed else code for number in range(count)], logs
    if killed:
        return [], [], logs
    made, hashed = zip(*[json.loads((folder / f"{n}.json").read_text()) for n in range(count)])
    steps = []
    for parts in zip(*made, strict=True):
        rows = {}
        for part in parts:
            # Processes that hold the same rows, because the tensor axis spans them, make the same ones.
            assert all(rows.get(row, value) == value for row, value in part.items())
            rows |= part
        assert len(rows) == BATCH
        steps.append(rows)
    return steps, hashed, logs


def saved(run_dir):
    """Steps of a run's checkpoints."""
    return sorted(int(path.name) for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit())


STOPPED = {"code": 128 + signal.SIGTERM, "stops": {1: signal.SIGTERM}}  # not the first process
PROCESSES, DEVICES = 2, 4
MESH = ["mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"]
ONE_DEVICE = ["mesh.data=1", "mesh.fsdp=1", "mesh.tensor=1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, recipe, rows of each step) of a run on 2 processes × 4 devices that nothing stopped: FOLDER/whole."""
    folder = tmp_path_factory.mktemp("elastic")
    path = str(recipe(folder))
    steps, _, logs = train([path, *MESH, f"run_dir={folder / 'whole'}"], PROCESSES, DEVICES, folder / "0")
    assert len(steps) == STEPS and "packing a/train" in logs
    return folder, path, steps


@pytest.fixture(scope="module")
def stopped(whole):
    """The step after which the same run ended in FOLDER/stopped, because one process was told to."""
    folder, path, wanted = whole
    stop_at = random.Random().randint(3, STEPS - 4)
    arguments = [path, *MESH, f"run_dir={folder / 'stopped'}"]
    steps, hashed, logs = train(arguments, PROCESSES, DEVICES, folder / "1", stop_at, **STOPPED)
    assert steps == wanted[: len(steps)], f"stopped at {stop_at}"
    (done,) = saved(folder / "stopped")
    assert f"stopped by a signal after step {done}, saved" in logs
    for number, files in enumerate(hashed):
        parts = [int(part[-1]) for file in files for part in file.split("/") if part.startswith("ocdbt.process_")]
        assert parts and set(parts) == {number}, "each process hashes what it has written"
    return done


def go_on(whole, done, name, count, devices, *overrides):
    """Goes on from the stopped run, in a copy of it; → where."""
    folder, path, wanted = whole
    shutil.copytree(folder / "stopped", folder / name)
    steps, _, logs = train([path, *overrides, f"run_dir={folder / name}"], count, devices, folder / f"{name}.logs")
    assert f"resuming from step {done}" in logs
    assert steps == wanted[done:], f"stopped after step {done}"
    return folder / name


def test_as_many_processes_end_with_the_same_bits(whole, stopped):
    folder, _, _ = whole
    run_dirs = folder / "whole", go_on(whole, stopped, "again", PROCESSES, DEVICES, *MESH)
    assert all(saved(run_dir)[-1] == STEPS for run_dir in run_dirs)
    assert_bit_equal(*(final(run_dir, STEPS, jax.devices()[:1], ONE_DEVICE) for run_dir in run_dirs))


@pytest.mark.parametrize(("count", "devices"), grids.cases([(1, 1), (4, 1)], (4, 1)))
def test_other_numbers_of_processes_see_the_same_batches(whole, stopped, count, devices):
    run_dir = go_on(whole, stopped, f"{count}x{devices}", count, devices)
    first, last = end_of(whole[0] / "whole"), end_of(run_dir)
    for name in ("validation/loss", "validation/a/loss", "validation/b/loss", "validation/c/loss"):
        np.testing.assert_allclose(last[name], first[name], rtol=1e-4)


def test_a_lost_host_gets_its_part_of_the_newest_state_from_the_other(whole):
    """A host that is killed and comes back empty: the run goes on from a step that the other host alone kept."""
    folder, path, wanted = whole
    run_dir = folder / "hosts"
    arguments = [path, *MESH, f"run_dir={run_dir}", "checkpoint.local_dir=fast", "checkpoint.local_every=2"]
    _, _, logs = train(
        arguments, PROCESSES, DEVICES, folder / "h.0", stop_at=11, code=exit_codes.RETRY, stops={1: signal.SIGKILL}
    )
    assert saved(run_dir) == [] and (folder / "host1/fast").is_dir(), logs
    shutil.rmtree(folder / "host1")
    steps, _, logs = train(arguments, PROCESSES, DEVICES, folder / "h.1")
    done = STEPS - len(steps)
    assert 2 <= done <= 10 and done % 2 == 0 and f"resuming from step {done} of {STEPS}: checkpoint.local_dir" in logs
    assert steps == wanted[done:]
    assert_bit_equal(*(final(place, STEPS, jax.devices()[:1], ONE_DEVICE) for place in (folder / "whole", run_dir)))
    assert not [*folder.glob("host*/fast/*/*")]  # of a finished run nothing is left


def test_two_processes_of_four_are_lost_for_good(whole):
    """Two are killed; the other two wait for them, go on alone with the same batches, and later with all four."""
    folder, path, wanted = whole
    run_dir = folder / "lost"
    arguments = [path, "mesh.data=4", f"run_dir={run_dir}", "checkpoint.every=2", "distributed.min_processes=2"]
    killed = dict.fromkeys((2, 3), signal.SIGKILL)
    _, _, logs = train(arguments, 4, 1, folder / "lost.4", stop_at=9, code=exit_codes.RETRY, stops=killed)
    assert "re-run the same command in all processes to resume" in logs
    done = saved(run_dir)[-1]
    assert 2 <= done <= 8

    left = [*arguments, "distributed.processes=4", "distributed.timeout=20"]
    steps, _, logs = train(left, 2, 1, folder / "lost.2")
    assert "of 4 processes 2 go on (distributed.min_processes): 0, 1; some did not come in time" in logs
    assert steps == wanted[done:]
    np.testing.assert_allclose(
        end_of(run_dir)["validation/loss"], end_of(folder / "whole")["validation/loss"], rtol=1e-4
    )
    assert json.loads((run_dir / "run.json").read_text())["environment"]["processes"] == 2

    steps, _, _ = train([*arguments, f"train.steps={STEPS + 2}"], 4, 1, folder / "lost.again")
    assert len(steps) == 2
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    counts = {record["step"]: record["phase/processes"] for record in records if "phase/processes" in record}
    assert counts == {0: 4, done: 2, STEPS: 4}


def end_of(run_dir):
    """The last figures of a run."""
    return json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
