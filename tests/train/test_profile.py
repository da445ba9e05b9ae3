"""A trace of chosen steps: what its table counts, and a real one."""

import doctest

from jaxpt import cli
from jaxpt.train import profile
from jaxpt.train.profile import Event
from tests.config.helpers import ROOT


def test_examples():
    failed, tried = doctest.testmod(profile)
    assert not failed and tried


def test_own_times_add_up_to_the_outermost_ones():
    events = [Event("a", 0, 100), Event("b", 10, 40), Event("c", 20, 30), Event("b", 40, 60), Event("d", 120, 121)]
    own = profile.self_times(reversed(events))
    assert own == [("a", 50), ("b", 20), ("c", 10), ("b", 20), ("d", 1)]
    assert sum(time for _, time in own) == 101


def test_shares_add_up(capsys):
    seconds = {(f"part{n}", way): float(n) for n in range(20) for way in ("forward", "backward")}
    head, *lines = profile.table(seconds)
    shares = [float(share.rstrip("%")) for line in lines for share in line.split()[:-1]]
    assert head.split() == ["forward", "backward"] and len(lines) == profile.MOST + 1
    assert abs(sum(shares) - 100) < 1 and lines[-1].endswith("other")


def test_a_run_traces_the_steps_that_it_is_told(tmp_path, capsys):
    recipe = str(ROOT / "configs/smoke/gpt2_tiny.yaml")
    small = ["model.layers=2", "model.embed_dim=16", "model.heads=2", "data.batch_size=8", "data.length=16"]
    small += ["data.tokenizer.vocab_size=300", "data.tokenizer.characters=20000", "log.tensorboard=false", "evals=[]"]
    chosen = ["train.steps=4", "optimizer.schedule.warmup_steps=0", "profile={first: 2, steps: 2}"]
    assert cli.main(["train", recipe, f"run_dir={tmp_path}/run", *small, *chosen]) == 0
    said = capsys.readouterr().out
    assert "trace of steps 2–3, for xprof and ui.perfetto.dev: profile/plugins/profile/" in said
    assert all(part in said for part in ("decoder/attention", "  loss\n", "  optimizer\n"))
    assert len(list((tmp_path / "run/profile").rglob("perfetto_trace.json.gz"))) == 1
