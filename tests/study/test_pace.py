"""A budget of minutes is made steps once: a restart has the same number, whatever the machine does then."""

import contextlib
import doctest
import json
import re
import types

import pytest
import yaml

from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.study import pace
from tests import families


def recipe(tmp_path, **train):
    (tmp_path / "corpus.txt").write_text("\n".join(f"text {n} of house {n * n} and the cat" for n in range(60)))
    tree = families.tree("gpt2", model={"vocab_size": 300, "layers": 1}, log={"tensorboard": False})
    tree["data"] |= {"path": str(tmp_path / "corpus.txt"), "cache_dir": str(tmp_path / "cache"), "length": 16}
    tree["data"]["validation_fraction"] = 0.1
    tree["train"] |= train
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return configs.load(tmp_path / "recipe.yaml", [f"run_dir={tmp_path / 'row'}"])


PHASES = [{"steps": 30, "set": {"data.length": 8}}, {}]


def test_phases_keep_their_proportions_and_fill_the_minutes():
    lengths, seconds = [700, 100, 200], [0.01, 0.2, 0.05]
    steps = pace.scaled(lengths, seconds, minutes=3.0)
    assert sum(n * s for n, s in zip(steps, seconds)) == pytest.approx(180, abs=0.5 * sum(seconds))
    assert [n / steps[0] for n in steps] == pytest.approx([n / 700 for n in lengths], rel=1e-3)
    assert pace.scaled([1000], [100.0], minutes=0.1) == (1,), "at least one"


@pytest.fixture
def clock(monkeypatch):
    """Measures nothing; each call takes longer than the one before."""
    calls = []

    def measure(config):
        calls.append(config)
        return [0.5 * len(calls)] * len(pace.phase_lengths(config))

    monkeypatch.setattr(pace, "measure", measure)
    return calls


def test_steps_are_kept_over_restarts(tmp_path, clock):
    config, run_dir = recipe(tmp_path), tmp_path / "row"
    assert pace.known(config, 2.0) is None and pace.read(run_dir, 2.0) is None
    assert pace.write(config, 2.0).steps == (240,)
    for steps in (7, 240):  # whichever the recipe has
        again = config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
        assert pace.known(again, 2.0).steps == (240,)
    assert pace.read(run_dir, 2.0).overrides == ["train.steps=240"] and pace.read(run_dir, None) is None
    other = recipe(tmp_path, grad_accum_steps=2)
    assert pace.known(other, 2.0) is None, "another recipe is measured anew before the first checkpoint"
    assert pace.known(config, 3.0) is None, "so are other minutes"
    (run_dir / "checkpoints" / "10").mkdir(parents=True)
    assert pace.known(other, 2.0).steps == (240,), "then the run decides whether it may go on"
    with pytest.raises(UserError, match="was begun with 2 minutes, the study gives it 3; delete it"):
        pace.known(config, 3.0)
    (run_dir / pace.FILE).write_text('{"minutes": 2')
    with pytest.raises(UserError, match=re.escape(f"{run_dir / pace.FILE} is damaged; delete it")):
        pace.read(run_dir, 2.0)


def test_overrides_fit_a_recipe_with_phases(tmp_path, clock):
    config = recipe(tmp_path, steps=40, phases=PHASES)
    budget = pace.write(config, 1.0)
    assert budget.steps == (90, 30)
    loaded = configs.load(tmp_path / "recipe.yaml", budget.overrides)
    assert configs.phase_starts(loaded) == (0, 90) and loaded.train.steps == 120


@pytest.mark.slow
def test_a_step_is_timed(tmp_path, monkeypatch):
    """Really: as many steps as are asked for, nothing but prepared data stays."""
    monkeypatch.setattr(pace, "MIN_STEPS", 3)
    monkeypatch.setattr(pace, "MIN_SECONDS", 0.0)
    (seconds,) = pace.measure(recipe(tmp_path, steps=40))
    assert 0 < seconds < 5
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "cache", "recipe.yaml"}


@pytest.mark.parametrize("count", [pace.WARMUP_STEPS, pace.WARMUP_STEPS + 1, pace.WARMUP_STEPS + 3])
def test_prepared_batches_may_be_fewer_than_a_measurement_takes(monkeypatch, count):
    monkeypatch.setattr(pace.distributed, "rows", lambda mesh, size: None)
    monkeypatch.setattr(pace.step, "put", lambda batch, setup: batch)
    trained = []
    phase = types.SimpleNamespace(
        config=types.SimpleNamespace(data=types.SimpleNamespace(batch_size=8, path="batches")),
        setup=types.SimpleNamespace(mesh=None, use=contextlib.nullcontext, init=lambda: 0),
        programs=lambda: types.SimpleNamespace(train=lambda state, batch: (trained.append(batch), 0)),
        data=types.SimpleNamespace(train=types.SimpleNamespace(batches=lambda start, rows: iter(range(count)))),
    )
    setup = types.SimpleNamespace(teacher_params=tuple)
    if count <= pace.WARMUP_STEPS:
        with pytest.raises(UserError, match=r"^data\.path: batches: holds the batches of 4 steps of a phase, "):
            pace._seconds(phase, setup)
    else:
        assert 0 < pace._seconds(phase, setup) < 5
    assert trained == list(range(count))


def test_a_file_has_what_was_measured(tmp_path, clock):
    pace.write(recipe(tmp_path), 1.0)
    fields = json.loads((tmp_path / "row" / pace.FILE).read_text())
    assert (fields["minutes"], fields["seconds"], fields["steps"]) == (1.0, [0.5], [120])


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(pace)
    assert tried and not failed
