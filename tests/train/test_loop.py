"""What a run leaves behind, and how it is extended and branched."""

import json
import os
import shutil
import signal
import sys
import threading

import jax
import pytest
import yaml

import jaxpt
from jaxpt import cli
from jaxpt import config as configs
from jaxpt.data import fingerprint
from jaxpt.data.records import cache
from jaxpt.data.stream import order
from jaxpt.errors import UserError
from jaxpt.runtime import background
from jaxpt.train import amounts, loop, programs
from tests import families
from tests.processes import forked
from tests.runs import assert_bit_equal, final
from tests.waiting import LIMIT, until

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
    assert receipt["skipped_steps"] == 0
    assert receipt["environment"]["packages"]["jax"]
    assert configs.load(run_dir).train.steps == 4
    assert (run_dir / "tokenizer").is_dir() and list((run_dir / "tensorboard").iterdir())
    assert {int(p.name) for p in (run_dir / "checkpoints").iterdir() if p.name.isdigit()} == {2, 4}


@pytest.fixture(scope="module")
def long(workplace):
    """A run of 16 steps and one log line; of each step, whether it waited for all before it but the last few."""
    build, wait, queued, ended, waited = programs.build, jax.block_until_ready, [], set(), []

    def built(*args):
        found = build(*args)

        def train(*args):
            # The first has a log line of its own.
            waited.append(ended.issuperset(map(id, queued[1 : -loop.MAX_INFLIGHT_STEPS])))
            state, figures = found.train(*args)
            queued.append(figures)
            return state, figures

        return found._replace(train=train)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "build", built)
        patch.setattr(jax, "block_until_ready", lambda x: ended.add(id(x)) or wait(x))
        assert run(workplace, "long", *LONG) == 0
    return waited


LONG = ("train.steps=16", "train.log_every=16", "train.eval_every=16", "evals=[]")


@pytest.mark.slow
def test_the_host_is_a_few_steps_ahead_of_the_device_at_most(long):
    """Else a stop waits for all the steps up to the next log line."""
    assert long == [True] * 16


@pytest.mark.slow
def test_extending_a_finished_run_equals_the_longer_run(workplace, long, capsys):
    shutil.copytree(workplace / "first", workplace / "short")
    assert run(workplace, "short", *LONG) == 0
    assert "resuming from step 4" in capsys.readouterr().out
    assert_bit_equal(*(final(workplace / name, 16) for name in ("long", "short")))


@pytest.mark.slow
def test_a_longer_run_warms_up_no_second_time(workplace, capsys):
    options = ("optimizer.schedule={kind: constant, warmup_steps: 4}", "evals=[]", "train.eval_every=9")
    assert run(workplace, "warmed", *options, "train.steps=2") == 0
    assert run(workplace, "warmed", *options, "train.steps=5") == 0
    rates = [r["learning_rate"] for r in records(workplace, "warmed") if "train/loss" in r]
    assert rates == pytest.approx([0.0, *4 * [0.01]])
    said = " ".join("".join(capsys.readouterr()).split())
    assert "warmup_steps: 4 is over optimizer.schedule.warmup_limit, which is 2; the warm-up takes 1" in said
    assert "optimizer.schedule.warmup_limit null → 2" in said


@pytest.mark.slow
def test_branching(workplace):
    source = f"init_from.path={workplace / 'first'}"
    assert run(workplace, "whole", source, "init_from.step=2", "init_from.state=true") == 0
    # The same state, data and settings from step 2 on: the same end.
    assert_bit_equal(*(final(workplace / name, 4) for name in ("first", "whole")))
    # A phase that lies behind it does not have to fit the devices.
    phases = "train.phases=[{steps: 2, set: {data.batch_size: 12}}, {}]"
    options = (source, "init_from.step=2", "init_from.state=true", "train.steps=3", "evals=[]", phases)
    assert run(workplace, "second_phase", *options) == 0
    assert run(workplace, "weights", source, "train.steps=1") == 0
    assert [r["step"] for r in records(workplace, "weights") if "train/loss" in r] == [1]
    # It starts from the averaged weights, and so with a lower loss than a fresh model.
    first, branched = (
        next(r["train/loss"] for r in records(workplace, name) if "train/loss" in r) for name in ("first", "weights")
    )
    assert branched < first - 0.1


@pytest.mark.slow
def test_a_branch_keeps_the_order_of_the_records_where_its_data_are_the_same(workplace, monkeypatch):
    def order(name):
        return json.loads((workplace / name / "run.json").read_text())["data"]["fingerprint"]["order"]

    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "NEWEST", 2)
        assert run(workplace, "older", "evals=[]") == 0
    state = (f"init_from.path={workplace / 'older'}", "init_from.step=2", "init_from.state=true", "evals=[]")
    assert run(workplace, "same_order", *state) == 0
    assert_bit_equal(*(final(workplace / name, 4) for name in ("older", "same_order")))
    assert run(workplace, "other_data", *state, "data.length=8") == 0
    assert (order("older"), order("same_order"), order("other_data")) == (2, 2, 3)


@pytest.mark.slow
def test_a_branch_evaluates_and_keeps_the_state_that_it_begins_with(workplace):
    state = (f"init_from.path={workplace / 'first'}", "init_from.step=2", "init_from.state=true", "train.steps=5")
    saves = (
        "checkpoint.save_initial_state=true",
        "checkpoint.every=1",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best=0",
    )
    assert run(workplace, "kept", *state, *saves, "train.eval_on_start=true", "train.eval_every=5") == 0
    assert [r["step"] for r in records(workplace, "kept") if "validation/loss" in r] == [2, 5]
    assert sorted(path.name for path in (workplace / "kept/checkpoints").iterdir() if path.name.isdigit()) == ["2", "5"]
    assert_bit_equal(final(workplace / "first", 2), final(workplace / "kept", 2))
    # At the end of a phase the state is the source's alone.
    phases = "train.phases=[{steps: 2, set: {train.trainable: [model/token_embed]}}, {}]"
    assert run(workplace, "phases", phases) == 0
    state = (f"init_from.path={workplace / 'phases'}", "init_from.step=2", "init_from.state=true", phases)
    assert run(workplace, "next_phase", *state, *saves) == 0
    assert sorted(path.name for path in (workplace / "next_phase/checkpoints").glob("?")) == ["3", "4"]


@pytest.mark.slow
def test_a_branch_goes_beyond_its_source(workplace, capsys):
    source = workplace / "first"
    assert run(workplace, "beyond", f"init_from.path={source}", "init_from.state=true") == 2
    wanted = f"jaxpt: init_from: {source} is at step 4, train.steps is 4; train.steps=8 goes on from there\n"
    assert capsys.readouterr().err.endswith(wanted) and not (workplace / "beyond").exists()


@pytest.mark.slow
def test_eval_gives_what_training_measured(workplace, capsys):
    measured = [r["validation/loss"] for r in records(workplace, "first") if "validation/loss" in r]
    for path, loss in ((workplace / "first", measured[1]), (workplace / "first" / "checkpoints" / "2", measured[0])):
        assert cli.main(["eval", str(path)]) == 0
        shown = capsys.readouterr().out
        assert f"{loss:.4f}" in shown and "baseline" in shown


@pytest.mark.slow
def test_a_run_that_fails_leaves_nobody_who_makes_records(workplace, monkeypatch):
    """In a notebook the process goes on."""
    monkeypatch.setitem(order.SHARDINGS, 3, order.Sharding(600, 8))
    monkeypatch.setattr(cache, "_STARTUP", 1e9)  # no processes
    monkeypatch.setattr(background, "_PATIENCE", LIMIT)
    make_shard, begun = cache.make_shard, []

    def endless(work, number, shard, path, report):
        begun.append(number)
        if len(begun) == 1:
            return make_shard(work, number, shard, path, report)
        while True:
            report(0)

    def fail(*_):  # when the first shard is there
        until(lambda: len(begun) > 1)
        raise UserError("something else is wrong")

    monkeypatch.setattr(cache, "make_shard", endless)
    monkeypatch.setattr(amounts, "line", fail)
    overrides = [f"run_dir={workplace / 'fails'}", f"data.cache_dir={workplace / 'others'}"]
    with pytest.raises(UserError, match="something else"):
        jaxpt.fit(configs.load(workplace / "recipe.yaml", overrides))
    assert "jaxpt-preparer" not in [thread.name for thread in threading.enumerate()]
    assert len([*(workplace / "others" / "records").glob("*/*")]) == 1, "the shard that is whole"


def piped(folder):
    """What a process of its own does: `jaxpt train … >FOLDER/pipe 2>FOLDER/piped.log`."""
    for path, number in ((folder / "pipe", 1), (folder / "piped.log", 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    sys.argv[1:] = ["train", str(folder / "recipe.yaml"), f"run_dir={folder / 'piped'}", "train.steps=100000"]
    cli.start()


@pytest.mark.slow
def test_a_run_whose_reader_is_gone_stops_after_a_checkpoint(workplace):
    """`jaxpt train … | head -1`."""
    os.mkfifo(workplace / "pipe")
    running = forked().Process(target=piped, args=(workplace,))
    running.start()
    with (workplace / "pipe").open() as lines:
        assert any(line.startswith("step 1/") for line in lines)
    running.join(300)
    said = (workplace / "piped.log").read_text()
    assert running.exitcode == 128 + signal.SIGTERM and "jaxpt: standard output was closed" in said, said
    assert "Traceback" not in said
    steps = [int(p.name) for p in (workplace / "piped" / "checkpoints").iterdir() if p.name.isdigit()]
    assert steps and json.loads((workplace / "piped" / "run.json").read_text())["step"] == max(steps)
