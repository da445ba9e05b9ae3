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
    clock.add({"steps": 100.0})  # of earlier starts, at another pace
    clock.begin(10)
    clock.switch("steps")
    now[0] = 40.0
    clock.beat(50)
    clock.lose_steps(40)
    assert clock.seconds() == pytest.approx(dict.fromkeys(goodput.ACTIVITIES, 0.0) | {"steps": 130.0, "lost": 10.0})
    now[0] = 41.0  # a second rewind, to before the first: step 41 and those from 21 on, at the pace of step 41
    clock.beat(41)
    clock.lose_steps(20)
    assert clock.seconds()["lost"] == pytest.approx(31.0)


def test_a_killed_process_counts_by_its_last_heartbeat(tmp_path):
    """It began at step 10 and was at 50 when it was killed; the next one resumes from 40, 7 s later."""
    assert goodput.of_killed(tmp_path, 0.0, 0) == {}
    seconds = {"start": 5.0, "steps": 480.0, "lost": 1.0}
    facts = {"time": 1000.0, "step": 50, "first_step": 10, "first_seconds": 400.0, "seconds": seconds}
    (tmp_path / goodput.HEARTBEAT).write_text(json.dumps(facts))
    killed = goodput.of_killed(tmp_path, 1007.0, 40)
    assert {name: x for name, x in killed.items() if x} == {"start": 5.0, "steps": 460.0, "lost": 21.0, "down": 7.0}
    for torn in ("", "[]", json.dumps(facts)[:40], json.dumps(facts | {"step": None})):
        (tmp_path / goodput.HEARTBEAT).write_text(torn)
        assert goodput.of_killed(tmp_path, 1007.0, 40) == {}


def test_parts_sum_to_the_wall_time_over_kills(tmp_path):
    """Steps of 0.25 s, a checkpoint every 8, a heartbeat every second; killed at random moments, 5 s until the next
    start, which takes 3 s. What is lost are the steps after the checkpoint; at most a second is counted as down."""
    rng, now, resumed, earlier, killed = random.Random(0), [50.0], 0, {}, 0
    lost = []
    while resumed < 400:
        begun = now[0]
        clock = goodput.Clock(begun, now=lambda: now[0])
        clock.add(goodput.of_killed(tmp_path, begun, resumed))
        clock.begin(resumed)
        now[0] += 3.0
        clock.switch("steps")
        end = min(resumed + rng.randint(20, 90), 400)
        for step in range(resumed + 1, end + 1):
            now[0] += 0.25
            clock.beat(step)
            if step % 4 == 0:
                facts = {"time": now[0], "step": step, "first_step": clock.first_step, "seconds": clock.seconds()}
                facts["first_seconds"] = clock.first_seconds
                (tmp_path / goodput.HEARTBEAT).write_text(json.dumps(facts))
        earlier, resumed = clock.seconds(), end - end % 8
        if resumed < 400:
            lost.append(0.25 * (end - resumed))
            killed += 1
            now[0] += 5.0
    assert killed >= 5 and sum(earlier.values()) == pytest.approx(now[0] - 50.0)
    assert earlier["start"] == pytest.approx(3.0 * (killed + 1))
    assert 0 <= sum(lost) - earlier["lost"] < killed
    assert earlier["steps"] == pytest.approx(0.25 * 400)
    assert earlier["lost"] + earlier["down"] == pytest.approx(sum(lost) + 5.0 * killed)
