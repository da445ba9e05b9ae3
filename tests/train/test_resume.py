"""A run that is stopped and started again ends with the same bits as one that is not.

The recipe is small but has it all: several epochs, a change of phase, accumulation, an average of the parameters. Real
processes are stopped by real signals after a random step.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

from jaxpt import config as configs
from jaxpt.train import checkpoint, state
from tests import families

STEPS = 30
# 30 documents make so few records that an epoch ends every few steps.
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "a",
    "is",
    "was",
    "for",
    "on",
    "with",
    "as",
    "by",
    "at",
    "from",
    "his",
    "that",
    "it",
]


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
        "checkpoint": {"keep_last": 50},
        "log": {"tensorboard": False},
    }  # fmt: skip
    if family == "t5":
        sections["data"]["tokenizer"]["extra_ids"] = 20
    if family == "bert":
        sections["objective"] = {"dupe_factor": 2}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(families.tree(family, **sections)))
    return path


def start(path, run_dir, *overrides):
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "jaxpt", "train", str(path), f"run_dir={run_dir}", *overrides]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def wait_for_step(process, run_dir, step):
    metrics = run_dir / "metrics.jsonl"
    for _ in range(6000):
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        if any(json.loads(line)["step"] >= step for line in lines if line.endswith("}")):
            return
        if process.poll() is not None:
            raise AssertionError(f"ended before step {step}:\n{process.stdout.read()}")
        time.sleep(0.02)
    raise AssertionError(f"never reached step {step}")


def final_state(path, run_dir):
    config = configs.load(path, [f"run_dir={run_dir}"])
    checkpoints = checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True)
    assert checkpoints.latest() == STEPS
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
            code, output = finish(start(path, tmp_path / "whole"))
            assert code == 0, output
            done[family] = tmp_path, path, final_state(path, tmp_path / "whole")
        return done[family]

    return get


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "number", "every", "within"),
    [
        ("gpt2", signal.SIGINT, 1, (2, 28)),
        ("gpt2", signal.SIGKILL, 1, (2, 28)),
        ("t5", signal.SIGKILL, 7, (15, 19)),  # about the change of phase
        ("bert", signal.SIGKILL, 7, (8, 28)),
        ("bert", signal.SIGTERM, 7, (2, 28)),
    ],
)
def test_stopped_and_started_again(uninterrupted, family, number, every, within):
    tmp_path, path, wanted = uninterrupted(family)
    run_dir = tmp_path / f"{number.name}-{every}"
    at = random.Random().randint(*within)
    process = start(path, run_dir, f"checkpoint.every={every}")
    wait_for_step(process, run_dir, at)
    process.send_signal(number)
    code, output = finish(process)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number), output
    if number != signal.SIGKILL:
        assert "goes on from there" in output

    code, output = finish(start(path, run_dir, f"checkpoint.every={every}"))
    assert code == 0, output
    if number != signal.SIGKILL or every == 1:
        assert "going on from step" in output
    assert_bit_equal(final_state(path, run_dir), wanted)
    steps = [json.loads(x)["step"] for x in (run_dir / "metrics.jsonl").read_text().splitlines() if "train/loss" in x]
    assert steps == list(range(1, STEPS + 1)), f"killed at {at}: every step is recorded once"
