"""Limits of the system under which libraries crash: said before they are loaded."""

import subprocess
import sys

import pytest

from jaxpt.runtime import limits

PROGRAM = """
import resource, sys
resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]),) * 2)
from jaxpt.runtime import limits
from jaxpt.errors import UserError
try:
    limits.check()
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(("name", "command"), [("RLIMIT_AS", "ulimit -v"), ("RLIMIT_DATA", "ulimit -d")])
def test_too_little_address_space_is_said(name, command):
    for size, words in ((1_500_000_000, f"{command}: the "), (limits.MIN_BYTES, "")):
        argv = [sys.executable, "-c", PROGRAM, name, str(size)]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert said.startswith(words) and bool(said) == bool(words)
        assert not words or ("limited to 1.5 GB" in said and f"{command} unlimited" in said)
