"""What machine this is: devices, versions, the rates of a product and of a copy, and `jaxpt doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import shared

PACKAGES = (
    "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "optax", "orbax-checkpoint", "numpy", "torch",
    "triton", "transformers", "nvidia-cudnn-cu13", "nvidia-cublas", "pydantic", "tokenizers", "sentencepiece",
    "tensorflow",
)  # fmt: skip


def output_of(*command: str, timeout: float = 60) -> str:
    """What a command prints, or why it did not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=shared.ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return shared.describe(error)
    return (done.stdout + done.stderr).strip() + (f"\n(exit code {done.returncode})" if done.returncode else "")


def versions() -> dict[str, str]:
    """Of the packages that matter and are installed."""
    installed = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def device() -> dict[str, Any]:
    """The first device as JAX sees it."""
    import jax

    from jaxpt.train import flops

    first = jax.devices()[0]
    stats, peak = first.memory_stats() or {}, flops.peak(first)
    return {
        "kind": first.device_kind, "platform": first.platform, "count": jax.device_count(),
        "memory_limit": stats.get("bytes_limit"), "memory_keys": sorted(stats), "peak_tflops": peak and peak / 1e12,
    }  # fmt: skip


def rates() -> dict[str, float]:
    """What a product of bfloat16 matrices and a copy of float32 reach: the ceilings of all that follows."""
    import jax
    import jax.numpy as jnp

    size, length = (256, 1 << 16) if jax.default_backend() == "cpu" else (8192, 1 << 30)
    a, b = (jax.random.normal(jax.random.key(seed), (size, size), jnp.bfloat16) for seed in (0, 1))
    x = jnp.ones(length, jnp.float32)
    product = median_seconds(jax.jit(jnp.dot), a, b)
    copy = median_seconds(jax.jit(lambda x: x * 1.0001), x)
    return {"bf16_tflops": 2 * size**3 / product / 1e12, "copy_tb_per_second": 8 * length / copy / 1e12}


def median_seconds(function: Callable[..., Any], *arguments: Any, rounds: int = 8) -> float:
    """Of a call, after one that compiles."""
    import jax

    jax.block_until_ready(function(*arguments))
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def main() -> int:
    report = shared.Report()
    installed = versions()
    report.add("versions", installed, ", ".join(f"{name} {version}" for name, version in installed.items()))
    report.add("cores", len(os.sched_getaffinity(0)))
    report.add("nvidia_smi", output_of("nvidia-smi"))
    try:
        first = device()
        gib = (first["memory_limit"] or 0) / 2**30
        report.add("device", first, f"{first['count']} × {first['kind']}, {gib:.1f} GiB for JAX")
        reached = rates()
    except Exception as error:
        report.add("error", shared.describe(error), shared.describe(error), is_good=False)
        return report.exit_code()
    line = f"{reached['bf16_tflops']:.3g} TFLOP/s in bf16 products, {reached['copy_tb_per_second']:.3g} TB/s in copies"
    report.add("rates", reached, line)
    report.headline(f"{first['kind']}, jax {installed.get('jax')}: {line}")
    if not shared.IS_QUICK:
        doctor = output_of(sys.executable, "-m", "jaxpt", "doctor", timeout=80)
        report.add("doctor", doctor, f"jaxpt doctor: {doctor.splitlines()[-1]}" if doctor else "")
        print(doctor)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
