"""Weights of a checkpoint are read only when it is whole, its own run's, and of the model in config.yaml."""

import dataclasses
import functools
import os
import shutil

import jax
import numpy as np
import pytest
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.config import CheckpointConfig, InitConfig
from jaxpt.errors import StorageError, UserError
from jaxpt.hf import convert
from jaxpt.train import initial, run_dir, state, teachers, weights
from tests import families
from tests.hf.test_directory import fresh
from tests.train.test_checkpoint import flip, largest

QUIET = {"report": lambda line: None}


def write(path, **changed):
    """A run_dir of a small BERT with weights alone; returns its parameters."""
    path.mkdir()
    config = families.config("bert", run_dir=str(path), objective={"next_sentence": False})
    run_dir.save_config(config)
    network, params = fresh(families.network(config))
    flat = traverse_util.flatten_dict(params, sep="/") | changed
    weights.write(path, network, {p: x.dtype for p, x in flat.items()}, ((p, None, x) for p, x in flat.items()))
    return flat


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(run_dir, its parameters)"""
    path = tmp_path_factory.mktemp("written") / "run"
    return path, write(path)


@pytest.fixture
def source(written, tmp_path):
    return shutil.copytree(written[0], tmp_path / "run")


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    network = families.network(families.config("bert", objective={"next_sentence": False}))
    no_room = os.statvfs_result((4096, 4096, 100, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: no_room)
    with pytest.raises(StorageError, match=r"the weights take [0-9,]+ bytes, the disk has 0 left") as caught:
        weights.write(tmp_path, network, {}, iter(()))
    assert caught.value.exit_code == 74 and not [*tmp_path.iterdir()]


def export(source):
    """The parameters that a reader takes, here all: those of the directory that it makes."""
    convert.export(source, source.parent / "out", **QUIET)
    return dict(weights.open_weights(source.parent / "out", partial=True)[0])


@functools.cache
def setup_of(**sections):
    return state.setup(families.config("bert", objective={"next_sentence": False}, **sections), jax.devices()[:1])


def start(source, **checkpoint):
    """Those of the state that it begins with."""
    setup, options = setup_of(), InitConfig(path=str(source), partial=True)
    changed = setup.config.model_copy(update={"checkpoint": CheckpointConfig(**checkpoint)})
    made = initial.start(dataclasses.replace(setup, config=changed), options, lambda line: None)
    return traverse_util.flatten_dict(jax.device_get(made.params), sep="/")


@functools.cache
def student():
    task = {"kind": "masked_lm", "next_sentence": False}
    tree = families.tree("bert") | {"objective": {"kind": "distillation", "teacher": "TEACHER", "of": task}}
    return state.setup(configs.build(tree), jax.devices()[:1])


def teach(source):
    """Those of the teacher."""
    setup = student()
    objective = setup.config.objective.model_copy(update={"teacher": str(source)})
    changed = setup.config.model_copy(update={"objective": objective})
    attached = teachers.attach(dataclasses.replace(setup, config=changed), lambda line: None)
    return traverse_util.flatten_dict(jax.device_get(attached.teachers["teacher"].params), sep="/")


READERS = pytest.mark.parametrize("read", [export, start, teach])


@READERS
def test_all_readers_take_what_is_whole(written, source, read):
    params, found = written[1], read(source)
    assert set(found) == set(params)
    for path, x in params.items():
        rows = min(len(found[path]), len(x))  # some have rows that only pad the vocabulary
        np.testing.assert_array_equal(found[path][:rows], x[:rows], err_msg=path)
        assert not x[rows:].any() and rows >= 2, path


@READERS
def test_no_reader_takes_a_flipped_bit(source, read):
    flip(largest(source / "checkpoints" / "0" / "state"))
    with pytest.raises(UserError, match=r"checkpoints/0/state/params\..* is altered: its contents"):
        read(source)
    assert not (source.parent / "out").exists()


@READERS
def test_no_reader_takes_another_step_for_the_one_that_is_named(source, read):
    (source / "checkpoints" / "0").rename(source / "checkpoints" / "9000")
    with pytest.raises(UserError, match=r"checkpoints/9000/meta is of step 0, not 9000"):
        read(source)


@READERS
@pytest.mark.parametrize("layers", [1, 3])
def test_no_reader_takes_another_model_than_that_of_config_yaml(source, read, layers):
    config = source / "config.yaml"
    config.write_text(config.read_text().replace("layers: 2", f"layers: {layers}"))
    said = rf"checkpoints/0: holds another model .* has shape \(2, .* there, shape \({layers}, .*config.yaml edited"
    with pytest.raises(UserError, match=said):
        read(source)
    assert not (source.parent / "out").exists()


@READERS
def test_no_reader_takes_a_parameter_that_is_not_finite(tmp_path, read):
    scale = np.ones(32, np.float32)
    scale[5] = np.nan
    write(tmp_path / "run", **{"model/embed_norm/scale": scale})
    with pytest.raises(UserError, match=r"run/checkpoints/0: weights: model/embed_norm/scale is not finite"):
        read(tmp_path / "run")


def test_sizes_alone_are_compared_where_that_is_wanted(source):
    flip(source / "checkpoints" / "0" / "state" / "params.model.embed_norm.bias" / "0")
    with pytest.raises(UserError, match="is altered"):
        weights.Saved(source, 0)
    assert "model/embed_norm/bias" in weights.Saved(source, 0, CheckpointConfig(verify="sizes"))
    start(source, verify="sizes")
