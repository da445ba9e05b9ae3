"""What jaxpt takes of JAX behind its public names is there, and is taken in one file alone."""

import importlib
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpt.parallel import private
from tests.processes import free_port

ROOT = Path(__file__).parents[2]
EXEMPT = {"jaxpt/parallel/private.py", "jaxpt/plan/gpus.py"}
"""Tracing cuDNN's attention without a GPU has no public way."""


def test_no_other_file_reaches_behind_public_names():
    """A file that does so breaks with versions of JAX that nothing here names."""
    private_names = re.compile(r"\bjax\._src\b|\bjaxlib\._jax\b|from jaxlib import _|import jaxlib")
    files = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in (ROOT / "jaxpt").rglob("*.py")}
    assert {file for file, text in files.items() if private_names.search(text)} == EXEMPT


def test_the_coordinators_keys_are_there():
    """Without them no process says which other one is missing, is gone, or has failed (`processes`, `failures`)."""
    assert private.coordination().client is None, "no run of several processes"
    module = importlib.import_module(private.SERVICE_MODULE)
    client = module.DistributedRuntimeClient
    for name in ("key_value_set", "key_value_try_get", "key_value_dir_get", "blocking_key_value_get"):
        assert callable(getattr(client, name)), name


CALLED = """
import importlib
import jax
from jaxpt.parallel import private
from tests.processes import free_port

module, made = importlib.import_module(private.SERVICE_MODULE), []
own = getattr(module, private.SERVICE)

class Coordinator:
    def __init__(self, address, nodes, **options):
        made.append((nodes, options["heartbeat_timeout"]))
        raise KeyError

private.Coordinator = Coordinator
try:
    with private.outliving_coordinator():
        jax.distributed.initialize("127.0.0.1:12345", 3, 0, heartbeat_timeout_seconds=7)
except KeyError:
    print(made, getattr(module, private.SERVICE) is own)
"""


def test_the_service_is_where_jax_looks_for_it():
    """Otherwise the coordinator would end with process 0, and all others with a stack trace."""
    done = subprocess.run([sys.executable, "-c", CALLED], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[(3, 7)] True\n", done.stderr


def test_a_coordinator_that_cannot_listen_says_why():
    """JAX's own crashes at some of these times."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        for address in (f"[::]:{port}", f"127.0.0.1:{port}"):  # the first as JAX gives it
            with pytest.raises(RuntimeError, match=r"^process 0 cannot listen there: Address already in use\b[^\n]*$"):
                private.Coordinator(address, 2, heartbeat_timeout=100)
    with pytest.raises(RuntimeError, match=r"^process 0 cannot listen there: Cannot assign requested address\b[^\n]*$"):
        private.Coordinator(f"192.0.2.1:{port}", 2, heartbeat_timeout=100)  # of another machine


def test_a_coordinator_that_ends_without_a_word_is_said(monkeypatch):
    monkeypatch.setattr(private, "_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match=r"^the coordinator's process ended$"):
        private.Coordinator(f"[::]:{free_port()}", 2, heartbeat_timeout=100)


def test_a_coordinator_ends_when_it_is_told(monkeypatch):
    """Its port is free then; until then it is taken."""
    address = f"[::]:{free_port()}"
    coordinator = private.Coordinator(address, 2, heartbeat_timeout=100)
    with pytest.raises(RuntimeError, match="Address already in use"):
        private.Coordinator(address, 2, heartbeat_timeout=100)
    coordinator.shutdown()
    assert coordinator._process.returncode == 0
    private._listen(address)
