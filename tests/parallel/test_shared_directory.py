"""Hosts that share a directory work there after the first one; others at once. Real processes on loopback."""

import json
import time

import pytest

from tests.processes import run


def process(number, folder, own_directory, host):
    """Works for a second in a directory, as on a host of its own; notes when, and what it was told."""
    from jaxpt.config import DistributedConfig
    from jaxpt.parallel import processes, shared_directory

    shared_directory.socket.gethostname = lambda: host[number]
    processes.start(DistributedConfig())
    directory = folder / f"cache_{number if number in own_directory else 'shared'}" / "deep"
    said = []
    for point in ("one", "two"):
        with shared_directory.first_host_first(directory, point, 60.0, said.append) as apart:
            begun = time.time()
            time.sleep(1)
            ended = time.time()
    left = [path.name for path in directory.parent.rglob("*") if path.name != "deep"]
    (folder / f"{number}.json").write_text(json.dumps([begun, ended, apart, said, left]))


@pytest.mark.slow
def test_who_shares_a_directory_waits(tmp_path):
    hosts = ["a", "a", "b", "c"]
    codes, logs = run(process, 4, 1, tmp_path / "logs", tmp_path, (3,), hosts)
    assert codes == [0] * 4, logs
    found = [json.loads((tmp_path / f"{n}.json").read_text()) for n in range(4)]
    begun, ended, apart, said, left = zip(*found)
    assert begun[2] >= ended[0], "another host, the same directory"
    assert begun[1] < ended[0] and begun[3] < ended[0], "the same host has locks; and a directory of its own"
    assert apart == ([3],) * 4 and not any(left)
    line = f"waiting for process 0, which prepares {tmp_path}/cache_shared/deep for all hosts that share it"
    assert said == ([], [], [line] * 2, [])
