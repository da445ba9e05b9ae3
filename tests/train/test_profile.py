"""A trace of chosen steps: what its table counts, and a real one."""

import contextlib
import doctest
import functools
import io

import jax
import jax.numpy as jnp
import pytest

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


def test_operations_of_other_programs_are_not_counted(tmp_path):
    x = jnp.ones((64, 64))
    step = jax.jit(lambda x: jnp.sort(x, axis=0)).lower(x).compile()

    def evaluation(x):
        return jnp.sin(x @ x)

    evaluate = jax.jit(evaluation).lower(x).compile()
    module = profile.module_of(evaluate.as_text())
    assert module == "jit_evaluation"
    jax.block_until_ready((step(x), evaluate(x)))
    jax.profiler.start_trace(str(tmp_path))
    jax.block_until_ready((step(x), evaluate(x)))
    jax.profiler.stop_trace()
    data = jax.profiler.ProfileData.from_file(str(next(tmp_path.rglob("*.xplane.pb"))))
    named = {event.name for line in profile.device_lines(data, module) for event in line}
    everything = {event.name for line in profile.device_lines(data) for event in line}
    assert named and not any("sort" in name for name in named)
    assert any("sort" in name for name in everything) and named < everything


RECIPE = str(ROOT / "configs/smoke/gpt2_tiny.yaml")
SMALL = [
    "model.layers=2", "model.embed_dim=16", "model.heads=2", "data.batch_size=8", "data.length=16",
    "data.tokenizer.vocab_size=300", "data.tokenizer.characters=20000", "log.tensorboard=false", "evals=[]",
    "train.steps=4", "optimizer.schedule.warmup_steps=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A run of 4 steps that was told to trace three from the second one on; the end of a phase cuts them short."""
    run = tmp_path_factory.mktemp("traced") / "run"
    settings = ["profile={first: 2, steps: 3}", "train.phases=[{steps: 3}, {}]"]
    said, options, start = io.StringIO(), jax.profiler.ProfileOptions(), jax.profiler.start_trace
    options.python_tracer_level = 0  # the calls of Python are 98 % of the events
    with contextlib.redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.profiler, "start_trace", functools.partial(start, profiler_options=options))
        assert cli.main(["train", RECIPE, f"run_dir={run}", *SMALL, *settings]) == 0
    return run, said.getvalue()


def traces(run):
    return list((run / "profile").rglob("perfetto_trace.json.gz"))


@pytest.mark.slow
def test_a_run_traces_the_steps_that_it_is_told(traced):
    run, said = traced
    assert "trace of steps 2–3, for xprof and ui.perfetto.dev: profile/plugins/profile/" in said
    assert all(part in said for part in ("decoder/attention", "  loss\n", "  optimizer\n"))
    assert len(traces(run)) == 1


@pytest.mark.slow
def test_a_run_says_that_the_steps_to_trace_are_behind_it(traced, capsys):
    run, _ = traced
    assert cli.main(["train", str(run), "train.steps=5", "profile={first: 2, steps: 1}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "profile: step 2 is behind the run: nothing is traced; profile.first=5 is next" in said
    assert len(traces(run)) == 1


def test_steps_that_the_run_does_not_reach_are_refused(tmp_path, capsys):
    assert cli.main(["train", RECIPE, f"run_dir={tmp_path}/run", *SMALL, "profile={first: 4, steps: 2}"]) == 2
    assert "profile: steps 4 to 5 are to be traced, but the run ends at step 4 (train.steps)" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
