"""Jobs run as many at once as there are slots, after what they need; an error waits for the others."""

import doctest
import threading

import pytest

from jaxpt.study import children, failures
from tests.waiting import LIMIT


@pytest.mark.parametrize("module", [children, failures], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


def test_the_exit_code_of_a_process():
    """One that a signal ended can be run again; a code that is none of jaxpt's is as a traceback's."""
    codes = {0: 0, 2: 2, 65: 65, 74: 74, 75: 75, 1: 1, 3: 1, -9: 75, 143: 75}
    assert {code: failures.of_process(code, []).code for code in codes} == codes


def test_jobs_run_at_once_and_after_those_that_they_need():
    together, order, lent = threading.Barrier(2, timeout=LIMIT), [], []

    def job(name, slot):
        if name != "c":
            together.wait()  # fails unless both run at once
        order.append(name)
        lent.append(slot)
        return True

    children.in_parallel([("a", []), ("c", ["a", "b"]), ("b", [])], job, ["0", "1"])
    assert order[-1] == "c" and set(lent) == {"0", "1"}


def test_nothing_is_started_after_a_job_that_ends_all_or_an_error():
    started = []
    children.in_parallel([("a", []), ("b", [])], lambda name, _: started.append(name), [None])
    assert started == ["a"]

    def fail(name, slot):
        started.append(name)
        raise children.Stopped

    with pytest.raises(children.Stopped):
        children.in_parallel([("c", []), ("d", [])], fail, [None])
    assert started == ["a", "c"]


def test_no_jobs_need_no_slots():
    children.in_parallel([], lambda name, slot: pytest.fail("no job was given"), [])


def test_a_process_of_a_device_sees_no_other():
    assert {children.environment("3")[name] for name in children.VISIBLE} == {"3"}
