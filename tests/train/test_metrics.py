"""Figures in TensorBoard's file, written without a thread; a full disk ends in a line, not in a wait."""

import resource

import pytest

from jaxpt.runtime import disk
from jaxpt.train.metrics import Board


def events(directory):
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(directory.iterdir()):
        content = path.read_bytes()
        while content:
            size = int.from_bytes(content[:8], "little")
            found.append(Event.FromString(content[12 : 12 + size]))
            content = content[16 + size :]
    return found


def test_figures_are_those_that_were_written(tmp_path):
    board = Board(tmp_path / "tensorboard", 3)
    board.write(4, {"train/loss": 2.5, "speed/tokens": 10.0})
    board.close()
    board.close()
    found = events(tmp_path / "tensorboard")
    assert [one.step for one in found if one.HasField("session_log")] == [4]  # earlier files' figures from there on go
    values = [(one.step, value.tag, value.simple_value) for one in found for value in one.summary.value]
    assert values == [(4, "train/loss", 2.5), (4, "speed/tokens", 10.0)]


def test_a_full_disk_is_an_error_that_names_the_place(tmp_path):
    board = Board(tmp_path / "tensorboard", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError) as found:
            for step in range(5000):
                board.write(step, {"train/loss": 2.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert disk.full(found.value) and found.value.filename == str(tmp_path / "tensorboard")
