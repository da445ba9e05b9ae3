"""Locks are held by one at a time; an error's number is found wherever it stands."""

import doctest
import errno

from jaxpt import disk


def test_docstrings():
    assert doctest.testmod(disk).failed == 0


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with path.open() as first, path.open() as second:
        assert disk.lock(first.fileno()) and not disk.lock(second.fileno())
        first.close()
        assert disk.lock(second.fileno())


def test_a_full_disk_is_told_from_other_errors():
    assert disk.full(OSError(errno.ENOSPC, "no space")) == disk.full(ValueError("[OS error 28: ENOSPC]"))
    assert disk.full(PermissionError(errno.EACCES, "no")) is None
    assert disk.full(ValueError("x")) is None and disk.error_number(OSError("timed out")) is None
