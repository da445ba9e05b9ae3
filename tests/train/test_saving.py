"""When a run saves besides every n steps: by the clock, and when it is asked to."""

import pytest

from jaxpt.config import CheckpointConfig
from jaxpt.runtime import signals
from jaxpt.train import saving


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the clock shows, in a list of one."""
    seconds = [0.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: seconds[0])
    signals.clear_save_request()
    yield seconds
    signals.clear_save_request()


def test_saves_by_the_clock(clock):
    saves, due = saving.SaveClock(CheckpointConfig(every_minutes=2.0), lambda wish: wish), []
    for step in range(1, 100):  # one step takes 10 s
        clock[0] += 10
        if saves.wish(step) == saving.SAVE:
            due.append(step)
            saves.saved(step)
    assert due == [13, 26, 39, 52, 65, 78, 91]


def test_never_by_the_clock_unless_asked(clock):
    saves = saving.SaveClock(CheckpointConfig(), lambda wish: wish)
    clock[0] = 1e9
    assert saves.wish(1) == 0
    signals.request_save()
    assert saves.wish(2) == saves.wish(3) == saving.SAVE  # until it is saved: an update may have been skipped
    saves.saved(3)
    assert saves.wish(5) == 0


def test_a_vote_that_comes_a_step_later_saves_once(clock):
    """With several processes the votes of a step are known after the next one."""
    under_way = [0]

    def votes(wish):
        under_way.append(wish)
        return under_way[-2]

    saves, saved = saving.SaveClock(CheckpointConfig(), votes), []
    for step in range(1, 8):
        if step == 3:
            signals.request_save()
        if saves.wish(step) == saving.SAVE:
            saved.append(step)
            saves.saved(step)
    assert saved == [4]


def test_a_stop_goes_before_a_save(clock, monkeypatch):
    signals.request_save()
    monkeypatch.setattr(signals, "received", lambda: 15)
    assert saving.SaveClock(CheckpointConfig(), lambda wish: wish).wish(1) == saving.STOP
