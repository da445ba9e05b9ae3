"""Traces of three training steps of GPT-2 124M: jaxpt's own table, and the operations that took most time.

The second trace is without XLA's command buffers (CUDA graphs), whose kernels may not say of which operation they are.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import shared

VARIANTS = {"default": "", "without command buffers": "--xla_gpu_enable_command_buffer="}
"""{name: flags of XLA}."""
FIRST, STEPS, LAST = 6, 3, 12
MOST_OPERATIONS = 25


def trace(folder: Path) -> dict[str, Any]:
    """Runs some steps, three of them traced."""
    import jax

    from jaxpt.config import ProfileConfig
    from jaxpt.train import profile, state, step

    (cases,) = shared.bench("cases")
    config = shared.timed_config("bert" if shared.IS_DRY else "gpt2")
    setup = state.setup(config, jax.devices()[:1])
    batch = step.put(cases.random_batch(step.batch_shapes(setup, config.objective), config.model.vocab_size), setup)
    program = step.traced(setup, config.objective).lower().compile()
    table: list[str] = []
    profile.say = table.append
    current, tracing = setup.init(), profile.Profile(ProfileConfig(first=FIRST, steps=STEPS), folder, program)
    milliseconds = []
    for number in range(1, LAST + 1):
        tracing.before(number)
        begun = time.perf_counter()
        current, metrics = program(current, batch)
        if not FIRST <= number < FIRST + STEPS:
            jax.block_until_ready(metrics)
            milliseconds.append(1e3 * (time.perf_counter() - begun))
        tracing.after(number, metrics)
    newest = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    median = sorted(milliseconds)[len(milliseconds) // 2]
    return {"table": table, "step_ms": median, **largest(newest, program.as_text())}


def largest(path: Path, text: str) -> dict[str, Any]:
    """The operations of a trace by time.

    Args:
      path: of the trace.
      text: the program's HLO.

    Returns:
      Milliseconds of kernels and of operations, and the share of the device's time that says of which operation it is.
    """
    import jax

    from jaxpt.train import profile

    names, by_kernel, by_operation = profile.op_names(text), collections.Counter(), collections.Counter()
    data, named, total = jax.profiler.ProfileData.from_file(str(path)), 0.0, 0.0
    devices = [plane for plane in data.planes if plane.name.startswith("/device:")]
    for plane in devices or list(data.planes):
        for line in plane.lines:
            if devices and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                milliseconds, operation = event.duration_ns / 1e6, dict(event.stats).get("hlo_op")
                total += milliseconds
                by_kernel[event.name[:120]] += milliseconds
                if operation:
                    named += milliseconds
                    by_operation[f"{operation}: {names.get(str(operation), '')[-120:]}"] += milliseconds
    return {
        "lines_of_planes": {plane.name: [line.name for line in plane.lines][:12] for plane in data.planes},
        "device_ms": total, "named_share": named / total if total else None,
        "kernels": dict(by_kernel.most_common(MOST_OPERATIONS)),
        "operations": dict(by_operation.most_common(MOST_OPERATIONS)),
    }  # fmt: skip


def in_a_process(folder: Path, flags: str) -> dict[str, Any]:
    """A trace in a process with its own flags of XLA; {"error": …} if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "trace.json"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    command = [sys.executable, __file__, str(folder), str(target)]
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
    if done.returncode or not target.exists():
        print(done.stderr[-2000:], file=sys.stderr)
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:400]}
    return json.loads(target.read_text("utf-8"))


def main() -> int:
    if len(sys.argv) > 1:
        result = trace(Path(sys.argv[1]))
        Path(sys.argv[2]).write_text(json.dumps(result, default=float), "utf-8")
        return 0
    report = shared.Report()
    root = Path(os.environ.get("DEVICE_TRACES", "/tmp/device-traces"))
    texts = []
    for name, flags in VARIANTS.items():
        if shared.IS_DRY and flags:
            continue
        result = in_a_process(root / name.replace(" ", "-"), flags)
        if "error" in result:
            report.add(name, result, f"{name}: {result['error']}", is_good=False)
            continue
        share = result["named_share"]
        named = "nothing on the device" if share is None else f"{share:.0%} of the device's time is named"
        texts.append(f"{name}: {result['step_ms']:.1f} ms, {named}")
        largest_first = list(result["operations"].items()) or list(result["kernels"].items())
        lines = [*result["table"], *(f"{ms:8.2f} ms  {label}" for label, ms in largest_first[:12])]
        report.add(name, result, "\n".join([texts[-1], *lines]))
    report.headline("; ".join(texts))
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
