"""Two processes write what one writes. Real processes on loopback."""

import json
from dataclasses import replace

import jax
import pytest

from jaxpt.config import DistributedConfig, MeshConfig
from jaxpt.decode.engine import Engine
from jaxpt.decode.programs import Place
from jaxpt.parallel import mesh as meshes
from jaxpt.parallel import processes
from tests.decode.test_engine import SAMPLED, generated, model, prompts
from tests.processes import run

SIZES = {"heads": 4, "embed_dim": 32, "layers": 1}
OPTIONS = replace(SAMPLED, samples=1, eos=tuple(range(40, 60)))
MESHES = {"gpt2": {"data": 2, "tensor": 2}}


def written(name, place):
    """The texts of four rows at a time, filled anew; some end early."""
    engine = Engine(*model(name, **SIZES), place, batch_size=4)
    return [[*owner, one.tokens] for owner, one in sorted(generated(engine, prompts(name), OPTIONS).items())]


def process(number, folder):
    processes.start(DistributedConfig())
    for name, sizes in MESHES.items():
        found = written(name, Place(meshes.make(MeshConfig(**sizes), jax.devices())))
        (folder / f"{name}-{number}.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_two_processes_write_what_one_writes(tmp_path):
    """Rows over the processes, heads within each; every process has all texts."""
    codes, logs = run(process, 2, 2, tmp_path / "run", tmp_path)
    assert codes == [0, 0], logs
    for name in MESHES:
        wanted = written(name, Place())
        assert len({len(tokens) for *_, tokens in wanted}) > 1
        for number in range(2):
            assert json.loads((tmp_path / f"{name}-{number}.json").read_text()) == wanted
