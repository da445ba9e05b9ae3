"""Checkpoints on a host: what was saved comes back bit for bit, or an older one does, with a line."""

import functools
import math
import shutil

import jax
import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.config import CheckpointConfig
from jaxpt.errors import StorageError, UserError
from jaxpt.train import local_checkpoints, state
from tests import families
from tests.runs import assert_bit_equal


@functools.cache
def setup_on(**mesh):
    tree = families.tree("gpt2", mesh=mesh, model={"layers": 1}, data={"path": "none.txt"}, run_dir="none")
    return state.setup(configs.build(tree), jax.devices()[: math.prod(mesh.values())])


@functools.cache
def states(count, **mesh):
    """States of the steps 1 to `count`, which differ."""
    setup = setup_on(**mesh)
    add = jax.jit(lambda old, n: jax.tree.map(lambda x: x + n, old), out_shardings=setup.shardings)
    first = setup.init()
    return [add(first, n) for n in range(1, count + 1)]


def opened(folder, lines, run_id="1234"):
    config = CheckpointConfig(local_dir=str(folder), local_every=1)
    return local_checkpoints.LocalCheckpoints(config, run_id, lines.append)


@pytest.fixture
def saved(tmp_path):
    """(directory, lines) of a run that saved steps 1 to 4 and was killed while it wrote the fifth."""
    lines = []
    local = opened(tmp_path, lines)
    for current in states(4, data=4, fsdp=2):
        local.save(current, {"phase": 0, "step": int(current.step)})
    local.close()
    (tmp_path / "1234/process_0/.5.abc.partial").mkdir()
    return tmp_path, lines


def steps(folder):
    return sorted(path.name for path in (folder / "1234/process_0").iterdir())


def test_the_newest_state_comes_back_bit_for_bit(saved):
    folder, lines = saved
    assert steps(folder) == [".5.abc.partial", "2", "3", "4"]
    local = opened(folder, lines)
    assert steps(folder) == ["2", "3", "4"]
    current, meta = local.restore(lambda step: setup_on(data=4, fsdp=2), after=3)
    assert_bit_equal(current, states(4, data=4, fsdp=2)[3])
    assert meta == {"phase": 0, "step": 4} and lines == []
    placed = jax.tree.map(lambda x, y: x.sharding == y, current, setup_on(data=4, fsdp=2).shardings)
    assert all(jax.tree.leaves(placed))
    assert local.restore(lambda step: setup_on(data=4, fsdp=2), after=4) is None  # the run_dir has it, too
    local.forget()
    assert not (folder / "1234").exists()
    local.close()


def test_each_part_is_written_once(saved):
    folder, _ = saved
    size = (folder / "1234/process_0/4" / local_checkpoints.FILE).stat().st_size
    assert size == pytest.approx(state.size(setup_on(data=4, fsdp=2).shapes), rel=0.1)  # and the names


@pytest.mark.parametrize("damage", ["flipped", "cut off", "missing", "of another run", "of another step"])
def test_a_damaged_one_gives_way_to_the_one_before(saved, damage):
    folder, lines = saved
    directory = folder / "1234/process_0/4"
    content = bytearray((directory / local_checkpoints.FILE).read_bytes())
    if damage == "flipped":
        content[-1000] ^= 1
    if damage in ("flipped", "cut off"):
        (directory / local_checkpoints.FILE).write_bytes(content[: -1 if damage == "cut off" else None])
    elif damage == "missing":
        (directory / local_checkpoints.FILE).unlink()
    elif damage == "of another run":
        (folder / "1234").rename(folder / "5678")
    else:
        directory.rename(directory.with_name("7"))
    local = opened(folder, lines, "5678" if damage == "of another run" else "1234")
    found = local.restore(lambda step: setup_on(data=4, fsdp=2), after=1)
    assert "it is not used" in lines[0] and str(folder) in lines[0]
    if damage == "of another run":
        assert found is None
    else:
        assert_bit_equal(found[0], states(4, data=4, fsdp=2)[2])
        assert steps(folder) == ["2", "3"]  # what was not gone on from does not meet what will be saved
    local.close()


def test_a_step_before_is_found_on_a_host_with_many_processes(saved):
    """Each of them has the newest step, which is damaged."""
    folder, lines = saved
    file = folder / "1234/process_0/4" / local_checkpoints.FILE
    file.write_bytes(file.read_bytes()[:-1])
    for number in (1, 2, 3):
        shutil.copytree(folder / "1234/process_0", folder / f"1234/process_{number}")
    local = opened(folder, lines)
    current, _ = local.restore(lambda step: setup_on(data=4, fsdp=2), after=1)
    assert_bit_equal(current, states(4, data=4, fsdp=2)[2])
    assert all((folder / f"1234/process_{number}/3").is_dir() for number in range(4))
    local.close()


def test_changed_bits_that_the_file_vouches_for_are_found(tmp_path):
    lines = []
    local = opened(tmp_path, lines)
    local.save(states(1, data=4, fsdp=2)[0], {"digests": {"step": 12345}})
    local.wait()
    assert local.restore(lambda step: setup_on(data=4, fsdp=2), after=0) is None
    assert "step 1: step are not what was saved" in lines[0]
    local.close()


def test_other_meshes(saved):
    """Replicas may be more or fewer; arrays that are cut otherwise have no parts here."""
    folder, lines = saved
    local = opened(folder, lines)
    fewer, _ = local.restore(lambda step: setup_on(data=2, fsdp=2), after=3)
    assert_bit_equal(fewer, states(4, data=4, fsdp=2)[3])
    assert local.restore(lambda step: setup_on(data=2, fsdp=4), after=3) is None
    assert "step 4: " in lines[0] and "are on no host, or are cut otherwise" in lines[0]
    local.close()


def test_a_disk_without_room_is_said_and_the_run_goes_on(tmp_path, monkeypatch):
    lines = []
    local = opened(tmp_path, lines)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(StorageError, match=r"needs 0\.\d+ GB for process 0, 0.00 GB are free"):
        local.check_space(setup_on(data=4, fsdp=2))
    (tmp_path / "1234/process_0/1").mkdir()
    (tmp_path / "1234/process_0/1/in_the_way").touch()
    local.save(states(1, data=4, fsdp=2)[0], {})
    local.close()
    assert lines == [f"checkpoint.local_dir: {tmp_path}/1234/process_0: cannot save: File exists; the run goes on"]


def test_the_processes_of_a_host_share_its_disk(saved, tmp_path, monkeypatch):
    """Their parts have to fit together, beside those that are there and will go; another host has its own disk."""
    setup, usage = setup_on(data=4, fsdp=2), shutil.disk_usage(tmp_path)
    free = int(4.5 * state.size(setup.shapes))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    new, old = opened(tmp_path, [], "5678"), opened(tmp_path, [])
    new.check_space(setup)
    monkeypatch.setattr(local_checkpoints, "_gather", lambda row: np.stack([row, row[::-1], row]))
    with pytest.raises(StorageError, match=r"needs 0\.\d+ GB for process 0, 2, 0\.\d+ GB are free"):
        new.check_space(setup)
    old.check_space(setup)
    new.close()
    old.close()


def test_a_place_that_is_no_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"checkpoint\.local_dir: .*file: cannot write: "):
        opened(tmp_path / "file", [])


def test_names_of_parts():
    assert local_checkpoints.name_of("a", (), ()) == "a[]"
    x = np.zeros((8, 3))
    sharding = jax.sharding.NamedSharding(jax.make_mesh((4,), ("x",)), jax.sharding.PartitionSpec("x"))
    parts = local_checkpoints.parts_of({"a": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)})
    assert parts == {f"a[{n}:{n + 2},0:3]": frozenset([0]) for n in (0, 2, 4, 6)}
