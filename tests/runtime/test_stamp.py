"""Lines of one of several processes begin with time and index; those of a process alone with neither."""

import doctest
import re
import subprocess
import sys

from jaxpt.runtime import stamp

PROGRAM = """
import logging, warnings
from jaxpt.runtime import stamp
stamp.set_process(3)
stamp.set_process(3)
print(stamp.stamped("one\\ntwo"))
warnings.warn("a warning")
logging.getLogger("some.library").warning("%d %s", 100, "%")
"""


def test_examples_in_the_docstrings():
    assert doctest.testmod(stamp).failed == 0


def test_lines_warnings_and_log_records_carry_the_index():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    at = r"\d\d-\d\d \d\d:\d\d:\d\d \[3\] "
    assert re.fullmatch(f"{at}one\n{at}two\n", done.stdout)
    lines = done.stderr.splitlines()
    assert re.fullmatch(f"{at}<string>:7: UserWarning: a warning", lines[0])
    assert lines[-1] == "[3] 100 %"
