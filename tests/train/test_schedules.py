"""Schedules: their values where the formulas change, and what they refuse."""

import doctest
import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.config import ScheduleConfig, resolve
from jaxpt.errors import UserError
from jaxpt.train import schedules

VALUES = {  # at peak 2, warm-up 10, 100 steps, end fraction 0.1 where there is one
    "constant": {0: 0, 5: 1, 10: 2, 99: 2},
    "linear": {0: 0, 5: 1, 10: 2, 55: 1.1, 100: 0.2, 200: 0.2},
    "cosine": {0: 0, 5: 1, 10: 2, 55: 1.1, 100: 0.2, 200: 0.2},
    "inverse_sqrt": {0: 0, 5: 1, 10: 2, 40: 1, 1000: 0.2},
    "wsd": {0: 0, 5: 1, 10: 2, 80: 2, 90: 1.1, 100: 0.2},
    "bert": {0: 0, 5: 1, 9: 1.8, 10: 1.8, 50: 1, 100: 0},
    "t5": {0: 2 / 10**0.5, 10: 2 / 10**0.5, 40: 2 / 40**0.5, 100: 0.2},
    "slanted_triangular": {0: 2 / 32, 5: 33 / 32, 10: 2, 55: 33 / 32, 100: 2 / 32, 200: 2 / 32},
}


def _make(kind, **kwargs):
    return resolve(kind, "jaxpt.train.schedules", ScheduleConfig)(**kwargs)


def _config(kind, **kwargs):
    if kind in ("linear", "cosine", "wsd"):
        kwargs.setdefault("end_fraction", 0.1)
    if kind == "wsd":
        kwargs.setdefault("decay_steps", 20)
    if kind == "slanted_triangular":  # has no warm-up
        return _make(kind)
    return _make(kind, **{"warmup_steps": 10, **kwargs})


@pytest.mark.parametrize("kind", VALUES)
def test_values_where_the_formula_changes(kind):
    schedule = _config(kind).build(2.0, 100)
    for step, value in VALUES[kind].items():
        assert float(schedule(step)) == pytest.approx(value, abs=1e-6), step


@pytest.mark.parametrize("kind", VALUES)
def test_traced_steps_give_the_same_values(kind):
    schedule = _config(kind).build(2.0, 100)
    steps = jnp.arange(100, dtype=jnp.int32)
    assert jnp.allclose(jax.jit(jax.vmap(schedule))(steps), jnp.array([schedule(t) for t in range(100)]), atol=1e-6)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "wsd", "bert"])
def test_without_warm_up_the_first_step_is_at_the_peak(kind):
    assert float(_config(kind, warmup_steps=0).build(2.0, 100)(0)) == 2.0


@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "wsd", "t5"])
def test_a_longer_run_begins_in_the_same_way(kind):
    short, long = (_config(kind).build(2.0, steps) for steps in (100, 1000))
    assert all(float(short(t)) == float(long(t)) for t in range(80))


def test_wsd_decays_over_a_tenth_of_the_run_by_default():
    schedule = _make("wsd").build(1.0, 100)
    assert [float(schedule(t)) for t in (90, 95, 100)] == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind != "slanted_triangular"])
def test_a_warm_up_as_long_as_the_run_is_fine(kind):
    schedule = _config(kind, warmup_steps=100, **({"decay_steps": None} if kind == "wsd" else {})).build(2.0, 100)
    assert float(schedule(50)) == pytest.approx(0.2 if kind == "t5" else 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "linear", "warmup_steps": 101}, "warmup_steps: 101 is longer than the run, train.steps is 100"),
        ({"kind": "constant", "warmup_steps": 101}, "warmup_steps: 101"),
        ({"kind": "wsd", "warmup_steps": 50, "decay_steps": 51}, "decay_steps: 51"),
        ({"kind": "slanted_triangular", "warmup_steps": 1}, "warmup_steps: slanted_triangular has no warm-up"),
    ],
)
def test_refused(config, message):
    with pytest.raises(UserError, match=message):
        _make(**config).build(1.0, 100)


@pytest.mark.parametrize(("fraction", "total"), [(0.1, 100), (0.1, 1917), (0.1, 19), (0.29, 100), (0.1, 7), (0.0, 5)])
def test_slanted_triangular_is_the_released_rule(fraction, total):
    """fastai's `CircularLR` with `use_clr=(32, 10)`, a rate for each of the steps; it has no run without a rise."""
    cut = fractions.Fraction(str(fraction)) * total // 1

    def released(step):
        pct = step / cut if step <= cut and cut else 1 - (step - cut) / (total - cut)
        return 0.01 * (1 + pct * 31) / 32

    rate = _make("slanted_triangular", cut_fraction=fraction).build(0.01, total)
    found = [float(rate(step)) for step in range(total)]
    assert found == pytest.approx([float(released(step)) for step in range(total)], rel=1e-5)
    assert max(found) == pytest.approx(0.01) and found.index(max(found)) == cut
    if fraction * total == cut and cut:  # the paper's formula, of the fall
        paper = [0.01 * (1 + (1 - (t - cut) / (cut * (1 / fraction - 1))) * 31) / 32 for t in range(int(cut), total)]
        assert found[int(cut) :] == pytest.approx([float(x) for x in paper], rel=1e-5)


def test_slanted_triangular_of_five_epochs_of_ten_steps():
    """The paper's ratio 32 and cut 0.1: from 1/32 to the maximum in 5 steps, back in 45."""
    rates = [float(_make("slanted_triangular").build(1.0, 5 * 10)(step)) for step in range(5 * 10)]
    assert rates[0] == 0.03125 and rates[5] == max(rates) == 1.0
    assert rates == pytest.approx(np.interp(range(50), [0, 5, 50], [1 / 32, 1, 1 / 32]))


def test_t5_may_stay_constant_for_a_whole_short_run():
    assert float(_make("t5", warmup_steps=10_000).build(1.0, 100)(99)) == pytest.approx(0.01)


def test_examples_in_the_docstrings():
    assert doctest.testmod(schedules) == (0, 4)
