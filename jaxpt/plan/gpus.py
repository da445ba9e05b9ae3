"""GPUs to compile for with no GPU here: what XLA has to know of each kind, and the devices of machines with them.

Without a GPU nothing is autotuned: products and convolutions have default tiles. That changes times, but neither memory
nor collectives nor FLOPs.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os

import jax

from jaxpt.errors import UserError
from jaxpt.parallel.chips import GPUS
from jaxpt.runtime import packages

XLA_FLAGS = "--xla_gpu_autotune_level=0"
"""What a process that compiles for GPUs has in its environment: there is nothing here to try kernels on."""
CUBLAS = {"xla_gpu_enable_triton_gemm": False}
"""Compiler options for programs of which a product has no default tiles: cuBLAS takes all products then."""
CUDNN = 9, 12
"""The least version that `jax[cuda13]` installs."""


@dataclasses.dataclass(frozen=True)
class Target:
    """What one kind of GPU has, beside its memory (`jaxpt.parallel.chips`)."""

    name: str
    """As the driver says it, and so JAX."""
    capability: int
    """Major CUDA compute capability; all of these have minor 0."""
    cores: int
    """Streaming multiprocessors."""
    fpus: int
    """CUDA cores of a streaming multiprocessor."""
    shared_memory: int
    """Bytes of a streaming multiprocessor."""
    block_memory: int
    """Bytes of shared memory that a block may take."""
    l2: int
    """Bytes."""
    clock: float
    """GHz."""
    bandwidth: int
    """Bytes/s of HBM."""


# Facts from openxla/xla, xla/backends/gpu/target_config/specs/{a100_sxm_40,a100_sxm_80,h100_sxm,h200,b200}.txtpb, 2026.
TARGETS = {
    "a100-40": Target("NVIDIA A100-SXM4-40GB", 8, 108, 64, 167_936, 166_912, 41_943_040, 1.41, 1_555_200_000_000),
    "a100-80": Target("NVIDIA A100-SXM4-80GB", 8, 108, 64, 167_936, 166_912, 41_943_040, 1.41, 2_039_040_000_000),
    "h100": Target("NVIDIA H100 80GB HBM3", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 3_352_320_000_000),
    "h200": Target("NVIDIA H200", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 4_800_000_000_000),
    "b200": Target("NVIDIA B200", 10, 148, 128, 233_472, 232_448, 132_644_864, 1.965, 7_672_320_000_000),
}

_TEXT = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_memory}
  shared_memory_per_block_optin: {block_memory}
  core_count: {cores}
  fpus_per_core: {fpus}
  l2_cache_size: {l2}
  clock_rate_ghz: {clock}
  memory_bandwidth: {bandwidth}
  device_memory_size: {memory}
  cuda_compute_capability {{ major: {capability} feature_extension: {features} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} }}
device_description_str: "{name}"
"""


def is_gpu(topology: str) -> bool:
    """Whether a topology is one of GPUs.

    Example:
      >>> is_gpu("h100:8"), is_gpu("v5e:4x4")
      (True, False)
    """
    return topology.partition(":")[0] in GPUS


def description(kind: str) -> str:
    """A kind of GPU as XLA wants it: a GpuTargetConfigProto as text."""
    target = TARGETS[kind]
    features = "ACCELERATED_FEATURES" if target.capability > 8 else "NONE"
    return _TEXT.format(**dataclasses.asdict(target), memory=GPUS[kind].memory, features=features, cudnn=CUDNN)


def check_compiler() -> None:
    """Raises UserError if the compiler, JAX's plugin for CUDA, is not installed."""
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise UserError(
            f"compiling for GPUs needs their compiler, JAX's CUDA plugin: {packages.install_command('plan-gpu')}"
        )


def devices(kind: str, machines: int, each: int) -> list[jax.Device]:
    """The GPUs of machines, to compile for; nothing can run on them.

    Args:
      kind: one of `TARGETS`.
      machines: how many.
      each: GPUs of a machine.

    Returns:
      The devices, those of a machine together.

    Raises:
      UserError: the compiler, JAX's plugin for CUDA, is not the one of this JAX.
    """
    jax.config.update("jax_platforms", "cpu")  # a GPU that is here stays free
    from jax.experimental import topologies

    _assume_cudnn(TARGETS[kind].capability)
    try:
        described = topologies.get_topology_desc(
            platform="cuda", target_config=description(kind), topology=f"1x{machines}x{each}"
        )
    except Exception as error:  # of any class of JAX's, such as for a plugin of another version
        reason = " ".join(str(error).split())
        hint = packages.install_command("plan-gpu")
        raise UserError(f"compiling for {kind}: JAX's CUDA plugin: {reason}; {hint}") from None
    return list(described.devices)


def share() -> float:
    """The share of a GPU's memory that JAX takes: XLA_CLIENT_MEM_FRACTION, or three quarters.

    Raises:
      UserError: that variable is no share.
    """
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        if text := os.environ.get(name):
            try:
                return float(text)
            except ValueError:
                raise UserError(f"{name}: wants a share such as 0.9, not {text!r}") from None
    return 0.75


def _assume_cudnn(capability: int) -> None:
    """Lets JAX trace cuDNN's attention with no GPU: it asks the driver for versions that are known here."""
    from jax._src.cudnn import fused_attention_stablehlo as attention

    current = (capability, 0)

    def parsed(text: str) -> tuple[int, ...]:
        return tuple(int(n) for n in text.split("."))

    attention.check_cudnn_version = lambda: CUDNN[0] * 10_000 + CUDNN[1] * 100
    attention.check_compute_capability = lambda minimum: current >= parsed(minimum)
    attention.is_cuda_compute_capability_equal = lambda text: current == parsed(text)
