"""Waits for an event. A loaded machine takes long: the limit is that of a hang, and no test measures a wall time."""

import time

LIMIT = 120.0
"""Seconds after which what is waited for will not come any more."""


def until(condition):
    """What `condition()` gives as soon as that is true."""
    end = time.monotonic() + LIMIT
    while not (value := condition()):
        assert time.monotonic() < end, "what this test waits for does not come"
        time.sleep(0.01)
    return value
