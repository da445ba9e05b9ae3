"""The runner of `tools/device.py` with steps that go wrong, and the cheapest real steps on a CPU."""

import doctest
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jaxpt.data.batches.write import write_batches
from jaxpt.evals import baseline
from tests.waiting import until

ROOT = Path(__file__).parents[2]
WRITE = "import json, os, pathlib; path = pathlib.Path(os.environ['DEVICE_RESULT'])\n"
GOOD = WRITE + "path.write_text(json.dumps({'headline': 'fast', 'lines': ['a line'], 'x': 1}))"
BAD = {
    "crash": (WRITE + "path.write_text('{\"x\": 1}'); print('before'); os.abort()", "ended by signal 6", {"x": 1}),
    "hang": (WRITE + "path.write_text('{\"x\": 2}'); import time; time.sleep(600)", "time out after 5 s", {"x": 2}),
    "garbage": (WRITE + "path.write_bytes(bytes(range(256)))", "result is not JSON", None),
    "list": (WRITE + "path.write_text('[1]')", "result is not a JSON object", None),
    "nothing": ("pass", "no result", None),
    "raises": ("raise SystemExit(3)", "exit code 3", None),
    "far": (WRITE + "path.write_text('{\"x\": NaN}'); raise SystemExit(1)", "failed", {"x": "NaN"}),
}
"""{step: (program, how it ends, what is kept of its result)}"""


@pytest.fixture
def device(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delenv("OUT", raising=False)
    handler = signal.getsignal(signal.SIGTERM)
    yield importlib.import_module("device")
    signal.signal(signal.SIGTERM, handler)  # `main` has one of its own


@pytest.fixture
def step_modules(monkeypatch):
    """Imports modules of steps, as their own processes do."""
    monkeypatch.syspath_prepend(str(ROOT / "tools/on_device"))
    return importlib.import_module


def step(device, name, code, limit=120.0, group=0, is_quick=True):
    return device.Step(name, ("-c", code), limit, group, is_quick)


def runner(device, tmp_path, total=300.0):
    (tmp_path / "scratch").mkdir(exist_ok=True)
    return device.Runner(tmp_path / "out", tmp_path / "scratch", total, os.environ)


def read(folder):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads((folder / "results.json").read_text(), parse_constant=refuse)


def test_what_goes_wrong_is_recorded_and_the_rest_goes_on(device, tmp_path, monkeypatch):
    run, snapshots = runner(device, tmp_path), []
    record = run._record
    monkeypatch.setattr(run, "_record", lambda *given: (record(*given), snapshots.append(read(tmp_path / "out"))))
    bad = [step(device, name, code, limit=5 if name == "hang" else 120) for name, (code, _, _) in BAD.items()]
    run.run([bad[:4], bad[4:], [step(device, "good", GOOD)]])
    assert [len(one) for one in snapshots] == list(range(1, len(BAD) + 2))  # valid after each
    results = read(tmp_path / "out")
    for name, (_, status, result) in BAD.items():
        assert (results[name]["status"], results[name]["result"]) == (status, result)
    assert "before" in results["crash"]["last_lines"]
    assert results["good"]["status"] == "ok" and results["good"]["last_lines"] == ""
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert next(line for line in summary.splitlines() if line.startswith("good")).endswith("fast")
    assert "\n  a line" in summary
    assert "######## crash: ended by signal 6\nbefore" in (tmp_path / "out" / "log.txt").read_text()


def test_a_step_that_hangs_is_ended_with_what_it_started(device, tmp_path):
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    for limit in (2, 20, 120):
        runner(device, tmp_path).run([[step(device, "hang", code, limit)]])
        if (tmp_path / "child").exists():  # a loaded machine starts nothing in 2 s
            break
    stat = Path(f"/proc/{int((tmp_path / 'child').read_text())}/stat")
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_the_total_bounds_all_steps(device, tmp_path, monkeypatch):
    monkeypatch.setattr("on_device.runner.LEAST_SECONDS", 2)
    monkeypatch.setattr("on_device.runner.RESERVE_SECONDS", 1)
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr("on_device.runner.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    run = runner(device, tmp_path, total=3)
    hang = step(device, "hang", "import time; time.sleep(600)")
    results = run.run([[hang], [step(device, "late", GOOD)]])
    assert results["hang"]["status"] == "time out after 2 s" and now < 3
    assert results["late"]["status"] == "no time left" and read(tmp_path / "out") == results


def test_steps_of_a_group_run_at_the_same_time(device, tmp_path):
    code = (
        GOOD
        + f"""
import sys, time
here = pathlib.Path({str(tmp_path)!r})
(here / f"begun-{{sys.argv[1]}}").touch()
while len([*here.glob("begun-*")]) < 3:  # its time is over unless the others run at once
    time.sleep(0.01)
"""
    )
    steps = [device.Step(name, ("-c", code, name), 120.0) for name in "abc"]
    results = runner(device, tmp_path).run([steps])
    assert {one["status"] for one in results.values()} == {"ok"}


def test_the_command_line_chooses_steps(device, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device.wheels, "install", lambda *_: "")
    known = [
        step(device, "a", GOOD),
        step(device, "b", GOOD, is_quick=False, group=1),
        step(device, "c", BAD["far"][0]),
    ]

    def run(*words):
        code = device.main(["--kit", str(tmp_path), "--out", str(tmp_path / "out"), *words], known)
        return code, list(read(tmp_path / "out"))

    assert run("--quick", "--without", "c") == (0, ["a"])
    assert run("--quick", "--only", "b") == (0, ["b"])
    assert run("--only", "c") == (1, ["c"])
    assert "c  failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (["--only", "facts,nosuch"], "device.py: there is no step 'nosuch'; there are facts, kernels, training, cpu,"),
        (["--without", "nosuch"], "device.py: there is no step 'nosuch'"),
        (["--pack", "x", "--only", "facts"], "device.py: there is no part 'facts'; there are batches, losses,"),
        (["--kit", "/nowhere/kit"], "--kit: there is no directory /nowhere/kit"),
        (["--total", "soon"], "argument --total: wants seconds from 1 on, not 'soon'"),
        (["--only", "facts", "--without", "facts"], "device.py: --only and --without leave no step"),
        (["--pack", __file__], f"device.py: --pack: {__file__} is no directory"),
        (["--kit", "/", "--out", __file__], f"device.py: --out: {__file__} is no directory"),
    ],
)
def test_mistakes_are_one_line(device, words, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        device.main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2 and message in line


def test_a_step_of_each_name_is_there(device):
    for is_dry in (False, True):
        steps = device.steps(is_dry)
        assert all(Path(one.command[0]).is_file() for one in steps)
        assert len({one.name for one in steps}) == len(steps)
    runner = importlib.import_module("on_device.runner")
    left = (
        device.QUICK_SECONDS - runner.LEAST_SECONDS - runner.RESERVE_SECONDS
    )  # one that hangs leaves time for another
    assert device.QUICK_SECONDS <= 180 and all(one.limit <= left for one in device.steps() if one.is_quick)
    for one in device.steps():  # what is timed runs alone
        alone = [other for other in device.steps() if other.group == one.group] == [one]
        assert alone or not one.name.startswith(("speed", "decode", "profile"))


def test_the_runner_imports_the_standard_library_alone():
    code = """
import sys
sys.path.insert(0, "tools")
before = set(sys.modules)
import device
names = {name.partition(".")[0] for name in set(sys.modules) - before} - {"device", "on_device"}
print(sorted(name for name in names if name not in sys.stdlib_module_names))
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_requirements_are_pinned(device):
    lines = device.wheels.requirements()
    assert all(line.count("==") == 1 for line in lines) and len(lines) > 10
    assert device.wheels.missing(["numpy==0", "no-such-package-here==1"]) == ["no-such-package-here==1"]


def test_missing_wheels_are_said(device, tmp_path, monkeypatch):
    monkeypatch.setattr(device.wheels, "IMPORTS", "import no_such_package_here")
    monkeypatch.setattr(device.wheels, "requirements", lambda: ["no-such-package-here==1"])
    line = device.wheels.install(tmp_path, tmp_path / "packages")
    assert line.startswith("not installed: ") and line.endswith("run --pack where there is a network")


def test_examples_in_docstrings(device, step_modules):
    for name, count in (("runner", 2), ("plan", 1), ("training", 1)):
        module = importlib.import_module("on_device.runner") if name == "runner" else step_modules(name)
        failed, attempted = doctest.testmod(module)
        assert not failed and attempted >= count


def test_lines_beside_the_plan_have_bound_and_estimate(step_modules):
    speed = step_modules("speed")
    ours = {"median": 0.08, "peak_bytes": 3 * 2**30, "tokens_per_second": 2e5, "mfu": 0.4, "ratio": 1.0}
    result = {"device": "NVIDIA H100 80GB HBM3", "sides": {"jaxpt": ours, "torch": ours | {"ratio": 1.5}}}
    times = {"h100": {"bound_seconds": 0.05, "estimate_seconds": 0.064}}
    assert speed.plan_lines(result, {"total_bytes": 2 * 2**30, "times": times}) == [
        "memory: 3.00 GiB, planned 2.00 GiB (1.50 ×)",
        "time: 80.0 ms, planned lower bound 50.0 ms (1.60 ×), planned estimate 64.0 ms (1.25 ×)",
    ]
    times["h100"]["bound_seconds"] = 0.1
    assert speed.plan_lines(result, {"total_bytes": 1, "times": times})[1].endswith("the lower bound, which is wrong")
    assert speed.headline(result) == "200,000 tokens/s, MFU 40.0%, 3.00 GiB, 1.50 × the speed of torch (3.00 GiB)"
    assert "no plan" in speed.plan_lines(result, None)[0]


def test_errors_of_kernels_are_relative_and_found(step_modules):
    kernels, shared = (step_modules(name) for name in ("kernels", "shared"))
    a = np.ones((1, 2, 1, 4), np.float32)
    padded = np.array([1.0, 0.0], np.float32)[None, :, None, None]
    wrong = a + np.array([0.1, 9.0], np.float32)[None, :, None, None]  # the second query is padding
    relative = kernels.errors((wrong, None), (a, a), padded)
    assert relative == pytest.approx({"y": 0.1}, rel=1e-5)
    case = kernels.CASES["packed 512"].tiny()
    given = kernels.inputs(case, "float32")
    report = shared.Report()
    exact = kernels.compiled(kernels.reference(case, given), given)

    class Program:
        def __init__(self, run):
            self.result = lambda: run

    expected = exact(*given.arrays)
    assert kernels.check(report, "same", Program(exact), given, expected, "float32") == 0 and not report.failures
    far = [x if x is None else x * np.float32(1.01) for x in expected]
    kernels.check(report, "far", Program(exact), given, far, "float32")
    kernels.check(report, "nan", Program(exact), given, [x if x is None else x * np.nan for x in expected], "float32")
    assert report.failures == 2 and "FAR" in report.result["lines"][-1]


@pytest.fixture
def kit(tmp_path, step_modules, monkeypatch):
    """What `--pack --dry` writes, from a small text; modules of steps as in a dry, quick run with it."""
    steps = ("shared", "training", "pack", "facts")
    for name in steps:
        sys.modules.pop(name, None)  # other tests' modules have another kit
    monkeypatch.setenv("DEVICE_KIT", str(tmp_path / "kit"))
    monkeypatch.setenv("DEVICE_DRY", "1")
    monkeypatch.setenv("DEVICE_QUICK", "1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1")  # one device, as a machine has
    shared, pack = step_modules("shared"), step_modules("pack")
    (tmp_path / "a.txt").write_text("\n".join(f"Line {i} speaks of {w}, and ends." for i in range(900) for w in "abc"))
    config = shared.recipe("gpt2_tiny", [*shared.FIXED, f"data.path={tmp_path}/a.txt", f"run_dir={tmp_path}/run"])
    shared.BATCHES.mkdir(parents=True)
    write_batches(config, shared.STEPS, shared.BATCHES / "gpt2_tiny", baseline.baseline, report=lambda line: None)
    pack.losses()
    yield shared.KIT
    for name in steps:
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_cheapest_steps_run_on_a_cpu(device, kit, step_modules, monkeypatch, tmp_path):
    results = {}
    for name in ("facts", "training"):
        monkeypatch.setenv("DEVICE_RESULT", str(tmp_path / f"{name}.json"))
        monkeypatch.setattr(sys, "argv", [name])
        assert step_modules(name).main() == 0
        results[name], problem = importlib.import_module("on_device.runner").read_result(tmp_path / f"{name}.json")
        assert not problem
    assert results["facts"]["device"]["platform"] == "cpu" and results["facts"]["rates"]["bf16_tflops"] > 0
    assert results["training"]["gpt2_tiny float32"]["difference"]["largest"] < 1e-5
    monkeypatch.setattr(device.wheels, "install", lambda *_: "")
    code = device.main(["--kit", str(kit), "--dry", "--only", "whole", "--total", "900"])
    whole = read(kit / "out")["whole"]["result"]["gpt2_tiny"]
    assert code == 0 and whole["problems"] == [] and 0 < whole["stopped_at"] < 8
    assert whole["traces"] == 1 and (kit / "out" / "traces.tar.gz").stat().st_size > 1000
