"""A run_dir belongs to one process at a time."""

import os
import socket
import subprocess
import sys

import pytest

from jaxpt.errors import UserError
from jaxpt.train.lock import hold

HOLDER = """
import sys, time
from pathlib import Path
from jaxpt.train.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_another_process_is_named_and_its_death_frees_the_directory(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        words = f"process {holder.pid} on {socket.gethostname()} is running there"
        with pytest.raises(UserError, match=words), hold(tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
    with hold(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} ")
    with hold(tmp_path):  # and again in the same process
        pass
