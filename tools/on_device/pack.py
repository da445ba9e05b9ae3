"""What a machine without network and TensorFlow needs, into the directory $DEVICE_KIT: `tools/device.py --pack`.

batches/NAME         prepared batches of the recipes
losses.json          their float32 losses of the first steps, on this CPU
predictions.json     `jaxpt plan` of the timed cases on GPUs, if their compiler is installed
wheels/              of requirements.txt, for CPython 3.12 on x86-64 with glibc 2.28 or later
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import shared
import wheels

MOST_BYTES = 30e6
"""Of all but the batches."""
PIP = (
    "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", "--platform",
    "manylinux_2_28_x86_64", "--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64",
)  # fmt: skip


def recipes() -> list[str]:
    return ["gpt2_tiny"] if shared.IS_DRY else list(shared.RECIPES)


def batches() -> None:
    """Writes those that are not there yet."""
    from jaxpt.data.batches import write
    from jaxpt.evals.baseline import baseline

    for name in recipes():
        folder = shared.BATCHES / name
        if folder.exists():
            print(f"{folder}: is there")
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        config = shared.recipe(name, [*shared.FIXED, "evals=[{kind: heldout}]", f"run_dir={folder}.run"])
        write.write_batches(config, shared.STEPS, folder, baseline)
        print(f"{folder}: {shared.STEPS} steps, {size(folder) / 1e6:.2f} MB", flush=True)


def losses() -> None:
    """Writes the first losses of those recipes that have none yet."""
    import jax
    import training

    known = json.loads(shared.LOSSES.read_text("utf-8")) if shared.LOSSES.exists() else {}
    jobs = [("gpt2_tiny", True), *((name, False) for name in recipes() if not shared.IS_DRY)]
    for name, is_dry in [job for job in jobs if training.key_of(*job) not in known]:
        overrides, count = (shared.TINY, training.DRY_COUNT) if is_dry else ((), training.REFERENCE)
        with jax.default_matmul_precision("highest"):
            result = training.run(name, [*shared.FLOAT32, *overrides], count)
        known[training.key_of(name, is_dry)] = {"losses": result["losses"], "cpu": cpu(), "jax": jax.__version__}
        shared.LOSSES.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
        print(f"{name}: loss {result['losses'][0]:.4f} → {result['losses'][-1]:.4f} in {count} steps", flush=True)


def cpu() -> str:
    """Its name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def predictions() -> None:
    """Plans the timed cases, if the compiler for GPUs is here."""
    import plan

    if shared.PREDICTIONS.exists():
        print(f"{shared.PREDICTIONS}: is there")
    elif not plan.has_compiler():
        print("predictions: left to the device machine; with `pip install '.[plan-gpu]'` they are made here")
    else:
        plan.write(shared.PREDICTIONS, shared.Report())


def collect_wheels() -> None:
    """Downloads the wheels of requirements.txt."""
    folder = shared.KIT / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "-q", *PIP, "-d", str(folder), "-r", str(wheels.REQUIREMENTS)]
    subprocess.run(command, check=True)
    print(f"{folder}: {len(list(folder.glob('*.whl')))} wheels, {size(folder) / 1e6:.1f} MB", flush=True)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_size() -> int:
    """Prints what the kit weighs; 1 if that is too much."""
    everything = size(shared.KIT) - size(shared.KIT / "out") if (shared.KIT / "out").is_dir() else size(shared.KIT)
    rest = everything - (size(shared.BATCHES) if shared.BATCHES.is_dir() else 0)
    print(f"{shared.KIT}: {everything / 1e6:.1f} MB, without the batches {rest / 1e6:.1f} of {MOST_BYTES / 1e6:.0f} MB")
    return 1 if rest >= MOST_BYTES else 0


def main() -> int:
    parts = {"batches": batches, "losses": losses, "predictions": predictions, "wheels": collect_wheels}
    for part in sys.argv[1:]:
        try:
            parts[part]()
        except (subprocess.CalledProcessError, ImportError, OSError) as error:
            print(f"{part}: {shared.describe(error)}", file=sys.stderr)
            return 1
    return check_size()


if __name__ == "__main__":
    sys.exit(main())
