"""What a run leaves behind, and how it is extended and branched."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.train import loop, programs
from tests import families
from tests.runs import assert_bit_equal, final

WORDS = "says that the cat sat on the mat and the dog ran to the house"
TEXT = "\n".join(f"document number {i} {WORDS}" for i in range(60))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A recipe, and a run of 4 steps of it."""
    folder = tmp_path_factory.mktemp("loop")
    (folder / "text.txt").write_text(TEXT)
    tree = families.tree(
        "gpt2",
        model={"vocab_size": 300},
        data={
            "path": str(folder / "text.txt"),
            "cache_dir": str(folder / "cache"),
            "validation_fraction": 0.2,
            "length": 16,
        },
        mesh={"data": 8},
        optimizer={"kind": "adamw", "learning_rate": 1e-2, "ema_decay": 0.5},
        train={"steps": 4, "log_every": 1, "eval_every": 2},
        checkpoint={"keep_last": 9},
        evals=families.EVALUATED,
    )
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    assert run(folder, "first") == 0
    return folder


def run(folder, name, *overrides):
    return cli.main(["train", str(folder / "recipe.yaml"), f"run_dir={folder / name}", *overrides])


def records(folder, name):
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_leaves_all_that_it_needs(workplace):
    run_dir = workplace / "first"
    steps = [r["step"] for r in records(workplace, "first") if "train/loss" in r]
    assert steps == [1, 2, 3, 4]
    for record in (r for r in records(workplace, "first") if "train/loss" in r):
        assert 0 <= record["speed/input_wait"] <= 1
        assert record["memory/bytes_in_use"] is record["memory/peak_bytes_in_use"] is None  # CPUs do not say
    losses = [r["validation/loss"] for r in records(workplace, "first") if "validation/loss" in r]
    assert len(losses) == 2 and losses[1] < losses[0]
    receipt = json.loads((run_dir / "run.json").read_text())
    assert receipt["finished"] and receipt["step"] == 4 and receipt["baseline"] > 0
    assert receipt["environment"]["packages"]["jax"]
    assert configs.load(run_dir).train.steps == 4
    assert (run_dir / "tokenizer").is_dir() and list((run_dir / "tensorboard").iterdir())
    assert {int(p.name) for p in (run_dir / "checkpoints").iterdir() if p.name.isdigit()} == {2, 4}


@pytest.mark.slow
def test_extending_a_finished_run_equals_the_longer_run(workplace, capsys):
    assert run(workplace, "long", "train.steps=6") == 0
    shutil.copytree(workplace / "first", workplace / "short")
    assert run(workplace, "short", "train.steps=6") == 0
    assert "resuming from step 4" in capsys.readouterr().out
    assert_bit_equal(*(final(workplace / name, 6) for name in ("long", "short")))


@pytest.mark.slow
def test_branching(workplace):
    source = f"init_from.path={workplace / 'first'}"
    assert run(workplace, "whole", source, "init_from.step=2", "init_from.state=true") == 0
    # The same state, data and settings from step 2 on: the same end.
    assert_bit_equal(*(final(workplace / name, 4) for name in ("first", "whole")))
    assert run(workplace, "weights", source, "train.steps=1") == 0
    assert [r["step"] for r in records(workplace, "weights") if "train/loss" in r] == [1]
    # It starts from the averaged weights, and so with a lower loss than a fresh model.
    first, branched = (
        next(r["train/loss"] for r in records(workplace, name) if "train/loss" in r) for name in ("first", "weights")
    )
    assert branched < first - 0.1


@pytest.mark.slow
def test_eval_gives_what_training_measured(workplace, capsys):
    measured = [r["validation/loss"] for r in records(workplace, "first") if "validation/loss" in r]
    for path, loss in ((workplace / "first", measured[1]), (workplace / "first" / "checkpoints" / "2", measured[0])):
        assert cli.main(["eval", str(path)]) == 0
        shown = capsys.readouterr().out
        assert f"{loss:.4f}" in shown and "baseline" in shown


@pytest.mark.slow
def test_the_host_is_a_few_steps_ahead_of_the_device_at_most(workplace, monkeypatch):
    """Else a stop waits for all the steps up to the next log line."""
    build, queued = programs.build, []

    def built(*args):
        found = build(*args)

        def train(*args):
            assert all(figures["loss"].is_ready() for figures in queued[: -loop.AHEAD])
            state, figures = found.train(*args)
            queued.append(figures)
            return state, figures

        return found._replace(train=train)

    monkeypatch.setattr(programs, "build", built)
    assert run(workplace, "ahead", "train.steps=40", "train.log_every=40", "train.eval_every=40") == 0
    assert len(queued) == 40


@pytest.mark.slow
def test_a_run_whose_reader_is_gone_stops_after_a_checkpoint(workplace):
    """`jaxpt train … | head -1`."""
    command = [sys.executable, "-m", "jaxpt", "train", str(workplace / "recipe.yaml"), f"run_dir={workplace / 'piped'}"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    running = subprocess.Popen(
        [*command, "train.steps=100000"], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert any(line.startswith("step 1/") for line in running.stdout)
    running.stdout.close()
    said = running.stderr.read()
    assert running.wait() == 128 + signal.SIGTERM and "jaxpt: standard output was closed" in said
    assert "Traceback" not in said
    steps = [int(p.name) for p in (workplace / "piped" / "checkpoints").iterdir() if p.name.isdigit()]
    assert steps and json.loads((workplace / "piped" / "run.json").read_text())["step"] == max(steps)
