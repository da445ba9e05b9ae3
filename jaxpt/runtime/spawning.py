"""Spawned processes that import what they are sent, and not the script that is running."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType


@contextlib.contextmanager
def without_script() -> Iterator[None]:
    """Keeps processes that are started within it from importing the script that is running.

    `multiprocessing` has each of them import it, for what is defined there. A script without `if __name__ ==
    "__main__":` would run again in every one of them, and wait there for the work that they were started for.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
