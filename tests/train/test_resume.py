"""A run that is stopped and started again ends with the same bits as one that is not.

The recipe is small but has it all: several epochs, a change of phase, accumulation, an average of the parameters. Real
processes are stopped by real signals after a random step.
"""

import json
import os
import random
import signal
import sys
import time

import numpy as np
import pytest
import yaml

from jaxpt import config as configs
from jaxpt.train import checkpoint, state
from tests import families
from tests.processes import forked

STEPS = 50
# 30 documents make so few records that an epoch ends every few steps.
WORDS = ("the", "of", "and", "to", "in", "a", "is", "was", "for", "on", "with", "as", "by", "at", "from", "that", "it")


def recipe(tmp_path, family):
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(20, 60))) for _ in range(30)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n")
    size = 300 if family == "gpt2" else 160  # byte-level BPE has all 256 bytes
    sections = {
        "model": {"vocab_size": size, "dropout": 0.1},
        "data": {
            "path": str(tmp_path / "corpus.txt"), "cache_dir": str(tmp_path / "cache"), "validation_fraction": 0.1,
            "length": 16, "batch_size": 8, "tokenizer": {"kind": families.TOKENIZERS[family], "vocab_size": size},
        },
        "optimizer": {"ema_decay": 0.9, "clip_norm": 1.0},
        "train": {
            "steps": STEPS, "log_every": 1, "eval_every": 10, "accumulation": 2,
            "phases": [{"steps": 17, "set": {"data.length": 16}}, {"set": {"data.length": 32}}],
        },
        "log": {"tensorboard": False},
    }  # fmt: skip
    if family == "t5":
        sections["data"]["tokenizer"]["extra_ids"] = 20
    if family == "bert":
        sections["objective"] = {"dupe_factor": 2}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(families.tree(family, **sections)))
    return path


def process(path, run_dir, *overrides):
    """What a process of its own does: `jaxpt train`, its output in RUN_DIR.log."""
    os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    sys.stdout = sys.stderr = open(f"{run_dir}.log", "a", buffering=1)  # noqa: SIM115
    from jaxpt import cli

    sys.exit(cli.main(["train", str(path), f"run_dir={run_dir}", *overrides]))


def start(path, run_dir, *overrides):
    started = forked().Process(target=process, args=(path, run_dir, *overrides))
    started.start()
    return started


def finish(started, run_dir):
    """(exit code, what it said)"""
    started.join(300)
    log = run_dir.with_name(f"{run_dir.name}.log")
    said = log.read_text()
    log.unlink()
    return started.exitcode, said


def wait_for_step(started, run_dir, step, since):
    """Returns when a step is recorded, by the process that was started at `since`."""
    metrics = run_dir / "metrics.jsonl"
    while started.is_alive():
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("}")]
        if any(record["step"] >= step and record["time"] >= since for record in records):
            return
        time.sleep(0.005)
    raise AssertionError(f"ended before step {step}:\n{finish(started, run_dir)}")


def final_state(path, run_dir):
    config = configs.load(path, [f"run_dir={run_dir}"])
    checkpoints = checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True)
    assert checkpoints.steps()[-1] == STEPS
    import jax

    final = checkpoints.restore(state.setup(config, jax.devices()[:1]), STEPS)
    checkpoints.close()
    return jax.device_get(final)


def assert_bit_equal(one, two):
    import jax

    leaves = list(zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))
    assert len(leaves) > 20
    for a, b in leaves:
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    done = {}

    def get(family):
        if family not in done:
            tmp_path = tmp_path_factory.mktemp(family)
            path = recipe(tmp_path, family)
            code, output = finish(start(path, tmp_path / "whole"), tmp_path / "whole")
            assert code == 0, output
            done[family] = tmp_path, path, final_state(path, tmp_path / "whole")
        return done[family]

    return get


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "every", "stops"),
    [
        ("gpt2", 1, [(signal.SIGINT, 2, 20), (signal.SIGKILL, 21, 40)]),
        ("t5", 7, [(signal.SIGKILL, 15, 19)]),  # about the change of phase
        ("bert", 7, [(signal.SIGKILL, 8, 20), (signal.SIGTERM, 21, 40)]),
    ],
)
def test_stopped_and_started_again(uninterrupted, family, every, stops):
    tmp_path, path, wanted = uninterrupted(family)
    run_dir, stopped_at = tmp_path / f"every-{every}", []
    for number, first, last in stops:
        # A checkpoint is written beside the steps that follow: kill -9 may come before the first one is whole.
        saved = any(path.name.isdigit() for path in run_dir.glob("checkpoints/*"))
        since = time.time()
        started = start(path, run_dir, f"checkpoint.every={every}")
        stopped_at.append(random.Random().randint(first, last))
        wait_for_step(started, run_dir, stopped_at[-1], since)
        os.kill(started.pid, number)
        code, output = finish(started, run_dir)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number), output
        assert number == signal.SIGKILL or "goes on from there" in output
        assert ("going on from step" in output) == bool(saved), output
    code, output = finish(start(path, run_dir, f"checkpoint.every={every}"), run_dir)
    assert code == 0 and "going on from step" in output, output
    assert_bit_equal(final_state(path, run_dir), wanted)
    steps = [json.loads(x)["step"] for x in (run_dir / "metrics.jsonl").read_text().splitlines() if "train/loss" in x]
    assert steps == list(range(1, STEPS + 1)), f"stopped at {stopped_at}: every step is recorded once"


@pytest.mark.slow
def test_a_second_process_is_kept_out(uninterrupted):
    tmp_path, path, _ = uninterrupted("gpt2")
    run_dir, since = tmp_path / "held", time.time()
    first = start(path, run_dir)
    wait_for_step(first, run_dir, 2, since)
    os.kill(first.pid, signal.SIGSTOP)
    before = sorted(run_dir.rglob("*"))
    second = start(path, tmp_path / "other", f"run_dir={run_dir}")
    code, output = finish(second, tmp_path / "other")
    assert code == 2 and f"{run_dir}: process {first.pid} on " in output
    assert sorted(run_dir.rglob("*")) == before
    os.kill(first.pid, signal.SIGKILL)
    assert finish(first, run_dir)[0] == -signal.SIGKILL
    code, output = finish(start(path, run_dir), run_dir)
    assert code == 0, output
