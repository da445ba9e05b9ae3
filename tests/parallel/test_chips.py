import pytest

from jaxpt.parallel import chips


@pytest.mark.parametrize(
    ("kind", "chip"),
    [
        ("TPU v4", chips.CHIPS["v4"]),
        ("TPU v5 lite", chips.CHIPS["v5e"]),
        ("TPU v5", chips.CHIPS["v5p"]),
        ("TPU v5p", chips.CHIPS["v5p"]),
        ("NVIDIA A100-SXM4-40GB", chips.GPUS["a100-40"]),
        ("NVIDIA A100-SXM4-80GB", chips.GPUS["a100-80"]),
        ("NVIDIA H100 80GB HBM3", chips.GPUS["h100"]),
        ("NVIDIA H200", chips.GPUS["h200"]),
        ("NVIDIA L4", chips.GPUS["l4"]),
        ("NVIDIA L40S", None),
        ("NVIDIA H100 PCIe", None),  # slower than the others
        ("cpu", None),
    ],
)
def test_a_chip_by_the_name_that_jax_gives_it(kind, chip):
    assert chips.chip(kind) is chip


@pytest.mark.parametrize(("name", "published"), [("v4", 32), ("v5e", 16), ("v5p", 96), ("v6e", 32), ("tpu7x", 96)])
def test_a_program_may_take_nearly_all_memory_of_a_device(name, published):
    """GiB, of Google's tables; of a tpu7x a device has half of its 192."""
    assert 0.95 < chips.CHIPS[name].memory / (published * 2**30) <= 1.0
