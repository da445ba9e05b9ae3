"""Training steps on prepared batches: float32 losses beside those of a CPU, and bfloat16.

python tools/on_device/training.py [--cpu]      --cpu: float32 alone, whatever the device
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import shared

TOLERANCE, COMPARED = 1e-3, 10
"""Of the float32 losses of the first steps, relative."""
COUNT, DRY_COUNT, REFERENCE = 200, COMPARED, 60
"""Steps that are run, and those of which `losses.json` has the loss."""


def run(name: str, overrides: Sequence[str], count: int) -> dict[str, Any]:
    """Trains from prepared batches.

    Args:
      name: of the recipe.
      overrides: of it.
      count: of steps.

    Returns:
      The loss of each step, its time, and which attention was chosen how often.
    """
    import jax
    import numpy as np

    from jaxpt.data import preparing
    from jaxpt.train import state, step

    with tempfile.TemporaryDirectory() as folder:
        config = shared.recipe(name, [*shared.batch_overrides(name), *overrides, f"run_dir={folder}/run"])
        batches = preparing.prepare(config, save=False).train.batches(0)
        setup = state.setup(config, jax.devices()[:1])
        begun = time.perf_counter()
        with attention_choices() as chosen:
            program = step.traced(setup, config.objective).lower().compile()
        compile_seconds = time.perf_counter() - begun
        current, losses, seconds = setup.init(), [], []
        for _, batch in zip(range(count), batches):
            placed = step.put(batch, setup)
            begun = time.perf_counter()
            current, metrics = program(current, placed)
            losses.append(float(metrics["loss"]))
            seconds.append(time.perf_counter() - begun)
    return {
        "losses": losses, "compile_seconds": compile_seconds, "step_ms": 1e3 * float(np.median(seconds[count // 4 :])),
        "skipped_steps": int(current.skipped_total), "attention": dict(chosen), "platform": jax.devices()[0].platform,
    }  # fmt: skip


@contextlib.contextmanager
def attention_choices() -> Iterator[collections.Counter[str]]:
    """Counts the implementations that `attention.choose` selects."""
    from jaxpt.models import attention

    counts: collections.Counter[str] = collections.Counter()
    choose = attention.choose

    def counted(*arguments: Any) -> Any:
        name = choose(*arguments)
        counts[name] += 1
        return name

    attention.choose = counted
    try:
        yield counts
    finally:
        attention.choose = choose


def compare(losses: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """Relative differences of losses from those of the reference, which may have another number of steps.

    Example:
      >>> compare([2.0, 2.2], [2.0, 2.0, 1.0])["largest"], compare([2.0, float("nan")], [2.0, 2.0])["largest"]
      (0.1, inf)
    """
    differences = [abs(loss - wanted) / wanted for loss, wanted in zip(losses, reference)]
    largest = max(float("inf") if math.isnan(difference) else difference for difference in differences[:COMPARED])
    return {"largest": round(largest, 9), "first": differences[0], "last": differences[-1], "steps": len(differences)}


def jobs(only_float32: bool) -> list[tuple[str, str, Sequence[str]]]:
    """(recipe, dtype, overrides) in the order of worth."""
    names = ["gpt2_tiny"] if shared.IS_QUICK or shared.IS_DRY else list(shared.RECIPES)
    sizes = shared.TINY if shared.IS_DRY else ()
    dtypes = {"float32": shared.FLOAT32} | ({} if only_float32 or shared.IS_QUICK else {"bfloat16": shared.BFLOAT16})
    return [(name, dtype, [*overrides, *sizes]) for dtype, overrides in dtypes.items() for name in names]


def key_of(name: str, is_dry: bool = shared.IS_DRY) -> str:
    """Where `losses.json` has the losses of a recipe."""
    return f"{name}, dry" if is_dry else name


def main() -> int:
    import jax

    report = shared.Report()
    reference = json.loads(shared.LOSSES.read_text("utf-8"))
    largest = 0.0
    for name, dtype, overrides in jobs("--cpu" in sys.argv):
        label = f"{name} {dtype}"
        try:
            with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
                result = run(name, overrides, DRY_COUNT if shared.IS_DRY else COUNT)
        except Exception as error:
            report.add(label, {"error": shared.describe(error)}, f"{label}: {shared.describe(error)}", is_good=False)
            continue
        difference = compare(result["losses"], reference[key_of(name)]["losses"])
        is_near = dtype != "float32" or difference["largest"] <= TOLERANCE
        largest = max(largest, difference["largest"]) if dtype == "float32" else largest
        losses = result["losses"]
        line = (
            f"{label}: loss {losses[0]:.4f} → {losses[-1]:.4f} in {len(losses)} steps of {result['step_ms']:.2f} ms; "
            f"{difference['largest']:.1e} from the CPU's in {COMPARED} steps{'' if is_near else ': FAR'}; attention: "
            f"{', '.join(result['attention'])}"
        )
        report.add(label, result | {"difference": difference, "cpu": reference[key_of(name)]["cpu"]}, line, is_near)
    report.headline(f"float32 within {largest:.1e} of the CPU's losses ({TOLERANCE} is allowed)")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
