"""What jaxpt takes of JAX behind its public names is there, and is taken in one file alone."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

from jaxpt.parallel import private

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
