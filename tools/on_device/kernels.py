"""Attention on the device: each implementation beside plain attention in float32 of full precision; with times.

Of each case, dtype and implementation: ‖actual − reference‖ / ‖reference‖ of the values and of each gradient, of real
queries alone, and the milliseconds of both passes. Programs are compiled side by side in threads, then run in turn.

Shapes: B batch · L query length · S key length · H heads · G key heads · K head width
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import shared

TOLERANCE = {"bfloat16": 2e-2, "float32": 2e-3}
"""Of the relative error; products in TF32 are near 3e-4."""
IMPLEMENTATIONS = ("flash", "cudnn", "xla", "chunked")
RATE = 0.1
"""Of dropout."""
Run = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """Shapes, and what the mask, bias and dropout are."""

    rows: int
    queries: int
    keys: int
    heads: int
    width: int = 64
    key_heads: int | None = None
    is_packed: bool = True
    is_causal: bool = False
    window: int | None = None
    has_bias: bool = False
    """T5's."""
    has_dropout: bool = False

    def tiny(self) -> Case:
        """For a CPU."""
        groups = self.key_heads and 1
        return dataclasses.replace(
            self, rows=2, queries=min(self.queries, 70), keys=min(self.keys, 70), heads=2, key_heads=groups
        )


CASES = {
    "packed causal 1024": Case(4, 1024, 1024, 12, is_causal=True),
    "T5's bias, causal, dropout 114": Case(4, 114, 114, 12, is_causal=True, has_bias=True, has_dropout=True),
    "packed 512": Case(4, 512, 512, 12),
    "grouped, causal 2048": Case(2, 2048, 2048, 32, key_heads=8, is_packed=False, is_causal=True),
    "T5's bias, packed 512": Case(4, 512, 512, 12, has_bias=True),
    "dropout, packed 512": Case(4, 512, 512, 12, has_dropout=True),
    "packed causal 300, width 96": Case(2, 300, 300, 4, 96, is_causal=True),
    "cross 114 × 512": Case(4, 114, 512, 12),
    "window 128, causal 1024": Case(2, 1024, 1024, 8, is_packed=False, is_causal=True, window=128),
    "width 128, causal 2048": Case(2, 2048, 2048, 16, 128, is_packed=False, is_causal=True),
    "packed causal 64, width 32": Case(32, 64, 64, 4, 32, is_causal=True),
}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Arrays of a case."""

    q: Any
    k: Any
    v: Any
    table: Any
    """Of the bias, [buckets, H], or None."""
    dy: Any
    mask: Any
    is_real: Any
    """1.0 where a query is no padding, [B, L, 1, 1]."""

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.q, self.k, self.v, self.table, self.dy


def inputs(case: Case, dtype: str) -> Inputs:
    """Random arrays and the mask."""
    import jax
    import jax.numpy as jnp

    from jaxpt.models.mask import Mask

    keys = jax.random.split(jax.random.key(case.queries), 5)
    key_heads = case.key_heads or case.heads
    q, dy = (jax.random.normal(key, (case.rows, case.queries, case.heads, case.width), dtype) for key in keys[:2])
    k, v = (jax.random.normal(key, (case.rows, case.keys, key_heads, case.width), dtype) for key in keys[2:4])
    query_ids = segments(case.rows, case.queries) if case.is_packed else None
    key_ids = query_ids if case.queries == case.keys or query_ids is None else segments(case.rows, case.keys)
    mask = Mask(query_ids, key_ids, causal=case.is_causal, window=case.window)
    ones = jnp.ones((case.rows, case.queries))
    is_real = (ones if query_ids is None else (query_ids > 0).astype(jnp.float32))[..., None, None]
    table = jax.random.normal(keys[4], (32, case.heads)) if case.has_bias else None
    return Inputs(q, k, v, table, (dy * is_real).astype(dtype), mask, is_real)


def segments(rows: int, length: int) -> Any:
    """Three segments in each row, then padding, [B, L]."""
    import jax.numpy as jnp
    import numpy as np

    rng, ids = np.random.default_rng(0), np.zeros((rows, length), np.int32)
    for row in ids:
        ends = np.sort(rng.choice(np.arange(length // 8, length), 3, replace=False))
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends), 1):
            row[start:end] = number
    return jnp.asarray(ids)


def bias_of(case: Case, table: Any) -> Any:
    """T5's bias of a table, or None."""
    from jaxpt.models.positions import LearnedBias

    return None if table is None else LearnedBias(table, bidirectional=not case.is_causal, max_distance=128)


def scale_of(case: Case) -> float:
    return 1 / math.sqrt(case.width)


def dropout_key() -> Any:
    import jax

    return jax.random.key(7)


def reference(case: Case, given: Inputs) -> Run:
    """Plain attention in float32, its products in full precision: (q, k, v, table) → values."""
    import jax
    import jax.numpy as jnp

    from jaxpt.models import kernels
    from jaxpt.models.pallas_common import kept

    def run(q: Any, k: Any, v: Any, table: Any) -> Any:
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
        scores = jnp.einsum("BLHK,BSHK->BHLS", q * scale_of(case), k, precision="highest")
        if table is not None:
            scores += bias_of(case, table).materialise(case.queries, case.keys)
        allowed = given.mask.materialise(case.queries, case.keys)
        weights = jax.nn.softmax(scores if allowed is None else jnp.where(allowed[:, None], scores, -1e30))
        if case.has_dropout:
            seeds = kernels._seeds(RATE, dropout_key(), case.rows, case.heads)[..., None, None]
            keep = kept(seeds, jnp.arange(case.queries)[:, None], jnp.arange(case.keys), RATE)
            weights = jnp.where(keep, weights / (1 - RATE), 0)
        return jnp.einsum("BHLS,BSHK->BLHK", weights, v, precision="highest")

    return run


def implementation(name: str, case: Case, given: Inputs, dtype: str) -> Run | None:
    """(q, k, v, table) → values by one of `IMPLEMENTATIONS`; None where it does not take the case."""
    from jaxpt.errors import UserError
    from jaxpt.models import attention, kernels

    rate, key = (RATE, dropout_key()) if case.has_dropout else (0.0, None)
    if shared.IS_DRY and name == "flash":  # interpreted
        if case.key_heads or dtype == "float32":
            return None
        return lambda q, k, v, table: kernels.flash(
            kernels.Inputs(q, k, v, given.mask, bias_of(case, table), scale_of(case), rate, key), True
        )
    if case.has_dropout and name != "flash":
        return None  # it drops other weights: there is nothing to compare with
    kind = "learned" if case.has_bias else None
    try:
        attention.choose(given.q.shape, given.k.shape, dtype, given.mask, kind, case.has_dropout, name)
    except UserError:
        return None
    options = {"scale": scale_of(case), "dropout": rate, "dropout_key": key, "implementation": name}
    return lambda q, k, v, table: attention.attend(q, k, v, given.mask, bias_of(case, table), **options)


def compiled(run: Run, given: Inputs) -> Run:
    """Values and gradients of (q, k, v, table, dy)."""
    import jax

    def both(q: Any, k: Any, v: Any, table: Any, dy: Any) -> Any:
        y, backward = jax.vjp(run, q, k, v, table)
        return y, *backward(dy.astype(y.dtype))

    return jax.jit(both).lower(*given.arrays).compile()


def errors(actual: Any, expected: Any, is_real: Any) -> dict[str, float]:
    """Relative error of the values and of each gradient."""
    import jax.numpy as jnp

    relative = {}
    for name, a, b in zip(("y", "dq", "dk", "dv", "dbias"), actual, expected):
        if a is not None and b is not None:
            a, b = (x.astype(jnp.float32) * (is_real if name == "y" else 1) for x in (a, b))
            relative[name] = float(jnp.linalg.norm((a - b).ravel()) / jnp.linalg.norm(b.ravel()))
    return relative


def milliseconds(run: Run, given: Inputs) -> float:
    import jax

    times = []
    for _ in range(1 if shared.IS_DRY else 10):
        begun = time.perf_counter()
        jax.block_until_ready(run(*given.arrays))
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)


def cases() -> dict[str, Case]:
    """Those of this call."""
    if shared.IS_DRY:
        names = ("packed causal 1024", "T5's bias, causal, dropout 114", "grouped, causal 2048")
        return {name: CASES[name].tiny() for name in names}
    return dict(list(CASES.items())[:3]) if shared.IS_QUICK else CASES


def check(
    report: shared.Report, label: str, program: futures.Future[Run], given: Inputs, expected: Any, dtype: str
) -> float:
    """Compares a program with the reference and times it; returns its largest error."""
    try:
        run = program.result()
        relative = errors(run(*given.arrays), expected, given.is_real)
        time_ms = milliseconds(run, given)
    except Exception as error:
        report.add(label, {"error": shared.describe(error)}, f"{label}: {shared.describe(error)}", is_good=False)
        return math.inf
    worst = max(relative.values(), key=lambda value: math.inf if math.isnan(value) else value)
    is_near = worst <= TOLERANCE[dtype]  # not of NaN
    line = f"{label:52} off by {worst:.1e}, {time_ms:9.3f} ms{'' if is_near else f'  FAR {relative}'}"
    report.add(label, {"errors": relative, "ms": time_ms, "is_near": is_near}, line, is_near)
    return worst if is_near or worst == worst else math.inf


def main() -> int:
    report = shared.Report()
    jobs: dict[tuple[str, str], tuple[Inputs, dict[str, futures.Future[Run]]]] = {}
    with futures.ThreadPoolExecutor(1 if shared.IS_DRY else 10) as pool:
        for case_name, case in cases().items():
            for dtype in TOLERANCE:
                given = inputs(case, dtype)
                runs = {"reference": reference(case, given)}
                runs |= {name: run for name in IMPLEMENTATIONS if (run := implementation(name, case, given, dtype))}
                programs = {name: pool.submit(functools.partial(compiled, run, given)) for name, run in runs.items()}
                jobs[case_name, dtype] = given, programs
        for _, programs in jobs.values():  # all of them before the first one is timed
            futures.wait(programs.values())
    worst = dict.fromkeys(TOLERANCE, 0.0)
    count = 0
    for (case_name, dtype), (given, programs) in jobs.items():
        try:
            expected = programs.pop("reference").result()(*given.arrays)
        except Exception as error:
            report.add(f"{case_name}, {dtype}", shared.describe(error), f"{case_name}: {shared.describe(error)}", False)
            continue
        for name, program in programs.items():
            error = check(report, f"{case_name}, {dtype}, {name}", program, given, expected, dtype)
            worst[dtype], count = max(worst[dtype], error), count + 1
    texts = [f"{dtype} within {worst[dtype]:.1e} ({TOLERANCE[dtype]:.0e} is allowed)" for dtype in TOLERANCE]
    report.headline(f"{count - report.failures} of {count}: {', '.join(texts)}")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
