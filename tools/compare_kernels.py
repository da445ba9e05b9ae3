"""The losses of a run whose attention is a kernel, interpreted by JAX on this CPU, beside those with plain attention.

Command: python tools/compare_kernels.py RECIPE fused|flash [--steps 300] [key=value …]

Both runs are float32 without dropout and see the same batches. Prints how often the kernel was traced and, after some
steps, both losses, their difference and the largest so far. Rounding grows with the steps: what is wrong shows in
the first ones.

Example: python tools/compare_kernels.py configs/smoke/t5_tiny.yaml flash
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

DEVICE = {"fused": ("tpu", "TPU v5e"), "flash": ("gpu", "NVIDIA H100")}
SHOWN = 1, 10, 30, 100, 200, 300, 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("kernel", choices=list(DEVICE))
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--run", choices=["xla", *DEVICE], help=argparse.SUPPRESS)  # one of the two runs
    given = parser.parse_intermixed_args()
    if given.run:
        return train(given.run, [given.recipe, *given.overrides])
    fixed = ["model.dtype=float32", "model.dropout=0", "data.length=64", "data.batch_size=16", "train.phases=[]"]
    fixed += [f"train.steps={given.steps}", f"train.eval_every={given.steps}", "train.log_every=1"]
    with tempfile.TemporaryDirectory() as directory:
        plain, kernel = (
            losses(name, [given.recipe, *fixed, *given.overrides, f"run_dir={directory}/{name}"], given)
            for name in ("xla", given.kernel)
        )
    print(f"{'step':>5} {'plain':>10} {given.kernel:>10} {'apart':>10} {'at most':>10}")
    apart = [abs(a - b) for a, b in zip(plain, kernel, strict=True)]
    for step in sorted({*SHOWN, given.steps}):
        if step <= given.steps:
            a, b, last = plain[step - 1], kernel[step - 1], apart[:step]
            print(f"{step:>5} {a:>10.6f} {b:>10.6f} {last[-1]:>10.2e} {max(last):>10.2e}")
    return 0


def losses(name: str, words: list[str], given: argparse.Namespace) -> list[float]:
    """The loss of each step of a run, in a process of its own."""
    command = [sys.executable, __file__, *words[:1], given.kernel, *words[1:], "--run", name]
    done = subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: {(done.stderr or done.stdout)[-2000:]}")
    print(f"{name}: {done.stdout.strip().splitlines()[-1]}")
    run_dir = Path(words[-1].removeprefix("run_dir="))
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line["train/loss"] for line in lines if "train/loss" in line]


def train(name: str, words: list[str]) -> int:
    """Trains; with a kernel wherever it takes the arguments."""
    from jaxpt import cli
    from jaxpt.errors import UserError
    from jaxpt.models import attention, kernels

    traced = 0
    if name != "xla":
        original, run = attention.choose, functools.partial(getattr(kernels, name), interpret=True)

        def choose(q_shape: Any, k_shape: Any, dtype: Any, *others: Any) -> str:
            try:
                return original(q_shape, k_shape, "bfloat16", *others[:3], name)
            except UserError:
                return "xla"

        def counted(*arguments: Any) -> Any:
            nonlocal traced
            traced += 1
            return run(*arguments)

        platform, kind = DEVICE[name]
        attention.compiler = types.SimpleNamespace(platform=lambda: platform, device_kind=lambda: kind)
        attention.choose = choose
        setattr(kernels, name, counted)
    code = cli.main(["train", *words])
    print(f"{traced} attentions traced with the kernel" if name != "xla" else "plain attention")
    return code


if __name__ == "__main__":
    sys.exit(main())
