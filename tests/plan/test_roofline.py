import dataclasses

import pytest

from jaxpt.plan import roofline, topologies
from jaxpt.plan.program import PlanResult

MEASURED = PlanResult(
    phase=0, steps=1000, rows=64, length=128, tokens=8192, parameters=10**6, dtype="bfloat16", platform="tpu",
    device_kind="TPU v5 lite",
    devices=32, mesh={"data": 8, "fsdp": 4, "context": 1, "tensor": 1}, seconds=1.0,
    model_flops=32 * 197 * 10**9, program_flops=32 * 394 * 10**9, traffic=819 * 10**6,
    memory={"parameters": 2**30, "optimizer": 2**31, "average": 0, "second_state": 0, "batch": 0, "temporaries": 2**32},
    total=7 * 2**30, limit=int(15.75 * 2**30), buffers=[], placements=[],
    large_replicated_params=[], copied_donated_buffers=[], compiler="libtpu 0.0.52",
    collectives=[
        {"kind": "all-reduce", "axes": ["data"], "count": 1, "bytes": 10**9, "sent": 100 * 10**6, "network": "DCN"},
        {"kind": "all-gather", "axes": ["fsdp"], "count": 1, "bytes": 10**9, "sent": 400 * 10**6, "network": "ICI"},
        {"kind": "all-reduce", "axes": ["data"], "count": 1, "bytes": 10**9, "sent": 700 * 10**6, "network": "ICI"},
    ],
)  # fmt: skip


def test_each_part_of_a_chip_has_its_time():
    bound = roofline.bound(MEASURED, topologies.parse("v5e:4x4", slices=2))
    assert bound.times == pytest.approx({"FLOPs": 2e-3, "HBM": 1e-3, "ICI": 11e-3, "DCN": 32e-3})
    assert bound.by == "DCN" and bound.seconds == bound.times["DCN"]
    assert bound.mfu == pytest.approx(1e-3 / 32e-3)


def test_the_least_time_is_the_sum_over_loops_and_operations():
    """1e9 FLOPs and 819e3 bytes take 5.1 and 1 µs on a v5e: what is bound by memory does not hide behind products."""
    flops, size = 197 * 10**6, 819 * 10**3  # a microsecond each
    regions = [
        {"times": 10, "work": [[5 * flops, size], [0, 3 * size]], "sent": {"ICI": 10**5 * 2}, "messages": 1},  # 8 µs
        {"times": 1, "work": [[flops, 2 * size]], "sent": {"ICI": 10**5}, "messages": 40},  # 1 + 40 µs
        # Two kernels, one of whose arrays lie in VMEM: they share the FLOPs that are left by what they take and give.
        {"times": 2, "work": [[-4 * size, size], [-3 * size, 0]], "sent": {}, "messages": 0},
    ]
    measured = dataclasses.replace(
        MEASURED, devices=1, regions=regions, collectives=[], traffic=0, program_flops=(51 + 2 * 7) * flops
    )
    bound = roofline.bound(measured, topologies.parse("v5e:4x4"))
    assert bound.shares == pytest.approx({"FLOPs": 50e-6 + 14e-6, "HBM": 30e-6, "ICI": 41e-6, "DCN": 0})
    assert bound.by == "FLOPs" and bound.seconds == pytest.approx(135e-6)
    assert bound.mfu == pytest.approx(MEASURED.model_flops / 197e12 / 135e-6)


def test_the_likely_time_on_gpus_is_of_lower_peaks_and_adds_time_for_each_operation():
    """On an h200 at 74 % of its peaks 989e6 FLOPs and 4.8e6 bytes take 1.35 µs each; an operation 7.5 µs besides."""
    flops, size = 989 * 10**6, 48 * 10**5
    regions = [{"times": 10, "work": [[5 * flops, size], [0, 3 * size], [flops, 0]], "sent": {}, "messages": 0}]
    measured = dataclasses.replace(
        MEASURED, devices=1, regions=regions, collectives=[], traffic=40 * size, program_flops=60 * flops
    )
    bound = roofline.bound(measured, topologies.parse("h200:1"))
    assert bound.seconds == pytest.approx(90e-6)
    assert bound.estimate == pytest.approx(90e-6 / 0.74 + 10 * 2 * 7.5e-6)
    assert roofline.bound(measured, topologies.parse("v5e:2x2")).estimate is None, "nothing was measured there"
    assert roofline.bound(dataclasses.replace(measured, regions=[]), topologies.parse("h200:1")).estimate is None


def test_a_device_of_a_tpu7x_is_half_a_chip():
    half = dataclasses.replace(MEASURED, devices=2, program_flops=2307 * 10**9)
    assert roofline.bound(half, topologies.parse("tpu7x:1x1x1")).times["FLOPs"] == pytest.approx(1e-3)


def test_cost_of_a_run():
    topology = topologies.parse("v5e:4x4")
    cost = roofline.cost([(3.6, 1000), (7.2, 500)], topology, topology.chip.price, topology.chip.watts, 0.4)
    assert cost.chip_hours == pytest.approx(2 * 16) and cost.days == pytest.approx(2 / 24)
    assert cost.dollars == pytest.approx(32 * topology.chip.price)
    other = roofline.cost([(3.6, 1000)], topology, price=2.0, watts=1000, carbon=0.5)
    assert other.dollars == pytest.approx(32.0) and other.kg_co2 == pytest.approx(16 * roofline.PUE * 0.5)
