import pytest

from jaxpt.errors import UserError
from jaxpt.plan import topologies


@pytest.mark.parametrize(
    ("name", "slices", "devices"),
    [("v4:2x2x4", 1, 16), ("v5e:16x16", 2, 512), ("v5p:4x4x4", 1, 64), ("v6e:1x1", 1, 1), ("tpu7x:2x2x1", 3, 24)],
)
def test_devices_of_slices(name, slices, devices):
    assert topologies.parse(name, slices).size == devices


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("v5x:4x4", "'v5x' is none of v4, v5e, v5p, v6e, tpu7x, do you mean v5"),
        ("v5e", "v5e: wants 2 numbers of chips, such as v5e:4x4"),
        ("v5e:16", "wants 2 numbers"),
        ("v5e:0x4", "wants 2 numbers"),
        ("v5p:4x4", "wants 3 numbers of chips, such as v5p:4x4x4"),
    ],
)
def test_a_wrong_name_is_answered_with_right_ones(name, answer):
    with pytest.raises(UserError, match=answer):
        topologies.parse(name)


def test_the_compiler_is_asked_for_in_one_line(monkeypatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'jaxpt\[plan\]'"):
        topologies.parse("v5e:2x2").devices()


def test_devices_that_are_here_are_one_slice():
    assert topologies.local("NVIDIA H200", 8).chips == 8 and topologies.local("TPU7x", 8).chips == 4
    assert topologies.local("cpu", 8) is None


def test_no_gpu_is_compiled_for_from_afar():
    with pytest.raises(UserError, match="h100:8: nothing compiles for GPUs without one; on one, leave --topology out"):
        topologies.parse("h100:8")
