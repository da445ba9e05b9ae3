"""What a TPU's program computes in each loop: products as it writes them, and how often."""

import pytest

from jaxpt.plan import hlo, operations

PRODUCTS = {
    # [8, 512, 64] · [64, 128]; the batch's rows as positions
    "plain": (
        "bf16[8,512,64]", "bf16[1,64,128]", "f32[8,512,128]", "window={size=1}, dim_labels=0bf_0io->0bf",
        8 * 512 * 64 * 128,
    ),
    # Σ over 4 rows and 512 positions: the gradient of a [64, 128] kernel
    "gradient": (
        "bf16[4,64,512]", "bf16[4,512,128]", "f32[64,128,1]", "window={size=4}, dim_labels=0bf_0io->bf0",
        4 * 512 * 64 * 128,
    ),
    # scores of 4 rows and 16 heads, whose places a window holds one at a time
    "scores": (
        "bf16[4,16,64,512]", "bf16[4,16,64,256]", "f32[4,16,512,256]",
        "window={size=4x16 stride=3x15 lhs_dilate=4x16}, dim_labels=01fb_01io->01bf", 4 * 16 * 512 * 64 * 256,
    ),
    "mixed": (
        "bf16[4,16,512,64]", "bf16[4,16,512,512]", "f32[4,16,512,64]",
        "window={size=4x16 stride=4x16 pad=3_3x15_15 lhs_dilate=3x15 rhs_reversal=1x1}, dim_labels=01fb_01oi->01fb",
        4 * 16 * 512 * 512 * 64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_counted_whatever_stands_for_the_batch(name):
    left, right, out, window, expected = PRODUCTS[name]
    text = f"""HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: {left}, param.2: {right}) -> {out} {{
  %param.1 = {left}{{0}} parameter(0)
  %param.2 = {right}{{0}} parameter(1)
  ROOT %convolution.1 = {out}{{0}} convolution(%param.1, %param.2), {window}
}}
"""
    (region,) = operations.regions(hlo.Program(text), {"data": 1}, {})
    assert region.times == 1 and [flops for flops, _ in region.work] == [2 * expected]


# As XLA writes a product that it leaves to cuBLAS, with a workspace of 32 MiB beside the result; shortened.
CUBLAS = """HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: bf16[4096,64], param.2: bf16[64,128]) -> (bf16[4096,128], s8[33554432]) {
  %param.1 = bf16[4096,64]{1,0} parameter(0)
  %param.2 = bf16[64,128]{1,0} parameter(1)
  ROOT %custom-call.1 = (bf16[4096,128]{1,0}, s8[33554432]{0}) custom-call(%param.1, %param.2), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
}
"""  # noqa: E501


def test_products_of_cublas():
    (region,) = operations.regions(hlo.Program(CUBLAS), {"data": 1}, {})
    assert region.work == [[2 * 4096 * 64 * 128, 2 * (4096 * 64 + 64 * 128 + 4096 * 128)]]


def test_a_kernel_weighs_what_it_takes_and_gives_wherever_that_lies():
    """Arrays in VMEM, S(1), are no traffic, but the kernel has FLOPs all the same."""
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: bf16[8,128]) -> bf16[8,128] {
  %param.1 = bf16[8,128]{1,0} parameter(0)
  %copy.1 = bf16[8,128]{1,0:S(1)} copy(%param.1)
  %custom-call.1 = bf16[8,128]{1,0:S(1)} custom-call(%copy.1, %copy.1), custom_call_target="tpu_custom_call"
  ROOT %copy.2 = bf16[8,128]{1,0} copy(%custom-call.1)
}
"""
    (region,) = operations.regions(hlo.Program(text), {"data": 1}, {})
    assert [work for work in region.work if work[0]] == [[-3 * 8 * 128 * 2, 0]]
