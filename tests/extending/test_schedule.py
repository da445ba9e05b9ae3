"""A schedule from outside: one file, named by its dotted path."""

import json

import pytest

RESTARTS = '''
"""Cosine with warm restarts. Paper: https://arxiv.org/abs/1608.03983"""

import jax.numpy as jnp

from jaxpt.config import PositiveInt, ScheduleConfig
from jaxpt.train.schedules import warmed_up


class Restarts(ScheduleConfig):
    """η·(1 + cos(π·p))/2, where p is the fraction of the current cycle that is done."""

    kind: str = "restarts"
    cycle: PositiveInt
    """Steps from one restart to the next."""

    def build(self, learning_rate, total_steps):
        def rate(step):
            return learning_rate * (1 + jnp.cos(jnp.pi * (step % self.cycle) / self.cycle)) / 2

        return warmed_up(self, learning_rate, total_steps, rate)
'''


def test_what_build_returns_is_checked(lab, capsys):
    kind = lab.module(
        "fixed", RESTARTS.replace("return warmed_up(self, learning_rate, total_steps, rate)", "return 0.1")
    )
    assert lab.train("run", optimizer={"schedule": {"kind": kind, "cycle": 2}}) == 2
    line = f"optimizer.schedule.kind: {kind}: build must return a function of the step, it returns 0.1"
    assert line in capsys.readouterr().err


@pytest.mark.slow
def test_it_trains_and_its_cycle_goes_on_in_a_resume_and_no_other_one(lab, capsys):
    schedule = {"kind": lab.module("restarts", RESTARTS), "cycle": 2, "warmup_steps": 1}
    optimizer = {"learning_rate": 0.01, "schedule": schedule}
    for steps in (2, 4):
        assert lab.train("run", f"train.steps={steps}", "train.log_every=1", optimizer=optimizer) == 0
    lines = [json.loads(line) for line in (lab.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}
    assert rates == pytest.approx({1: 0.0, 2: 0.01, 3: 0.005, 4: 0.01})  # warm-up, a cycle, a restart
    capsys.readouterr()
    other = optimizer | {"schedule": {**schedule, "cycle": 3}}
    assert lab.train("run", "train.steps=5", "train.log_every=1", optimizer=other) == 2
    assert "optimizer.schedule.cycle" in capsys.readouterr().err
