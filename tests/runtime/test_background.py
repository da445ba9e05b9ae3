"""Threads that work beside a run end with it, and those of no run with the program."""

import threading

import pytest

from jaxpt.runtime import background
from tests.waiting import LIMIT, until


def test_the_threads_of_a_run_end_with_it():
    """Those of another one, or of the program, go on."""
    ended = []

    def work(scope, name):
        with pytest.raises(background.Stopped):
            until(scope.check)
        ended.append(name)

    outer = background.Scope()
    outer.start(lambda: work(outer, "outer"), "outer")
    assert background.current() is background.program
    with pytest.raises(KeyError), background.scope():
        inner = background.current()
        inner.start(lambda: work(inner, "inner"), "inner")
        with background.scope():
            assert background.current() is not inner
        assert not ended and not inner.is_ended
        raise KeyError
    assert ended == ["inner"] and background.current() is background.program and not outer.is_ended
    outer.end()
    assert ended == ["inner", "outer"]


def test_a_thread_that_does_not_ask_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(background, "_PATIENCE", 0.0)
    gate = threading.Event()
    with background.scope():
        background.current().start(lambda: gate.wait(LIMIT), "deaf")
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "deaf")
    gate.set()
    thread.join()
