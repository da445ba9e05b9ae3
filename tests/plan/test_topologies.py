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
        ("v5x:4x4", "'v5x' is none of v4, v5e, v5p, v6e, tpu7x, a100-40, .*b200, do you mean v5"),
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
    with pytest.raises(UserError, match=r"pip install 'jaxpt\[plan-gpu\]'"):
        topologies.parse("h100:8").devices()


def test_devices_that_are_here_are_one_slice():
    assert topologies.local("NVIDIA H200", 8).chips == 8 and topologies.local("TPU7x", 8).chips == 4
    assert topologies.local("cpu", 8) is None


def test_machines_with_gpus():
    one, two = topologies.parse("h100:8"), topologies.parse("a100-80:2x4")
    assert (one.size, one.machine, one.slices) == (8, 8, 1) and (two.size, two.machine, two.slices) == (8, 4, 1)
    assert one.ici == one.chip.ici


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("v4:4x4x4", 1), ("v5p:4x4x8", 1), ("v5p:2x2x4", 1 / 2), ("v5p:4x4x2", 1 / 2), ("v5p:1x1x4", 1 / 6),
        ("v5e:16x16", 1), ("v5e:8x16", 3 / 4), ("v6e:4x8", 1 / 2), ("v6e:1x1", 1),
    ],
)  # fmt: skip
def test_links_that_wrap_around(name, share):
    """In three dimensions all axes have them, where all are multiples of 4, or none."""
    topology = topologies.parse(name)
    assert topology.ici == pytest.approx(share * topology.chip.ici)


@pytest.mark.parametrize(
    ("name", "slices", "answer"),
    [
        ("a100:8", 1, "'a100' is none of .*, do you mean a100-40 or a100-80"),
        ("h100", 1, "wants the number of GPUs, or machines and GPUs of each: h100:2x8"),
        ("h100:2x8x4", 1, "wants the number of GPUs"),
        ("h100:0", 1, "wants the number of GPUs"),
        ("h100:8", 4, "--slices 4: are of TPUs; for so many machines: --topology h100:4x8"),
    ],
)
def test_wrong_names_of_gpus(name, slices, answer):
    with pytest.raises(UserError, match=answer):
        topologies.parse(name, slices)


def test_a_program_may_take_the_share_of_a_gpu_that_jax_takes(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    assert topologies.parse("h100:8").memory == int(0.75 * 84_942_979_072)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", ".9")
    assert topologies.parse("h100:8").memory == int(0.9 * 84_942_979_072)
    assert topologies.parse("v5e:4x4").memory == topologies.CHIPS["v5e"].memory
