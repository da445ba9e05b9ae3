"""Products of tokens with the weights of their expert: each implementation beside a loop over experts in float32.

The sizes are those of a layer of OLMoE 1B-7B. Of each implementation: ‖actual − reference‖ / ‖reference‖ of the values
and of both gradients, and the milliseconds and rate of both passes. `auto` of `jaxpt.models.grouped` should be the
faster one.

Shapes: M rows, in the order of their experts · D width · F hidden width · E experts
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import facts
import kernels
import shared

ROWS, WIDTH, HIDDEN, EXPERTS = (256, 32, 16, 8) if shared.IS_DRY else (32768, 2048, 1024, 64)
IMPLEMENTATIONS = ("ragged", "blocks")


def sizes() -> list[int]:
    """Rows of each expert: uneven, the first has none, and the last rows belong to no expert."""
    import numpy as np

    shares = np.arange(EXPERTS)
    return [int(n) for n in (ROWS - 7) * shares // shares.sum()]


def inputs(dtype: str) -> tuple[Any, ...]:
    """x [M, D], the weights [E, D, F], and what the values are multiplied with for gradients [M, F]."""
    import jax

    shapes = ((ROWS, WIDTH), (EXPERTS, WIDTH, HIDDEN), (ROWS, HIDDEN))
    return tuple(jax.random.normal(jax.random.key(seed), shape, dtype) for seed, shape in enumerate(shapes))


def loop(x: Any, kernel: Any) -> Any:
    """The definition: the rows of each expert with its weights, in float32."""
    import jax.numpy as jnp

    x, kernel, rows, first = x.astype(jnp.float32), kernel.astype(jnp.float32), [], 0
    for expert, size in enumerate(sizes()):
        rows.append(jnp.dot(x[first : first + size], kernel[expert], precision="highest"))
        first += size
    return jnp.concatenate([*rows, jnp.zeros((ROWS - first, HIDDEN))])


def both_passes(run: Callable[..., Any]) -> Callable[..., Any]:
    """(x, weights, dy) → values and both gradients."""
    import jax

    def both(x: Any, kernel: Any, dy: Any) -> Any:
        y, backward = jax.vjp(run, x, kernel)
        return y, *backward(dy.astype(y.dtype))

    return jax.jit(both)


def relative_errors(actual: Any, expected: Any) -> dict[str, float]:
    import jax.numpy as jnp

    return {
        name: float(jnp.linalg.norm((a.astype(jnp.float32) - b).ravel()) / jnp.linalg.norm(b.ravel()))
        for name, a, b in zip(("y", "dx", "dkernel"), actual, expected, strict=True)
    }


def check(report: shared.Report, name: str, dtype: str, expected: Any) -> float:
    """Compares an implementation with the loop and times it; returns its seconds."""
    import jax.numpy as jnp

    from jaxpt.models import grouped

    given, label = inputs(dtype), f"{dtype}, {name}"
    try:
        sizes_E = jnp.array(sizes(), jnp.int32)
        run = both_passes(functools.partial(grouped.product, sizes_G=sizes_E, implementation=name))
        errors = relative_errors(run(*given), expected)
        seconds = facts.median_seconds(run, *given)
    except Exception as error:
        report.add(label, {"error": shared.describe(error)}, f"{label}: {shared.describe(error)}", is_good=False)
        return math.inf
    worst = max(errors.values(), key=lambda value: math.inf if math.isnan(value) else value)
    is_near = worst <= kernels.TOLERANCE[dtype]  # not of NaN
    rate = 6 * sum(sizes()) * WIDTH * HIDDEN / seconds / 1e12
    line = f"{label:20} off by {worst:.1e}, {1e3 * seconds:9.3f} ms, {rate:.3g} TFLOP/s"
    line += "" if is_near else f"  FAR {errors}"
    report.add(label, {"errors": errors, "ms": 1e3 * seconds, "tflops": rate, "is_near": is_near}, line, is_near)
    return seconds


def main() -> int:
    report = shared.Report()
    seconds = {}
    for dtype in kernels.TOLERANCE:
        expected = both_passes(loop)(*(x.astype("float32") for x in inputs(dtype)))
        seconds |= {(dtype, name): check(report, name, dtype, expected) for name in IMPLEMENTATIONS}
    times = [f"{name} {1e3 * seconds['bfloat16', name]:.3g} ms" for name in IMPLEMENTATIONS]
    report.headline(f"forward and backward in bf16: {', '.join(times)}; {report.failures} of {len(seconds)} are wrong")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
