"""Checks and measures jaxpt on a machine with an accelerator: with neither network nor TensorFlow, within minutes.

    python tools/device.py --pack .device           # where jaxpt and TensorFlow are installed: what the machine needs
    python tools/device.py --kit .device --quick    # on the machine, 3 minutes: facts, kernels, training, GPT-2's speed
    python tools/device.py --kit .device            # all, 9 minutes
    python tools/device.py --kit .device --dry      # all on a CPU, with tiny sizes

Each step is a process of its own with a limit; one that fails, hangs or writes nonsense is recorded, and the next one
starts. Steps are in the order of their worth: what there is no time for is left out. Into $OUT, --out or KIT/out:
results.json and summary.txt after each step, log.txt, and traces.tar.gz for xprof. The exit code is 0 if all is well,
1 if not, 2 if the arguments make no sense. Needs Python 3.12 with jax, flax, optax, orbax-checkpoint and numpy, and
torch with transformers to be compared with. The rest is installed from KIT/wheels.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from on_device import wheels
from on_device.runner import Runner, Step, summary

ROOT = Path(__file__).resolve().parents[1]
STEPS_FOLDER = ROOT / "tools" / "on_device"
TOTAL_SECONDS, QUICK_SECONDS, DRY_SECONDS = 540, 170, 3600
TRACE_BYTES = 14 * 2**20
PARTS = ("batches", "losses", "predictions", "wheels")
"""Of `--pack`."""


def steps(is_dry: bool = False) -> list[Step]:
    """All steps, in the order of their worth. Those of a group run at the same time; what is timed runs alone.

    Args:
      is_dry: sizes for a CPU.
    """

    def step(name: str, words: str, limit: int, group: int, is_quick: bool = False, **environment: str) -> Step:
        file, *more = words.split()
        return Step(name, (str(STEPS_FOLDER / file), *more), limit, group, is_quick, environment)

    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    found = [
        step("facts", "facts.py", 100, 0, True),
        step("kernels", "kernels.py", 130, 1, True, **shared),
        step("training", "training.py", 130, 1, True, **shared),
        step("cpu", "training.py --cpu", 130, 1, JAX_PLATFORMS="cpu"),
        step("plan", "plan.py", 130, 1, JAX_PLATFORMS="cpu"),
        step("speed:gpt2", "speed.py gpt2", 110, 2, True),
        step("whole", "whole.py", 120, 3, **shared),
        step("tests", "gpu_tests.py", 150, 3, **shared),
        step("speed:bert", "speed.py bert", 100, 4),
        step("speed:llama", "speed.py llama", 110, 5),
        step("decode:gpt2", "decode.py gpt2", 70, 6, **shared),
        step("speed:t5", "speed.py t5", 100, 7),
        step("experts", "experts.py", 60, 8, **shared),
        step("profile", "profiling.py", 60, 9),
        step("decode:llama", "decode.py llama", 80, 10, **shared),
    ]
    if is_dry:  # two cores have no use for several at once
        found = [Step(s.name, s.command, 600, number, s.is_quick, s.environment) for number, s in enumerate(found)]
    return found


def main(arguments: Sequence[str] | None = None, known: Sequence[Step] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: without the program's name.
      known: the steps that there are; by default those of `steps`.
    """
    parser = _parser()
    a = parser.parse_args(arguments)
    if a.pack is not None:
        return _pack(parser, a)
    known = steps(a.dry) if known is None else known
    chosen = choose(parser, a, known)
    if not a.kit.is_dir():
        parser.error(f"--kit: there is no directory {a.kit}; `--pack {a.kit}` makes one")
    out = Path(os.environ.get("OUT") or a.out or a.kit / "out")
    if out.exists() and not out.is_dir():
        parser.error(f"--out: {out} is no directory")
    total = a.total or (QUICK_SECONDS if a.quick else DRY_SECONDS if a.dry else TOTAL_SECONDS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    with tempfile.TemporaryDirectory(prefix="device-") as folder:
        scratch = Path(folder)
        runner = Runner(out, scratch, total, environment(a, scratch))
        print(wheels.install(a.kit / "wheels", scratch / "packages"), flush=True)
        groups = [[step for step in chosen if step.group == number] for number in sorted({s.group for s in chosen})]
        results = runner.run(groups)
        pack_traces(scratch / "traces", out / "traces.tar.gz")
    print(f"\n{summary(results)}\n\nin {out}: results.json, summary.txt, log.txt; tools/README.md says what they mean")
    return 0 if all(record["status"] == "ok" for record in results.values()) else 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"device.py: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python tools/device.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pack", type=Path, metavar="DIR", help="writes what the machine needs into DIR")
    parser.add_argument("--kit", type=Path, metavar="DIR", default=ROOT / ".device", help="what --pack wrote (.device)")
    parser.add_argument("--quick", action="store_true", help="what is worth most, in 3 minutes")
    parser.add_argument("--dry", action="store_true", help="on a CPU, with tiny sizes; with --pack of one recipe alone")
    parser.add_argument("--only", type=names, default=(), metavar="A,B", help="these steps; with --pack these parts")
    parser.add_argument("--without", type=names, default=(), metavar="A,B", help="all but these")
    parser.add_argument("--total", type=seconds, metavar="SECONDS", help="in which everything ends")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results go; $OUT comes first")
    return parser


def names(text: str) -> tuple[str, ...]:
    """An argument's type: names between commas."""
    return tuple(name for name in text.split(",") if name)


def seconds(text: str) -> float:
    """An argument's type: seconds from 1 on."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"wants seconds from 1 on, not {text!r}")
    return value


def choose(parser: argparse.ArgumentParser, a: argparse.Namespace, known: Sequence[Step]) -> list[Step]:
    """The steps that are asked for; ends with one line and exit code 2 where there is no such step."""
    _check_names(parser, a, "step", [step.name for step in known])
    if a.only:
        chosen = [step for step in known if step.name in a.only]
    else:
        chosen = [step for step in known if step.is_quick or not a.quick]
        if (a.kit / "predictions.json").exists() and not a.dry:  # made before
            chosen = [step for step in chosen if step.name != "plan"]
    return [step for step in chosen if step.name not in a.without]


def _check_names(parser: argparse.ArgumentParser, a: argparse.Namespace, what: str, known: Sequence[str]) -> None:
    if unknown := [name for name in (*a.only, *a.without) if name not in known]:
        parser.error(f"there is no {what} {unknown[0]!r}; there are {', '.join(known)}")
    if not set(a.only or known) - set(a.without):
        parser.error(f"--only and --without leave no {what}")


def environment(a: argparse.Namespace, scratch: Path) -> dict[str, str]:
    """That of all steps: what is installed from wheels comes first, and caches are of this call alone."""
    path = os.pathsep.join([str(scratch / "packages"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = os.environ | {
        "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "DEVICE_KIT": str(a.kit.resolve()), "TMPDIR": str(scratch),
        "DEVICE_TRACES": str(scratch / "traces"), "XDG_CACHE_HOME": str(scratch / "cache"),
    }  # fmt: skip
    found.setdefault("JAX_COMPILATION_CACHE_DIR", str(scratch / "compiled"))
    found.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    found.pop("DEVICE_DRY", None)
    found.pop("DEVICE_QUICK", None)
    if a.quick:
        found["DEVICE_QUICK"] = "1"
    if a.dry:
        found |= {"DEVICE_DRY": "1", "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
    return found


def pack_traces(folder: Path, target: Path) -> None:
    """Traces for xprof; none where they are too large to be carried."""
    traces = sorted(folder.rglob("*.xplane.pb"))
    if traces:
        with tarfile.open(target, "w:gz") as archive:
            for path in traces:
                archive.add(path, path.relative_to(folder))
        if target.stat().st_size > TRACE_BYTES:
            target.unlink()


def _pack(parser: argparse.ArgumentParser, a: argparse.Namespace) -> int:
    """Runs `on_device/pack.py`, which needs jaxpt."""
    _check_names(parser, a, "part", PARTS)
    parts = [part for part in PARTS if (not a.only or part in a.only) and part not in a.without]
    if a.pack.exists() and not a.pack.is_dir():
        parser.error(f"--pack: {a.pack} is no directory")
    a.pack.mkdir(parents=True, exist_ok=True)
    found = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    found |= {"DEVICE_KIT": str(a.pack.resolve())} | ({"DEVICE_DRY": "1"} if a.dry else {})
    return subprocess.run([sys.executable, str(STEPS_FOLDER / "pack.py"), *parts], env=found).returncode


if __name__ == "__main__":
    sys.exit(main())
