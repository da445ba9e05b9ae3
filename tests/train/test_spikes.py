"""Spikes: told from the run's own scale, in the step and on the host alike; said, left out, or left behind."""

import json
import random
import re
import shutil

import jax
import numpy as np
import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.data import preparing
from jaxpt.errors import DivergedError
from jaxpt.report import replay
from jaxpt.train import spikes
from jaxpt.train.run_dir import records
from tests import families
from tests.runs import assert_bit_equal, final
from tests.train.spiking import checksum


def judged(losses, norms):
    """Steps, from 0, that are spikes, by NumPy."""
    scale, steps = spikes.fresh(np), []
    for step, (loss, norm) in enumerate(zip(losses, norms)):
        spike, scale = spikes.judge(scale, np.float32(loss), np.float32(norm), np)
        if spike.any():
            steps.append(step)
    return steps


def clean(seed, steps=400):
    """Losses and gradient norms as of a run: both fall, with noise in the logarithm."""
    rng, step = np.random.default_rng(seed), np.arange(steps)
    losses = (3.5 + 6 * np.exp(-step / 60)) * np.exp(rng.normal(0, 0.03, steps))
    return losses, (0.5 + 4 * np.exp(-step / 30)) * np.exp(rng.normal(0, 0.3, steps))


@pytest.mark.parametrize("factor", [20, 1000])
def test_a_spike_is_found_and_a_clean_run_has_none(factor):
    for seed in range(3):
        losses, norms = clean(seed)
        assert judged(losses, norms) == []
        at = 150 + 100 * seed
        spoiled = norms.copy()
        spoiled[at] *= factor
        assert judged(losses, spoiled) == [at]
    losses, norms = clean(3)
    norms[15] *= 1000
    assert judged(losses, norms) == [15]


def test_what_is_no_spike():
    losses, norms = clean(0)
    assert judged(losses, norms * np.where(np.arange(400) < 200, 1, 2)) == []  # a change of scale
    rng = np.random.default_rng(0)
    assert judged(np.exp(rng.normal(-4, 1.5, 400)), np.exp(rng.normal(-1, 1.3, 400))) == []  # heavy tails
    losses[50:60] = np.nan
    assert judged(losses, norms) == []  # numbers that are not finite leave the scale alone
    steps = judged(*(np.where(np.arange(400) < 200, x, 30 * x) for x in clean(1)))
    assert steps == list(range(200, 200 + spikes.MAX_RECENT))  # then it is the run's own scale


def test_the_step_judges_as_the_host_does():
    losses, norms = clean(2, steps=80)
    norms[[30, 50, 51]] *= 50
    scale, verdicts, judge = spikes.fresh(), [], jax.jit(spikes.judge)
    for loss, norm in zip(losses.astype(np.float32), norms.astype(np.float32)):
        spike, scale = judge(scale, loss, norm)
        verdicts.append(bool(spike.any()))
    assert np.flatnonzero(verdicts).tolist() == judged(losses, norms) == [30, 50, 51]
    watch = spikes.Watch(phase=0)
    seen = [watch.see(n, n, 1e-3, {"loss": x, "gradient_norm": y}) for n, (x, y) in enumerate(zip(losses, norms))]
    assert [spike.step for spike in seen if spike] == [30, 50, 51]
    assert 20 < seen[30].ratios["gradient_norm"] < 120 and "loss" not in seen[30].ratios


def test_batches_that_are_left_out_are_a_gap_in_the_stream():
    rng = random.Random(0)
    for _ in range(50):
        omitted = rng.sample(range(30), rng.randrange(8))
        rest = [number for number in range(60) if number not in omitted]
        assert [spikes.batch_number(place, omitted) for place in range(40)] == rest[:40]


def test_a_rewind_leaves_out_none_that_the_checkpoint_has_seen():
    rewinds = spikes.Rewinds(families.config("gpt2", train={"on_spike": "rewind"}))
    for step, target, wanted in ((8, 5, [5, 6, 7]), (12, 3, [11, 12, 13, 14]), (9, 8, [15])):
        spike = spikes.Spike(step, rewinds.batch_number(step, 0), 0, 1e-3, {})
        assert rewinds.go_back(spike, target, 0, "run") == wanted
    assert [rewinds.batch_number(step, 0) for step in range(1, 10)] == [0, 1, 2, 3, 4, 8, 9, 10, 16]


def test_a_branch_leaves_out_the_same_batches_and_counts_its_own_rewinds():
    config = families.config("gpt2", train={"on_spike": "rewind", "max_rewinds": 1})
    spike, source = spikes.Spike(18, 17, 0, 1e-3, {"loss": 9.0}), spikes.Rewinds(config)
    source.go_back(spike, 15, 0, "source")
    branch = spikes.Rewinds(config, None, source.saved())
    assert branch.omitted == source.omitted and (branch.count, branch.history) == (0, [])
    branch = spikes.Rewinds(config, branch.saved())  # resumed
    assert branch.omitted == source.omitted and (branch.count, branch.history) == (0, [])
    branch.go_back(spike, 15, 0, "branch")
    with pytest.raises(DivergedError, match="spikes at steps 18, 18, after 1 rewinds"):
        branch.go_back(spike, 15, 0, "branch")


# ---- runs -----------------------------------------------------------------------------------------------------------

WORDS = ("the", "of", "and", "to", "in", "a", "is", "was", "for", "on", "with", "as", "by", "at", "from", "that", "it")
SPIKE = 18
"""The step of the spike: its batch has number 17."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe of 24 steps, whose step 18 spikes."""
    folder, rng = tmp_path_factory.mktemp("spikes"), random.Random(0)
    (folder / "text.txt").write_text("".join(" ".join(rng.choices(WORDS, k=11)) + "\n" for _ in range(500)))
    data = {"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.05}
    tree = families.tree(
        "gpt2", model={"vocab_size": 300, "layers": 1}, data=data | {"length": 16, "batch_size": 8},
        train={"steps": 24, "log_every": 7}, evals=[], log={"tensorboard": False},
        checkpoint={"every": 5, "keep_last": 9}, objective={"kind": "tests.train.spiking"},
    )  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    config = configs.load(path, [f"run_dir={folder / 'none'}"])
    batch = next(preparing.prepare(config, save=False).train.batches(SPIKE - 1))
    tree["objective"]["checksums"] = [int(checksum(batch))]
    path.write_text(yaml.safe_dump(tree))
    return path


def train(recipe, capsys, name, *overrides):
    """(exit code, all that was printed, without line ends)"""
    code = cli.main(["train", str(recipe), f"run_dir={recipe.parent / name}", *overrides])
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())


@pytest.mark.slow
def test_a_run_says_skips_or_goes_back(recipe, capsys):
    ends, receipts = {}, {}
    for action in ("keep", "skip", "rewind"):
        code, said = train(recipe, capsys, action, f"train.on_spike={action}")
        assert code == 0 and said.count("a spike:") == 1, said
        assert re.search(rf"step {SPIKE}: a spike: loss \d+ times and gradient norm \d+ times the usual", said), said
        ends[action] = final(recipe.parent / action, 24)
        receipts[action] = json.loads((recipe.parent / action / "run.json").read_text())
    assert {receipt["spikes"] for receipt in receipts.values()} == {1}
    assert (ends["keep"].scale, ends["keep"].skipped_total) == (None, 0)
    assert (ends["skip"].skipped_total, ends["skip"].skipped) == (1, 0)
    assert ends["rewind"].skipped_total == 0  # from before the spike, without its batch
    assert (receipts["rewind"]["rewinds"], receipts["rewind"]["omitted"]) == (1, {"0": [15, 16, 17]})
    for action, receipt in receipts.items():
        seconds = receipt["time"]["seconds"]
        assert sum(seconds.values()) == pytest.approx(receipt["wall_seconds"], abs=0.1)
        assert receipt["time"]["goodput"] == pytest.approx(seconds["steps"] / sum(seconds.values()), abs=1e-3)
        assert ("lost" in seconds) == (action == "rewind")
    assert not (recipe.parent / "rewind" / "heartbeat.json").exists()
    assert "going back to step 15 (train.on_spike: rewind) without the batches 15, 16, 17" in said
    branch = (f"init_from.path={recipe.parent / 'rewind'}", "init_from.step=20", "init_from.state=true")
    assert train(recipe, capsys, "branch", *branch, "train.on_spike=rewind")[0] == 0  # leaves out the same batches
    assert_bit_equal(final(recipe.parent / "branch", 24), ends["rewind"])
    receipt = json.loads((recipe.parent / "branch/run.json").read_text())
    assert (receipt["rewinds"], receipt["omitted"]) == (0, {"0": [15, 16, 17]})
    (recipe.parent / "other.txt").write_text((recipe.parent / "text.txt").read_text() + "one more\n")
    other = f"data.path={recipe.parent / 'other.txt'}"
    assert train(recipe, capsys, "other_data", *branch, "train.on_spike=rewind", other)[0] == 0
    assert "omitted" not in json.loads((recipe.parent / "other_data/run.json").read_text())
    for left in (20, 15):  # killed after the rewind; in the middle of it, before what it leaves out was saved
        for step in {15, 20, 24} - set(range(left + 1)):
            shutil.rmtree(recipe.parent / "rewind/checkpoints" / str(step))
        code, said = train(recipe, capsys, "rewind", "train.on_spike=rewind")
        assert code == 0 and said.count("going back") == (left == 15), said
        assert_bit_equal(final(recipe.parent / "rewind", 24), ends["rewind"])


@pytest.mark.slow
def test_a_step_is_run_again(recipe, capsys):
    assert train(recipe, capsys, "skip", "train.on_spike=skip")[0] == 0  # it may have been trained before
    spiked = replay.run(configs.load(recipe.parent / "skip"), recipe.parent / "skip", 21, batch_number=SPIKE - 1)
    assert (spiked.start, spiked.batch_number) == (20, SPIKE - 1)
    assert spiked.figures["spike"] == 1 and spiked.figures["loss"] > 1000
    squares = sum(norms["gradient"] ** 2 for norms in spiked.norms.values())
    assert np.isclose(squares**0.5, spiked.figures["gradient_norm"], rtol=1e-5)
    assert cli.main(["replay", str(recipe.parent / "skip"), "--step", "23", "-n", "1"]) == 0
    said = capsys.readouterr().out
    assert "step 23: batch 22 of the stream, from the checkpoint of step 20, after 2 steps from there" in said
    assert "example 176" in said and "model/decoder" in said and any(word in said for word in WORDS)


@pytest.mark.slow
def test_a_step_after_a_rewind_is_run_again_with_its_own_batches(recipe, capsys):
    run_dir = recipe.parent / "replayed"
    assert train(recipe, capsys, "replayed", "train.on_spike=rewind", "train.log_every=1")[0] == 0
    losses = {entry["step"]: entry["train/loss"] for entry in records(run_dir)[0] if "train/loss" in entry}
    config = configs.load(run_dir)
    for known_from in ("the next checkpoint", "run.json"):
        replayed = replay.run(config, run_dir, 17)
        assert (replayed.start, replayed.batch_number) == (15, 19), known_from
        assert replayed.figures["loss"] == pytest.approx(losses[17], rel=1e-5), known_from
        for step in (20, 24):
            shutil.rmtree(run_dir / "checkpoints" / str(step), ignore_errors=True)


@pytest.mark.slow
def test_a_run_that_went_back_often_enough_ends(recipe, capsys):
    code, said = train(recipe, capsys, "often", "train.on_spike=rewind", "train.max_rewinds=0")
    assert code == 65
    words = f"spikes at steps {SPIKE}, after 0 rewinds (train.max_rewinds): batches 17 of the stream; of gradient norm"
    assert words in said and f"jaxpt replay {recipe.parent / 'often'} --step {SPIKE} --batch 17`" in said, said
    receipt = json.loads((recipe.parent / "often/run.json").read_text())
    assert not receipt["finished"] and [spike[:2] for spike in receipt["history"]] == [[SPIKE, SPIKE - 1]]
    code, said = train(recipe, capsys, "none", "train.on_spike=rewind", "checkpoint.every=100")
    assert code == 0 and "its update is left out" in said and "no checkpoint is from before: the run goes on" in said
    # … and saves what is due, also where the spike is in the last steps that are judged
    code, said = train(recipe, capsys, "last", "train.on_spike=rewind", "checkpoint.every=20", "train.steps=20")
    assert code == 0 and "no checkpoint is from before: the run goes on" in said
    assert final(recipe.parent / "last", 20).skipped_total == 1
