"""The tests with the marker gpu, in processes that share the device."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import shared

DRY_FILES = ("tests/models/test_pallas_common.py", "tests/models/test_softmax.py")


def files() -> list[str]:
    """The files of tests that carry the marker: the others may import what is not installed."""
    paths = sorted((shared.ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(shared.ROOT)) for path in paths if "mark.gpu" in path.read_text("utf-8")]


def outcomes(path: Path) -> tuple[dict[str, int], list[str]]:
    """({outcome: tests}, names of those that failed with the first line why) of pytest's XML."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures = []
    for case in xml.parse(path).getroot().iter("testcase"):
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        outcome = "failed" if problem is not None else "skipped" if case.find("skipped") is not None else "passed"
        counts[outcome] += 1
        if problem is not None:
            why = (problem.get("message") or "").strip().splitlines() or [""]
            failures.append(f"{case.get('classname')}::{case.get('name')}: {why[0][:200]}")
    return counts, failures


def main() -> int:
    report = shared.Report()
    chosen = files()
    report.add("files", chosen, "" if chosen else "no test has the marker gpu", is_good=bool(chosen))
    if not chosen:
        return report.exit_code()
    words = ["-n", "1", "-x"] if shared.IS_DRY else ["-n", "10", "--maxfail=60"]
    target = Path(os.environ.get("TMPDIR", "/tmp"), "gpu-tests.xml")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", *words, "-q", "--tb=short", "-p", "no:cacheprovider"]
    selected = [path for path in chosen if path in DRY_FILES] if shared.IS_DRY else chosen
    environment = os.environ | ({} if shared.IS_DRY else {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".06"})
    done = subprocess.run([*command, f"--junitxml={target}", *selected], env=environment, cwd=shared.ROOT)
    if not target.exists():
        report.add("error", f"pytest ended with exit code {done.returncode}", "pytest wrote no results", is_good=False)
        return report.exit_code()
    counts, failures = outcomes(target)
    is_good = done.returncode == 0 and counts["passed"] > 0
    report.add("counts", counts)
    report.add("failures", failures, is_good=is_good)
    report.result["lines"] += failures[:30]
    report.headline(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + f" in {len(selected)} files")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
