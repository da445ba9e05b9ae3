"""The attention kernels of a device beside plain attention; `jaxpt doctor` prints it.

Shapes: B batch · L length · H heads · K head width
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxpt.models import kernels
from jaxpt.models.kernels import Inputs
from jaxpt.models.mask import Mask
from jaxpt.models.pallas_common import kept
from jaxpt.models.positions import LearnedBias

B, L, H, K = 2, 256, 4, 64
SCALE, RATE = 1 / math.sqrt(K), 0.2
Run = Callable[..., jax.Array]


def differences(platform: str, interpret: bool = False) -> dict[str, float]:
    """How far the kernels of a platform are from plain attention in float32, on packed rows under a causal mask.

    Those that take T5's bias and dropout have both.

    Args:
      platform: of the default device: "gpu", "tpu", or one that has no kernels.
      interpret: let JAX run what is written in Pallas, and XLA what is cuDNN's, on any device.

    Returns:
      {kernel: the largest difference of its values and of each of its gradients, as a share of the largest entry}.
      Inputs are bfloat16, so that about 0.01 is rounding.

    Example:
      >>> differences("cpu")
      {}
    """
    keys = jax.random.split(jax.random.key(0), 6)
    q, k, v, dy = (jax.random.normal(key, (B, L, H, K), jnp.bfloat16) for key in keys[:4])
    table_NxH, key = jax.random.normal(keys[4], (32, H)), keys[5]
    segments_BxL = jnp.broadcast_to(jnp.minimum(jnp.arange(L) // 100 + 1, 3), (B, L))
    mask = Mask(segments_BxL, segments_BxL, causal=True)

    def bias(table_NxH: jax.Array) -> LearnedBias:
        return LearnedBias(table_NxH, bidirectional=True, max_distance=128)

    def plain(q: jax.Array, k: jax.Array, v: jax.Array, _: jax.Array) -> jax.Array:
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        return kernels.plain(Inputs(q, k, v, mask, None, SCALE))

    def with_more(q: jax.Array, k: jax.Array, v: jax.Array, table_NxH: jax.Array) -> jax.Array:
        scores = jnp.einsum("BLHK,BSHK->BHLS", *(x.astype(jnp.float32) for x in (q * SCALE, k)), precision="highest")
        scores = jnp.where(mask.materialise(L, L)[:, None], scores + bias(table_NxH).materialise(L, L), -jnp.inf)
        seeds_BxHx1x1 = kernels._seeds(RATE, key, B, H)[..., None, None]
        keep = kept(seeds_BxHx1x1, jnp.arange(L)[:, None], jnp.arange(L), RATE)
        weights = jnp.where(keep, jax.nn.softmax(scores) / (1 - RATE), 0)
        return jnp.einsum("BHLS,BSHK->BLHK", weights, v.astype(jnp.float32), precision="highest")

    def run(name: str, *options: Any) -> Run:
        return lambda q, k, v, _: getattr(kernels, name)(Inputs(q, k, v, mask, None, SCALE), *options)

    def run_with_more(name: str) -> Run:
        kernel = getattr(kernels, name)
        return lambda q, k, v, table: kernel(Inputs(q, k, v, mask, bias(table), SCALE, RATE, key), interpret)

    kernel_runs: dict[str, dict[str, tuple[Run, Run]]] = {
        "gpu": {
            "cudnn": (run("cudnn", "xla" if interpret else "cudnn"), plain),
            "flash": (run_with_more("flash"), with_more),
        },
        "tpu": {"splash": (run("splash", interpret), plain), "fused": (run_with_more("fused"), with_more)},
    }
    return {
        name: _far(*(_values(run, dy, q, k, v, table_NxH) for run in both))
        for name, both in kernel_runs.get(platform, {}).items()
    }


def _values(run: Run, dy: jax.Array, *inputs: jax.Array) -> list[jax.Array]:
    """Values and gradients."""

    def both(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        y, back = jax.vjp(run, *inputs)
        return y, *back(dy.astype(y.dtype))

    return [x.astype(jnp.float32) for x in jax.jit(both)(*inputs)]


def _far(got: list[jax.Array], expected: list[jax.Array]) -> float:
    return max(float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(b).max(), 1e-6)) for a, b in zip(got, expected))
