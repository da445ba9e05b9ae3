"""The process that trains a study's fine-tunings."""

import select
import subprocess
import sys

import pytest

from jaxpt.study.finetunings import END
from tests.waiting import LIMIT

STUDY = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-m", "jaxpt.cli.children", "train"])
time.sleep(300)
"""


@pytest.mark.slow
def test_it_ends_with_the_study_that_is_killed():
    """It would hold the run that the next study wants to go on with."""
    study = subprocess.Popen([sys.executable, "-c", STUDY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    study.stdin.write('["schema", "--help"]\n')
    study.stdin.flush()
    said = list(iter(study.stdout.readline, f"{END}0\n"))  # the worker has begun, and waits for more
    assert "usage: jaxpt schema" in said[0]
    study.kill()
    ready, _, _ = select.select([study.stdout], [], [], LIMIT)
    assert ready and study.stdout.read() == ""  # nobody writes there any more, though there was more to be read
    study.stdin.close()
    study.wait()
