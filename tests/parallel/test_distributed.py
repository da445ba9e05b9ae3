"""Rows of a batch by the devices that hold them, and how a process joins others. See also tests/train/test_elastic."""

import jax
import numpy as np
import pytest

from jaxpt.config import DistributedConfig, MeshConfig
from jaxpt.errors import UserError
from jaxpt.parallel import distributed
from jaxpt.parallel import mesh as meshes


@pytest.mark.parametrize("sizes", [{"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"tensor": 8, "data": 1}])
def test_one_process_makes_all_rows(sizes):
    mesh = meshes.make(MeshConfig(**sizes), jax.devices()[:8])
    assert distributed.rows(mesh, 16).tolist() == list(range(16))
    batch = {"x": np.arange(48).reshape(16, 3), "y": np.arange(16.0)}
    placed = distributed.put(batch, mesh, 16)
    for name, x in batch.items():
        np.testing.assert_array_equal(np.asarray(placed[name]), x)
        assert placed[name].sharding.shard_shape(x.shape)[0] == 16 // (sizes["data"] * sizes.get("fsdp", 1))


def test_alone_a_process_agrees_with_itself():
    agreed = distributed.Agreement(meshes.make(MeshConfig(), jax.devices()[:8]))
    assert [agreed(wish) for wish in (False, True, False)] == [False, True, False]


def test_alone_there_is_nothing_to_join():
    distributed.start(DistributedConfig())
    assert not jax.distributed.is_initialized()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"processes": 2}, r"distributed\.process is missing: .* or JAXPT_PROCESS"),
        ({"process": 0}, r"distributed\.processes is missing"),
        ({"processes": 2, "process": 2}, r"distributed\.process: 2 is none of 0 … 1"),
    ],
)
def test_what_is_missing_is_named(settings, words):
    with pytest.raises(UserError, match=words):
        distributed.start(DistributedConfig(coordinator="localhost:1", **settings))


def test_the_environment_is_asked(monkeypatch):
    monkeypatch.setenv("JAXPT_COORDINATOR", "localhost:1")
    monkeypatch.setenv("JAXPT_PROCESSES", "two")
    monkeypatch.setenv("JAXPT_PROCESS", "0")
    with pytest.raises(UserError, match="whole numbers"):
        distributed.start(DistributedConfig())
