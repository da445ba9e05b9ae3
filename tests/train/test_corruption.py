"""Digests find every flipped bit: of one replica, of a step that is done twice, and between a save and its restore."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.train import corruption, loop, programs, state
from tests import families


def of_numpy(x):
    """The definition, in Python's integers."""
    bits = np.ascontiguousarray(x).view(f"u{min(x.dtype.itemsize, 4)}").ravel().astype(object)
    return sum(int(b) * (2 * i + 1) for i, b in enumerate(bits)) % 2**32


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16, np.uint8, bool])
def test_the_digest_is_its_definition(dtype):
    x = np.random.default_rng(0).normal(0, 50, (3, 5, 7)).astype(np.float32).astype(dtype)
    assert int(corruption.digest(jnp.asarray(x))) == of_numpy(x)
    assert int(corruption.digest(jnp.asarray(x[0, 0, 0]))) == of_numpy(x[:1, 0, 0])


@pytest.mark.gpu
def test_every_flipped_bit_changes_the_digest():
    rng, digest = np.random.default_rng(0), jax.jit(corruption.digest)
    x = rng.normal(size=(11, 13)).astype(np.float32)
    before = int(digest(x))
    for _ in range(200):
        bits = x.copy().view(np.uint32).ravel()
        bits[rng.integers(bits.size)] ^= np.uint32(1) << np.uint32(rng.integers(32))
        assert int(digest(bits.view(np.float32).reshape(x.shape))) != before


@functools.cache
def placed(**mesh):
    """A setup and its first state, on 8 devices."""
    tree = families.tree("gpt2", mesh=mesh, model={"layers": 1}, data={"path": "none.txt"}, run_dir="none")
    setup = state.setup(configs.build(tree))
    return setup, setup.init()


def flipped(current, setup, device, name="model/token_embed", bit=0):
    """The state with a bit of one weight, the lowest one, changed in what one device holds of it."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(current)
    arrays = []
    for path, x in leaves:
        if name in jax.tree_util.keystr(path, simple=True, separator="/") and x.ndim:
            shards = []
            for shard in x.addressable_shards:
                local = np.array(shard.data)
                if shard.device == device:
                    local.view(np.uint32).ravel()[3] ^= np.uint32(1 << bit)
                shards.append(jax.device_put(local, shard.device))
            x = jax.make_array_from_single_device_arrays(x.shape, x.sharding, shards)
            name = "no other"
        arrays.append(x)
    return jax.tree.unflatten(tree, arrays)


@pytest.mark.parametrize("mesh", [{"data": 8}, {"data": 4, "fsdp": 2}])
def test_a_replica_with_a_flipped_bit_is_named(mesh):
    setup, current = placed(**mesh)
    device = setup.mesh.devices.ravel()[5]
    with setup.use():
        local_digests = corruption.make_local_digests(setup)
        assert corruption.disagreeing(setup, jax.device_get(local_digests(current))) == {}
        odd = corruption.disagreeing(setup, jax.device_get(local_digests(flipped(current, setup, device))))
    assert list(odd) == [device] and len(odd[device]) == 1 and "token_embed" in odd[device][0]


def test_of_two_that_differ_both_are_named_and_sharded_parts_are_no_replicas():
    setup, current = placed(data=2, fsdp=4)
    device = setup.mesh.devices.ravel()[5]
    with setup.use():
        values = jax.device_get(corruption.make_local_digests(setup)(flipped(current, setup, device)))
    odd = corruption.disagreeing(setup, values)
    (name,) = odd[device]
    leaf = next(
        x
        for path, x in jax.tree_util.tree_leaves_with_path(current)
        if name in jax.tree_util.keystr(path, simple=True, separator="/")
    )
    index = leaf.sharding.devices_indices_map(leaf.shape)
    assert set(odd) == {other for other in index if index[other] == index[device]} and len(odd) == 2
    assert corruption.has_replicas(setup)


def test_the_digest_of_a_state_does_not_depend_on_the_mesh():
    digests = [
        np.asarray(jax.jit(corruption.digests)(placed(**mesh)[1])) for mesh in ({"data": 8}, {"data": 2, "fsdp": 4})
    ]
    np.testing.assert_array_equal(*digests)
    _, current = placed(data=8)
    saved = corruption.named(current, digests[0])
    assert corruption.changed(saved, current) == corruption.changed({}, current) == []
    other = current.replace(params=jax.tree.map(lambda x: x.at[(0,) * x.ndim].add(1e-3), current.params))
    assert set(corruption.changed(saved, other)) == {name for name in saved if name.startswith("params/")}


# ---- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def train(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("".join(f"document number {i} says that the cat sat\n" for i in range(60)))
    data = {"path": str(tmp_path / "text.txt"), "cache_dir": str(tmp_path / "cache"), "length": 16, "batch_size": 8}
    tree = families.tree(
        "gpt2", model={"vocab_size": 300, "layers": 1}, data=data, mesh={"data": 8}, log={"tensorboard": False},
        train={"steps": 8, "check_replicas_every": 4}, evals=[], checkpoint={"every": 3, "keep_last": 9},
    )  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))

    def run(*overrides):
        code = cli.main(["train", str(tmp_path / "recipe.yaml"), f"run_dir={tmp_path / 'run'}", *overrides])
        said = capsys.readouterr()
        return code, " ".join((said.out + said.err).split())

    return run


@pytest.mark.slow
def test_runs_that_meet_a_flipped_bit(train, tmp_path, monkeypatch):
    """In a replica, in a step that is done twice, between the last save and its restore, and so high that the loss is
    not finite any more: all are mended."""
    build, when = programs.build, {"replica": 5, "again": 2}

    def spoiled_build(setup, phase):
        made = build(setup, phase)

        def spoiled(current, *rest):
            step, (new, figures) = int(current.step) + 1, made.train(current, *rest)
            calls.append(step)
            kinds = [kind for kind, at in when.items() if at == step]
            if kinds and (kinds[0] != "again" or calls.count(step) == 2):
                del when[kinds[0]]
                new = flipped(new, setup, jax.devices()[6], bit=30 if kinds == ["nan"] else 0)
            return new, figures

        return made._replace(train=spoiled)

    calls = []
    monkeypatch.setattr(programs, "build", spoiled_build)
    code, said = train("train.recompute_every=2")
    assert code == 75 and "step 2: process 0, device 6 (cpu): a step gave other bits the second time in params/" in said
    code, said = train()
    assert code == 75 and "step 6: process 0, device 6 (cpu): its replica differs from the others in params/" in said
    assert "its newest checkpoint, of step 3, is from before" in said  # that of step 6 was not saved
    named = corruption.named
    monkeypatch.setattr(corruption, "named", lambda current, values: named(current, values + (int(current.step) == 8)))
    code, said = train()
    assert code == 0 and "resuming from step 3" in said
    monkeypatch.setattr(corruption, "named", named)
    code, said = train()
    assert code == 0 and "are not what was saved: their digests differ; put aside as 8.damaged" in said
    assert "resuming from step 6" in said
    when["nan"] = 9
    code, said = train("train.steps=30", "train.check_replicas_every=30", "checkpoint.every=30", "train.log_every=1")
    assert code == 75 and "step 10: process 0, device 6 (cpu): its replica differs" in said
    assert "update(s) skipped" in said


def on(platform, config, **_):
    """What stands for a setup on another platform: its first device is known, and nothing else."""
    devices = types.SimpleNamespace(flat=[types.SimpleNamespace(platform=platform)])
    return types.SimpleNamespace(config=config, mesh=types.SimpleNamespace(devices=devices), teachers={})


def test_a_step_is_run_twice_where_it_gives_the_same_bits():
    twice, again = {"recompute_every": 5}, "train.recompute_every: on GPUs .* with train.deterministic=true"
    for platform, settings in (("cpu", twice), ("gpu", {}), ("gpu", {**twice, "deterministic": True})):
        corruption.check(on(platform, families.config("gpt2", train=settings)))
    with pytest.raises(UserError, match=again):
        corruption.check(on("gpu", families.config("gpt2", train=twice)))


def test_that_it_does_not_is_said_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "setup", functools.partial(on, "gpu"))
    (tmp_path / "a.txt").write_text("the cat sat\n" * 20)
    data, run_dir = {"path": str(tmp_path / "a.txt")}, tmp_path / "run"
    with pytest.raises(UserError, match=r"train\.recompute_every: on GPUs"):
        loop.train(families.config("gpt2", run_dir=str(run_dir), data=data, train={"recompute_every": 5}))
    assert not run_dir.exists()
