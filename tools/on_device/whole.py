"""`jaxpt train` on prepared batches: straight through, and stopped by SIGTERM and resumed: bit-equal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import shared

CLOCKS = ("speed/", "memory/", "phase/", "time", "crc32")
"""How the names of metrics begin that differ from run to run."""


def start(words: Sequence[str], run_dir: Path, *overrides: str) -> subprocess.Popen[str]:
    """`jaxpt train` with the words of `command`, as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "jaxpt", "train", *words, f"run_dir={run_dir}", *overrides],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=shared.ROOT,
    )  # fmt: skip


def command(name: str, steps: int) -> list[str]:
    """The words of `jaxpt train` for a recipe with evaluations, checkpoints and a trace of some steps."""
    eval_every = steps if shared.IS_DRY else steps // 4
    sizes = shared.TINY if shared.IS_DRY else ("model.dtype=bfloat16",)
    return [
        shared.RECIPES[name], *shared.batch_overrides(name), f"train.steps={steps}", *sizes,
        "evals=[{kind: heldout}]", "log.tensorboard=false", "train.log_every=1",
        f"train.eval_every={eval_every}", "train.deterministic=true",
        f"train.recompute_every={steps // 4}",  # a step that gives other bits the second time ends the run
    ]  # fmt: skip


def straight(words: Sequence[str], run_dir: Path, steps: int) -> dict[str, Any]:
    """One run without an interruption, with a trace."""
    process = start(words, run_dir, f"profile={{first: {steps // 2 + 1}, steps: 3}}")
    output = process.communicate()[0]
    return {"exit_codes": [process.returncode], "output": output[-3000:]}


def interrupted(words: Sequence[str], run_dir: Path) -> dict[str, Any]:
    """A run that gets SIGTERM when its first losses are written, and the same command again."""
    first, metrics = start(words, run_dir), run_dir / "metrics.jsonl"
    was_stopped = False
    while first.poll() is None and not was_stopped:
        if metrics.is_file() and '"train/loss"' in metrics.read_text("utf-8"):
            first.send_signal(signal.SIGTERM)
            was_stopped = True
        time.sleep(0.02)
    output = first.communicate()[0]
    stopped_at = max((line["step"] for line in read_metrics(run_dir)), default=0)
    second = start(words, run_dir)
    output = f"{output[-3000:]}\n---- resumed\n{second.communicate()[0][-3000:]}"
    return {
        "exit_codes": [first.returncode, second.returncode], "stopped_at": stopped_at if was_stopped else None,
        "output": output,
    }  # fmt: skip


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    file = run_dir / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.is_file() else []


def figures(run_dir: Path) -> dict[tuple[int, str], Any]:
    """{(step, metric): figure} of a run, without those of clocks; what a resume says again has to be the same."""
    return {
        (line["step"], name): value
        for line in read_metrics(run_dir)
        for name, value in line.items()
        if name != "step" and not name.startswith(CLOCKS)
    }


def different_arrays(one: Path, two: Path, step: int) -> list[str]:
    """Names of the arrays of two checkpoints that are not equal bit for bit."""
    import jax
    import numpy as np

    from jaxpt import config as configs
    from jaxpt.train import checkpoint, state

    def arrays(run_dir: Path) -> dict[str, Any]:
        config = configs.load(run_dir)
        reader = checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True)
        restored = jax.device_get(reader.restore(state.setup(config, jax.devices()[:1]), step))
        reader.close()
        return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(restored)}

    first, second = arrays(one), arrays(two)
    if first.keys() != second.keys() or len(first) < 20:
        return ["the names of the arrays"]
    return [name for name in first if first[name].tobytes() != second[name].tobytes()]


def compare(name: str, folder: Path, steps: int, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What differs between the two runs of a recipe.

    Returns:
      The result of the recipe: "problems" are why it is not as it should be.
    """
    whole, resumed = folder / name / "straight", folder / name / "resumed"
    first, second = figures(whole), figures(resumed)
    losses = [(step, value) for (step, metric), value in first.items() if metric == "train/loss"]
    problems = [f"exit codes {part['exit_codes']}" for part in parts if not set(part["exit_codes"]) <= {0, 143}]
    if parts[1]["stopped_at"] is None:
        problems.append("the run ended before the signal")
    differing = sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))
    if differing:
        problems.append(f"{len(differing)} metrics differ, first {differing[0][1]} at step {differing[0][0]}")
    arrays: list[str] = []
    if not problems:
        arrays = different_arrays(whole, resumed, steps)
        problems += [f"{len(arrays)} arrays of the last checkpoint differ, such as {arrays[0]}"] if arrays else []
        if losses[-1][1] >= losses[0][1]:
            problems.append("the loss did not fall")
    return {
        "problems": problems, "stopped_at": parts[1]["stopped_at"], "losses": losses[:: max(len(losses) // 20, 1)],
        "last_loss": losses[-1][1] if losses else None, "metrics_compared": len(first),
        "different_arrays": arrays[:20],
        "held_out": {step: value for (step, metric), value in first.items() if metric == "validation/loss"},
        "traces": len(list(whole.rglob("*.xplane.pb"))), "straight": parts[0], "resumed": parts[1],
    }  # fmt: skip


def main() -> int:
    report = shared.Report()
    steps, recipes = (8, ["gpt2_tiny"]) if shared.IS_DRY else (shared.STEPS, list(shared.RECIPES))
    threads = 1 if shared.IS_DRY else 2 * len(recipes)
    with tempfile.TemporaryDirectory() as name, futures.ThreadPoolExecutor(threads) as pool:
        folder = Path(name)
        running = {}
        for recipe in recipes:
            train = command(recipe, steps)
            running[recipe] = [
                pool.submit(straight, train, folder / recipe / "straight", steps),
                pool.submit(interrupted, train, folder / recipe / "resumed"),
            ]
        for recipe, parts in running.items():
            try:
                result = compare(recipe, folder, steps, [part.result() for part in parts])
                keep_traces(folder / recipe / "straight", recipe)
            except Exception as error:
                result = {"problems": [shared.describe(error)]}
            problems = "; ".join(result["problems"])
            line = problems or (
                f"stopped at step {result['stopped_at']} of {steps} and resumed: bit-equal to the straight run in "
                f"{result['metrics_compared']} metrics and all arrays; loss {result['last_loss']:.4f}"
            )
            report.add(recipe, result, f"{recipe}: {line}", is_good=not problems)
            if problems:
                print(*(result.get(part, {}).get("output", "") for part in ("straight", "resumed")), sep="\n")
    equal = len(recipes) - report.failures
    report.headline(f"{equal} of {len(recipes)} recipes resumed bit-equal after SIGTERM")
    return report.exit_code()


def keep_traces(run_dir: Path, name: str) -> None:
    """Copies the traces of a run to where the runner packs them."""
    target = Path(os.environ.get("DEVICE_TRACES", ""))
    for path in run_dir.rglob("*.xplane.pb") if target.name else ():
        (target / "whole" / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / "whole" / name)


if __name__ == "__main__":
    sys.exit(main())
