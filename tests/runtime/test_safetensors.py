"""One codec of safetensors: the package reads what it writes, it reads what the package wrote, damage is found."""

import random

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxpt.data.records.shard import is_intact
from jaxpt.runtime import safetensors

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(5, dtype=np.uint8),
    "empty": np.zeros((0, 4), np.int64),
    "scalar": np.array(7, np.int16),
}


def written(path, tensors=TENSORS):
    head = safetensors.header({name: (x.dtype, x.shape) for name, x in tensors.items()}, {"said": "é"})
    path.write_bytes(head + b"".join(x.tobytes() for x in tensors.values()))
    return path


def test_the_package_reads_what_is_written(tmp_path):
    found = load_file(written(tmp_path / "x.safetensors"))
    assert found.keys() == TENSORS.keys()
    for name, x in TENSORS.items():
        np.testing.assert_array_equal(found[name], x, strict=True)


def test_what_the_package_wrote_is_read_and_mapped(tmp_path):
    path, tensors = tmp_path / "x.safetensors", TENSORS | {"low": np.ones(3, ml_dtypes.bfloat16)}
    save_file(tensors, path, {"said": "é"})
    metadata, entries = safetensors.read(path)
    assert metadata == {"said": "é"}
    for found in (safetensors.mapped(path), {n: safetensors.tensor(path, e) for n, e in entries.items()}):
        assert found.keys() == tensors.keys()
        for name, x in tensors.items():
            np.testing.assert_array_equal(found[name], x, strict=True)


@pytest.mark.parametrize("damage", ["", "length", "header", "short", "long", "empty"])
def test_damage_is_found_before_anything_is_read(tmp_path, damage):
    path = written(tmp_path / "x.safetensors")
    data, seed = bytearray(path.read_bytes()), random.randrange(1 << 30)
    if damage == "length":  # a terabyte, or more than an integer of C
        data[random.Random(seed).randrange(5, 8)] ^= 128
    if damage == "header":
        data[random.Random(seed).choice([8, 9])] ^= 1
    data = {"short": data[:-1], "long": data + b"0", "empty": b""}.get(damage, data)
    path.write_bytes(data)
    if damage:
        with pytest.raises(ValueError):
            raise AssertionError(f"seed {seed}: {safetensors.read(path)}")
    assert not is_intact(path)
