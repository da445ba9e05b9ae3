"""Files and directories of other programs: `jaxpt import` says what they are."""

import pytest

from jaxpt.cli import main

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
