import pytest

from jaxpt.errors import UserError
from jaxpt.plan import command, roofline, topologies, vendor_names
from jaxpt.plan.program import Target
from tests import families
from tests.plan.test_roofline import MEASURED


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
    with pytest.raises(UserError, match=r"libtpu: pip install -e '.*\[plan\]'"):
        topologies.parse("v5e:2x2").devices()
    with pytest.raises(UserError, match=r"plugin: pip install -e '.*\[plan-gpu\]'"):
        topologies.parse("h100:8").devices()
    monkeypatch.setattr(command, "track", None)  # `jaxpt plan` says so before it says that it compiles
    with pytest.raises(UserError, match=r"plugin: pip install -e '.*\[plan-gpu\]'"):
        command.plan(families.config("bert"), "h100:8")


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
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "90%")
    with pytest.raises(UserError, match=r"^XLA_CLIENT_MEM_FRACTION: wants a share such as 0.9, not '90%'$"):
        _ = topologies.parse("h100:8").memory


GOOGLE = {
    "v4-8": "2x2x1", "v4-16": "2x2x2", "v4-32": "2x2x4", "v4-64": "2x4x4", "v4-128": "4x4x4", "v4-256": "4x4x8",
    "v4-512": "4x8x8", "v4-1024": "8x8x8", "v4-1536": "8x8x12", "v4-2048": "8x8x16", "v4-4096": "8x16x16",
    "v5p-128": "4x4x4", "v5p-384": "4x4x12", "v5p-640": "4x4x20", "v5p-768": "4x8x12", "v5p-1152": "4x12x12",
    "v5p-1792": "4x8x28", "v5p-2304": "8x12x12", "v5p-3072": "8x12x16", "v5p-3200": "4x20x20", "v5p-3584": "8x8x28",
    "v5p-3840": "8x12x20", "v5p-4480": "4x20x28", "v5p-12288": "16x16x24", "tpu7x-128": "4x4x4",
    "v5e-8": "2x4", "v6e-1": "1x1", "v6e-64": "8x8", "v6e-128": "8x16", "v5e-256": "16x16",
}  # fmt: skip
"""Shapes of slices as Google's pages and tools have them."""


@pytest.mark.parametrize("name", GOOGLE)
def test_slices_by_googles_names(name):
    kind, _, size = name.partition("-")
    topology = topologies.parse(name)
    assert topology.name == f"{kind}:{GOOGLE[name]}"
    assert topology.chips == int(size) // (1 if kind in ("v5e", "v6e") else 2)


def test_machines_by_their_clouds_names():
    names = ("a3-highgpu-8g", "a3-highgpu-8g:2", "a2-highgpu-4g", "a2-ultragpu-8g", "p5e.48xlarge", "p5en.48xlarge:2")
    expected = ["h100:8", "h100:2x8", "a100-40:4", "a100-80:8", "h200:8", "h200:2x8"]
    assert [vendor_names.to_topology(name) for name in names] == expected
    assert vendor_names.to_topology("v5litepod-16") == "v5e:4x4"
    assert all(topologies.parse(name).size for name in vendor_names.MACHINE_TYPES)


def test_capitals_are_small_letters():
    """H100:8, as the card's maker writes it, was answered with "do you mean a100-40?"."""
    names = ("H100:8", "V6E-64", "A3-HighGPU-8g", "v5e:4X4")
    assert [topologies.parse(name).name for name in names] == ["h100:8", "v6e:8x8", "h100:8", "v5e:4x4"]
    assert Target.of(None, "H200:2x8") == Target("h200:2x8", 1)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("v5p-100", "slices of v5p have 8, 16, 32, 64 cores or a multiple of 128 .two a chip.; or give .* v5p:4x4x4"),
        ("v5p-0", "slices of v5p have 8"),
        ("v6e-60", "slices of v6e have 1, 4, 8, 16, 32, 64, 128, 256 chips; or give a shape: v6e:4x8"),
        ("a3-highgpu-8g:two", "wants the number of machines, such as a3-highgpu-8g:2"),
        ("a3-highgpu-9g", "'a3-highgpu-9g' is none of .*, do you mean a3-highgpu-8g"),
        ("v7-128", "'v7-128' is none of v4, v5e"),
        ("v6e-64:2", "names one slice; several of them: --topology v6e-64 --slices 2"),
        ("v5litepod-16:3", "names one slice; several of them: --topology v5litepod-16 --slices 3"),
    ],
)
def test_wrong_names_of_clouds(name, answer):
    with pytest.raises(UserError, match=answer):
        topologies.parse(name)


def test_a_recipe_may_have_a_clouds_name():
    """What is compiled, and what tells TPUs from GPUs, see the topology alone."""
    assert Target.of(None, "A3-megagpu-8g:2").shape == "h100:2x8" and Target.of(None, "v6e-64") == Target("v6e:8x8")


def test_a_clouds_machines_have_its_network():
    """Those of A3 High had the 400 Gbit/s a GPU of a DGX."""
    names = ("h100:2x8", "a3-highgpu-8g:2", "a3-megagpu-8g:2", "a2-highgpu-8g:2", "p4d.24xlarge:2", "p5.48xlarge:2")
    gbits = {name: topologies.parse(name).dcn * 8 / 1e9 for name in names}
    assert gbits == dict(zip(names, (400, 125, 225, 12.5, 50, 400)))
    assert topologies.parse("v5e:4x4", 2).dcn == topologies.CHIPS["v5e"].dcn
    where = Target.of(None, "a3-highgpu-8g:2")
    assert str(where) == "a3-highgpu-8g:2" and command._chips(MEASURED, where).dcn == 125e9 / 8
    sent = {name: roofline.bound(MEASURED, topologies.parse(name)).times["DCN"] for name in names[:2]}
    assert sent["a3-highgpu-8g:2"] == pytest.approx(sent["h100:2x8"] * 400 / 125)
