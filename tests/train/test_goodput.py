"""Where the wall time of a run goes: the parts sum to the whole, also over kills and rewinds."""

import json
import random

import pytest

from jaxpt.train import goodput


def test_parts_sum_to_the_time_whatever_happens():
    rng, now = random.Random(0), [100.0]
    clock = goodput.Clock(100.0, now=lambda: now[0])
    for step in range(200):
        now[0] += rng.random()
        if rng.random() < 0.3:
            with clock.during(rng.choice(["saves", "evaluation", "data"])):
                now[0] += rng.random()
        else:
            clock.switch("steps")
        clock.beat(step)
        if rng.random() < 0.1:
            clock.move(rng.random(), "steps", "data")
        if rng.random() < 0.05:
            clock.lose_steps(max(step - 5, 0))
        assert sum(clock.seconds().values()) == pytest.approx(now[0] - 100.0)
        assert min(clock.seconds().values()) >= 0


def test_lost_steps_are_their_share_of_the_steps():
    now = [0.0]
    clock = goodput.Clock(0.0, now=lambda: now[0])
    clock.first_step = clock.step = 10
    clock.switch("steps")
    now[0] = 40.0
    clock.beat(50)
    clock.lose_steps(40)
    assert clock.seconds() == pytest.approx(dict.fromkeys(goodput.ACTIVITIES, 0.0) | {"steps": 30.0, "lost": 10.0})


def test_a_killed_process_counts_by_its_last_heartbeat(tmp_path):
    """It began at step 10 and was at 50 when it was killed; the next one resumes from 40, 7 s later."""
    assert goodput.of_killed(tmp_path, 0.0, 0) == {}
    seconds = {"start": 5.0, "steps": 80.0, "lost": 1.0}
    facts = {"time": 1000.0, "step": 50, "first_step": 10, "seconds": seconds}
    (tmp_path / goodput.HEARTBEAT).write_text(json.dumps(facts))
    killed = goodput.of_killed(tmp_path, 1007.0, 40)
    assert {name: x for name, x in killed.items() if x} == {"start": 5.0, "steps": 60.0, "lost": 21.0, "down": 7.0}
    for torn in ("", "[]", json.dumps(facts)[:40], json.dumps(facts | {"step": None})):
        (tmp_path / goodput.HEARTBEAT).write_text(torn)
        assert goodput.of_killed(tmp_path, 1007.0, 40) == {}
