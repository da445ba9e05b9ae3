"""Files and directories of other programs: `jaxpt import` says what they are."""

import sys

import numpy as np
import pytest

from jaxpt import errors
from jaxpt.cli import main
from jaxpt.hf import files

FOREIGN = {
    "flax_model.msgpack": "is a part of a Hugging Face directory; name the directory that contains it",
    "tf_model.h5": "weights of TensorFlow are not supported",
    "model.ckpt-100.data-00000-of-00001": "weights of TensorFlow are not supported",
    "model.gguf": "weights of GGUF are not supported",
    "epoch.ckpt": "weights of PyTorch Lightning are not supported",
    "model.safetensors": "is a part of a Hugging Face directory; name the directory that contains it",
    "pytorch_model.bin": "is a part of a Hugging Face directory; name the directory that contains it",
    "t5x/checkpoint": "is a part of a checkpoint of T5X; name the directory that contains it",
    "t5x/": "checkpoint: is damaged, half-written or no file of flax.serialization",
    "orbax/": "is a checkpoint of Orbax, neither T5X's nor of MaxText's Llama, or it is damaged; load it",
    "flax/": "has weights of Flax and no config.json; add that of the model",
    "tf/": "model.ckpt-1.index: weights of TensorFlow are not supported",
    "megatron/": "is a checkpoint of Megatron",
    "deepspeed/": "is a checkpoint of DeepSpeed; run its zero_to_fp32.py",
    "meta/": "is a model in Meta's own format; convert_llama_weights_to_hf.py",
    "run/": "is a run directory of jaxpt; use it as it is",
    "nothing/": "no config.json; expected a Hugging Face directory",
}
INSIDE = {
    "t5x": ["checkpoint", "target.decoder.norm.scale/.zarray"], "orbax": ["_METADATA"], "flax": ["flax_model.msgpack"],
    "tf": ["checkpoint", "model.ckpt-1.index"], "megatron": ["latest_checkpointed_iteration.txt"],
    "deepspeed": ["zero_to_fp32.py"], "meta": ["params.json"], "run": ["checkpoints/run_id"], "nothing": ["a.txt"],
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_what_it_is_is_said(name, tmp_path, capsys):
    folder, _, file = name.rpartition("/")
    for path in INSIDE[folder] if folder else [file]:
        path = tmp_path / folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 99)
    assert main(["import", str(tmp_path / name), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert FOREIGN[name] in said and len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


# ---- writing --------------------------------------------------------------------------------------------------------


def test_what_is_written_is_what_is_read(tmp_path):
    """In a directory that was used before: a file, then shards, fewer shards, and a file again; others stay."""
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    (tmp_path / "model-card.safetensors").write_bytes(b"")
    before = {path.name for path in tmp_path.iterdir()}
    for value, (shard_bytes, shards) in enumerate([(99, 0), (4, 3), (8, 2), (99, 0), (4, 3)]):
        tensors = {name: np.full(1, value, np.float32) for name in "abc"}
        announced = {name: (x.shape, x.dtype) for name, x in tensors.items()}
        files.write(tmp_path, announced, tensors.items(), shard_bytes)
        assert {name: int(x[0]) for name, x in files.Tensors(tmp_path).items()} == dict.fromkeys("abc", value)
        names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)] or ["model.safetensors"]
        new = {*names, *(["model.safetensors.index.json"] if shards else [])}
        assert {path.name for path in tmp_path.iterdir()} - before == new


# ---- checksums ------------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path):
    """A directory with a tensor, as an export leaves it."""
    files.write(tmp_path, {"a": ((2,), np.dtype(np.float32))}, [("a", np.ones(2, np.float32))])
    (tmp_path / "config.json").write_text("{}")
    files.write_checksums(tmp_path)
    return tmp_path


def test_the_file_that_was_changed_is_named(exported, monkeypatch):
    said = []
    monkeypatch.setattr(errors, "note", said.append)
    assert files.damage(exported) is None
    for name in ("config.json", "model.safetensors"):
        before = (exported / name).read_bytes()
        (exported / name).write_bytes(before + b" ")
        assert files.damage(exported) == f"{exported / name}: is missing or was changed"
        for weights in (True, False):
            files.note_changes(exported, weights=weights)
        assert said == [f"{exported / name}: was changed since it was exported; it is read as it is"]
        (exported / name).write_bytes(before)
        said.clear()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"5", b"null", b"\xff", b"[" * 10**5])
def test_damaged_checksums_are_told_and_what_they_are_of_is_read(content, exported, monkeypatch):
    said = []
    monkeypatch.setattr(errors, "note", said.append)
    (exported / files.CHECKSUMS).write_bytes(content)
    assert files.damage(exported) == f"{exported / files.CHECKSUMS}: is missing or damaged"
    files.note_changes(exported, weights=True)
    assert said == [f"{exported / files.CHECKSUMS}: is damaged; the files beside it are read as they are"]
    np.testing.assert_array_equal(files.Tensors(exported)["a"], np.ones(2))


def test_a_pickle_wants_torch(tmp_path, capsys, monkeypatch):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "hf" / "pytorch_model.bin").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    wanted = "pytorch_model.bin: reading it requires torch: pip install torch, or use .safetensors files"
    assert f"{tmp_path / 'hf'}/{wanted}" in said and len(said.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
