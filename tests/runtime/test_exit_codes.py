"""Exit codes part what a launcher runs again from what a person has to mend."""

import errno
import re
from pathlib import Path

import pytest

from jaxpt.errors import AlreadySaid, DivergedError, RetryableError, StorageError, UserError
from jaxpt.runtime import exit_codes

ROOT = Path(__file__).parents[2]


def raised_from(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("train.stepz: no such key"), 2),
        (RetryableError("process 1 is gone"), 75),
        (StorageError("no room"), 74),
        (DivergedError("not finite"), 65),
        (AlreadySaid(75), 75),
        (AlreadySaid(), 2),
        (FileNotFoundError(errno.ENOENT, "no"), 2),
        (PermissionError(errno.EACCES, "no"), 2),
        (OSError(errno.EDQUOT, "quota"), 74),
        (OSError(errno.ESTALE, "stale file handle"), 75),
        (raised_from(UserError("cannot save"), ValueError("x [OS error 28: ENOSPC No space left on device]")), 74),
        (raised_from(UserError("cannot save"), OSError(errno.EIO, "I/O")), 75),
        (raised_from(RetryableError("late"), OSError(errno.ENOSPC, "full")), 75),  # its own class says more
        (MemoryError(), 2),
        (KeyError("a bug"), 1),
    ],
    ids=repr,
)
def test_code_of_an_error(error, code):
    assert exit_codes.of(error) == code
    assert code in exit_codes.MEANINGS


def test_the_page_and_the_help_have_every_code():
    page = (ROOT / "jaxpt/train/README.md").read_text("utf-8")
    rows = dict(re.findall(r"(?m)^\| (\d+) \| (.*) \|$", page))
    assert rows == {str(code): f"{what} | {action}" for code, (what, action) in exit_codes.MEANINGS.items()}
    assert all(f"  {code} " in exit_codes.table() for code in exit_codes.MEANINGS)
