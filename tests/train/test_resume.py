"""A run that is stopped and started again ends with the same bits as one that is not.

The recipe is small but has it all: several epochs, a change of phase, accumulation, an average of the parameters. Real
processes are stopped by real signals after a random step.
"""

import json
import os
import random
import re
import signal
import sys
import time

import jax
import pytest
import yaml

from tests import families
from tests.processes import forked
from tests.runs import assert_bit_equal, final

STEPS = 30
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
            "steps": STEPS, "log_every": 1, "eval_every": 10, "grad_accum_steps": 2,
            "phases": [{"steps": 10, "set": {"data.length": 16}}, {"set": {"data.length": 32}}],
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
    os.dup2(sys.stderr.fileno(), 2)
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
        time.sleep(0.02)
    raise AssertionError(f"ended before step {step}:\n{finish(started, run_dir)}")


def wait_for_line(started, run_dir, pattern):
    """Returns when the process has said it."""
    log = run_dir.with_name(f"{run_dir.name}.log")
    while started.is_alive():
        if log.exists() and re.search(pattern, log.read_text(), re.MULTILINE):
            return
        time.sleep(0.02)
    raise AssertionError(f"ended before {pattern}:\n{finish(started, run_dir)}")


def assert_a_second_process_is_kept_out(first, path, run_dir):
    """While the first one, which is held, has the run_dir."""
    os.kill(first.pid, signal.SIGSTOP)
    time.sleep(0.2)  # until each of its threads has heard it
    before = sorted(run_dir.rglob("*"))
    other = run_dir.with_name("other")
    code, output = finish(start(path, other, f"run_dir={run_dir}"), other)
    assert code == 2 and f"{run_dir}: process {first.pid} on " in output
    assert sorted(run_dir.rglob("*")) == before


def figures(run_dir):
    """(step, name, figure) of all that evaluators measured."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(x["step"], name, x[name]) for x in records for name in sorted(x) if name.startswith("validation/")]


# Before data is prepared, at some step, at the change of phase, which is evaluated, and while the end is evaluated.
STOPS = [(signal.SIGINT, "^phase 2 of 2"), (signal.SIGKILL, 5, 9), (signal.SIGTERM, "^step 10/"),
         (signal.SIGINT, "^step 30/.*validation")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "every", "stops"),
    [
        ("bert", 4, STOPS),
        pytest.param("gpt2", 1, [(signal.SIGINT, 2, 13), (signal.SIGKILL, 14, 25)], marks=pytest.mark.grid),
        pytest.param("t5", 4, [(signal.SIGKILL, 9, 13)], marks=pytest.mark.grid),  # about the change of phase
    ],
)
def test_stopped_and_started_again(tmp_path, family, every, stops):
    path = recipe(tmp_path, family)
    code, output = finish(start(path, tmp_path / "whole"), tmp_path / "whole")
    assert code == 0, output
    run_dir, stopped_at = tmp_path / f"every-{every}", []
    overrides = [f"checkpoint.every={every}", f"data.cache_dir={tmp_path / 'other'}"]
    for number, *when in stops:
        # A checkpoint is written beside the steps that follow: kill -9 may come before the first one is whole.
        saved = any(path.name.isdigit() for path in run_dir.glob("checkpoints/*"))
        since = time.time()
        started = start(path, run_dir, *overrides)
        if isinstance(when[0], str):
            wait_for_line(started, run_dir, when[0])
        else:
            stopped_at.append(random.Random().randint(*when))
            wait_for_step(started, run_dir, stopped_at[-1], since)
        if number == signal.SIGKILL:
            assert_a_second_process_is_kept_out(started, path, run_dir)
        os.kill(started.pid, number)
        code, output = finish(started, run_dir)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number), output
        assert number == signal.SIGKILL or "re-run the same command to resume" in output
        assert ("resuming from step" in output) == bool(saved), output
    code, output = finish(start(path, run_dir, *overrides), run_dir)
    assert code == 0 and "resuming from step" in output, output
    assert_bit_equal(*(final(folder, STEPS, jax.devices()[:1]) for folder in (run_dir, tmp_path / "whole")))
    steps = [json.loads(x)["step"] for x in (run_dir / "metrics.jsonl").read_text().splitlines() if "train/loss" in x]
    assert steps == list(range(1, STEPS + 1)), f"stopped at {stopped_at}: every step is recorded once"
    assert figures(run_dir) == figures(tmp_path / "whole"), f"stopped at {stopped_at}"
