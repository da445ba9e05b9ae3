"""Hosts that share a directory work there after the first one; others at once. Real processes on loopback."""

import json

import pytest

from tests.parallel import forks
from tests.processes import free_port

PROGRAM = """
import json, os, sys, time
from pathlib import Path
from jaxpt.config import DistributedConfig
from jaxpt.parallel import processes

directory, host = Path(sys.argv[1]), sys.argv[2]
processes.socket.gethostname = lambda: host
processes.start(DistributedConfig())
said = []
for turn, point in enumerate(("one", "two", "two")):  # the last as a second run in these processes does
    with processes.first_host_first(directory, point, 300.0, said.append) as apart:
        begun = time.time()
        marks = [directory.parents[1] / f"begun-{turn}-{process}" for process in range(4)]
        marks[int(os.environ["JAXPT_PROCESS"])].touch()
        while os.environ["JAXPT_PROCESS"] == "0" and not (marks[1].exists() and marks[3].exists()):
            assert time.time() < begun + 120, "they wait for process 0"
            time.sleep(0.01)
        ended = time.time()
with processes.first_host_first(Path(sys.argv[3]), "three", 300.0, said.append) as nobody:
    apart = apart + nobody
left = [path.name for path in directory.parent.rglob("*") if path.name != "deep"]
print(json.dumps([begun, ended, apart, said, left]))
"""
"""Works in a directory, as on a host of its own; process 0 until 1 and 3 work, too. It notes when, and what it was
told. At last it works in a directory that cannot be made."""


@pytest.mark.slow
def test_who_shares_a_directory_waits(tmp_path):
    shared = {"JAXPT_COORDINATOR": f"localhost:{free_port()}", "JAXPT_PROCESSES": "4"}
    places = [(tmp_path / f"cache_{name}" / "deep", host) for name, host in zip(["shared"] * 3 + ["own"], "aabc")]
    (tmp_path / "file").touch()
    no_directory = str(tmp_path / "file" / "cache")
    group = [
        (PROGRAM, [str(directory), host, no_directory], {**shared, "JAXPT_PROCESS": str(number)})
        for number, (directory, host) in enumerate(places)
    ]
    imported = "jaxpt.config", "jaxpt.parallel.processes"
    (four,) = forks.run(imported, [group], tmp_path, XLA_FLAGS="")
    assert [one.code for one in four] == [0] * 4, four
    found = [json.loads(one.out) for one in four]
    begun, ended, apart, said, left = zip(*found)
    assert begun[2] >= ended[0], "another host, the same directory"
    assert begun[1] < ended[0] and begun[3] < ended[0], "the same host has locks; and a directory of its own"
    assert apart == ([3],) * 4 and not any(left), "and nobody is apart where process 0 can prepare nothing"
    line = f"waiting for process 0, which prepares {tmp_path}/cache_shared/deep for all hosts that share it"
    assert said == ([], [], [line] * 3, []), "nobody waits for what cannot be made"
