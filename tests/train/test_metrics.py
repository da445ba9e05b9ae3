"""Figures in metrics.jsonl keep their digits. Figures in TensorBoard's file, written without a thread; a full disk ends
in a line, not in a wait."""

import doctest
import resource
import sys
import types

import numpy as np
import pytest

from jaxpt.runtime import disk
from jaxpt.train import metrics, run_dir
from jaxpt.train.metrics import Board, Metrics
from tests import families


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


@pytest.mark.parametrize("x", [1.2345678e-5, 3e-9, -4.5e-12, 0.0, 0.12345678, 7.1234567, 1234.5678, 1e-38])
def test_a_float32_is_read_as_it_was(tmp_path, x):
    file = Metrics(tmp_path, families.config("gpt2", log={"tensorboard": False}), 0)
    file.write(1, {"learning_rate": np.float32(x), "tokens": 123_456_789_012, "nan": np.nan, "layers": [1e-9, 2.0]})
    file.close()
    ((figures,), damaged) = run_dir.records(tmp_path)
    assert not damaged and np.float32(figures["learning_rate"]) == np.float32(x)
    assert figures["tokens"] == 123_456_789_012 and figures["nan"] is None and figures["layers/0"] == 1e-9


def test_examples_in_docstrings():
    assert doctest.testmod(metrics).failed == 0


class Service:
    """Stands in for Weights & Biases: runs by their ids, whose own steps only rise."""

    def __init__(self):
        self.runs = {}

    def init(self, id, resume, project, **settings):
        self.runs.setdefault((project, id), [])
        logged = self.runs[project, id]

        def log(figures, step=None):
            last = logged[-1][0] if logged else -1
            step = last + 1 if step is None else step
            if step > last:
                logged.append((step, figures))

        return types.SimpleNamespace(log=log, finish=lambda: None, define_metric=lambda name, **options: None)


def test_a_resume_and_a_rewind_go_on_with_the_run_of_weights_and_biases(tmp_path, monkeypatch):
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)
    (tmp_path / "checkpoints").mkdir()
    config = families.config("gpt2", log={"tensorboard": False, "wandb": "lab"})
    for start, steps in ((0, (1, 2)), (1, (2, 3))):
        file = Metrics(tmp_path, config, start)
        for step in steps:
            file.write(step, {"train/loss": 0.5})
        file.close()
    (((project, _), logged),) = service.runs.items()
    assert project == "lab"
    assert [figures for _, figures in logged] == [{"step": step, "train/loss": 0.5} for step in (1, 2, 2, 3)]


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
