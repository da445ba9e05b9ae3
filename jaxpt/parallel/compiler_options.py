"""Compiler options of each device, with what each gives and how that was measured.

A recipe adds options and leaves these out with `train.compiler_options`. None of them changes what a program computes:
they move data in another way, or guard its numbers.
"""

from __future__ import annotations

from jaxpt.parallel.chips import CHIPS, KINDS

Options = dict[str, str | bool | int]

CPU: Options = {
    # jaxlib 0.10 hands parts of a program to a library (YNN) whose results can be wrong: sums, and what is fused with
    # them (of a vmap over gradients of a cross-entropy after a norm: off by half,
    # tests/parallel/test_compiler.py), and products with a broadcast operand (tests/decode/test_likelihood.py). It
    # is slow too (2 cores, with and without it): [32, 4, 128, 128] → [4, 128, 128], the gradient of T5's position bias,
    # 10 against 0.3 ms; attention over 16 × 128 tokens with 12 heads, 53 against 16 ms.
    "xla_cpu_experimental_ynn_fusion_type": "",
}

TPU: Options = {
    # A product with a gathered operand becomes a ring: a permute and a product for each device's piece, of 64 columns
    # where 1,024 are sharded 16 ways; every turn reads and writes the sum of all of them. Above this size of an operand
    # (MiB) alone; here never. T5 1.1 large on v5e:4x4, fsdp 16, 8 rows a chip: 19,176 permutes, 57 GiB of traffic,
    # a least time of 157 ms with rings; without them 50 GiB, 126 ms. The all-gathers left overlap with products.
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": 100_000,
}

# Of `train.deterministic`. No scatter or reduction adds in the order in which threads come, and no kernel is chosen by
# a measurement, which comes out otherwise in another run.
DETERMINISTIC: Options = {"xla_gpu_deterministic_ops": True}

# Compiled with them by libtpu 0.0.52: v5e and v5p; not yet tried: v4, v6e, tpu7x.
GENERATIONS: dict[str, Options] = {name: dict(TPU) for name in CHIPS}


def of_device(platform: str, device_kind: str) -> Options:
    """The options for a device, {} for GPUs; TPUs of an unknown kind have those that all generations share.

    Args:
      platform: "cpu", "gpu" or "tpu".
      device_kind: the name that JAX gives to the device.

    Returns:
      What `jax.jit(compiler_options=…)` takes.

    Example:
      >>> of_device("tpu", "TPU v5 lite")
      {'xla_jf_spmd_threshold_for_windowed_einsum_mib': 100000}
    """
    if platform == "cpu":
        return CPU
    if platform != "tpu":
        return {}
    return next((GENERATIONS[name] for name, chip in CHIPS.items() if KINDS.get(device_kind) is chip), TPU)
