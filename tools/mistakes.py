"""Makes mistakes on the command line and in Python, and looks at the answers.

    python tools/mistakes.py [--only 3,17] [--surface cli|python] [--results FILE]

`mistakes.jsonl` lists them: what is wrong, the command (or the line of Python), and the names that the answer must
contain: the file, key or value, and what would be right. A command must end with exit code 2 and one line, without a
traceback; with `"exit": 0` it mends the mistake and says so. Python must raise an exception whose message is one line,
and never end the process. The time is that from the start of the process to its end, imports included. A table lists
all; the exit code is 1 if one of them was not answered so. Three small runs are trained first, in a temporary directory
(two minutes on 2 cores).
"""

import argparse
import gzip
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import command_line

ROOT = Path(__file__).parents[1]
MISTAKES = Path(__file__).with_suffix(".jsonl")
LATE = 5
"""Seconds within which a mistake is answered that can be known from files."""
SECONDS = 120
"""A command that has not ended by then did not notice its mistake."""


class Answer(NamedTuple):
    """What one mistake was answered with."""

    number: int
    mistake: str
    problem: str
    """Empty if the answer is right."""
    seconds: float
    """From the start of the process to its end."""
    cpu_seconds: float
    line: str


def answers(folder: Path, surface: str | None, only: set[int]) -> Iterator[Answer]:
    """Makes each mistake in a copy of the prepared folder.

    Args:
      folder: what `prepare` made.
      surface: "cli" or "python"; None: both.
      only: numbers of mistakes; empty: all.
    """
    for line in MISTAKES.read_text("utf-8").splitlines():
        mistake = json.loads(line)
        if (only and mistake["number"] not in only) or surface not in (None, mistake["surface"]):
            continue
        with tempfile.TemporaryDirectory() as copy:
            work = Path(copy) / "work"
            shutil.copytree(folder, work, symlinks=True)
            yield answer(mistake, work)


def answer(mistake: dict, work: Path) -> Answer:
    """Makes one mistake in the folder `work`."""
    is_python = mistake["surface"] == "python"
    if is_python:
        command = [sys.executable, "-c", PYTHON, mistake["run"]]
        variables = {}
    else:
        words = shlex.split(mistake["run"])
        variables = dict(words.pop(1).split("=") for _ in range(words[0] == "env"))
        command = [sys.executable, "-m", "jaxpt", *words[words[0] == "env" :]]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    start, cpu_start = time.monotonic(), _cpu_seconds()
    try:
        process = subprocess.run(
            command,
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Answer(mistake["number"], mistake["mistake"], "not noticed", SECONDS, _cpu_seconds() - cpu_start, "")
    seconds, cpu_seconds = time.monotonic() - start, _cpu_seconds() - cpu_start
    lines = (process.stdout + process.stderr).strip().splitlines()
    last = lines[-1] if lines else ""
    return Answer(mistake["number"], mistake["mistake"], problem(mistake, process, last), seconds, cpu_seconds, last)


def _cpu_seconds() -> float:
    """Of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def problem(mistake: dict, process: subprocess.CompletedProcess, last: str) -> str:
    """Says what is wrong with an answer; empty if nothing is."""
    expected = mistake.get("exit", 0 if mistake["surface"] == "python" else 2)
    if process.returncode != expected:
        return f"exit code {process.returncode}"
    if "Traceback" in process.stdout + process.stderr:
        return "traceback"
    missing = [name for name in mistake["names"] if name not in last]
    return f"does not name {', '.join(missing)}" if missing else ""


PYTHON = """
import sys
import jaxpt
try:
    exec(sys.argv[1])
except Exception as e:
    text = str(e)
    assert "\\n" not in text.strip(), f"several lines: {text}"
    print(f"{type(e).__name__}: {text}")
else:
    print("no exception")
"""
TICKETS = "id;text;label\n1;the bill is wrong;billing\n2;it does not start;technical\n3;where is my parcel;delivery\n"


def prepare(folder: Path) -> None:
    """Trains three small runs, and writes the files that the mistakes name."""
    (folder / "configs").symlink_to(ROOT / "configs")
    for name in ("empty", "full"):
        (folder / name).mkdir()
    (folder / "full" / "notes.txt").write_text("mine")
    rows = [{"text": f"row {i} of a table"} for i in range(60)]
    write = lambda name, entries: (folder / name).write_text("".join(json.dumps(row) + "\n" for row in entries))  # noqa: E731
    write("texts.jsonl", rows)
    write("other.jsonl", [{"body": row["text"]} for row in rows])
    (folder / "broken.jsonl").write_text('{"text": "right"}\n{"text": broken\n')
    (folder / "texts.txt").write_text("\n".join(row["text"] for row in rows))
    (folder / "torn.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 999)[:40])
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (folder / "tickets.csv").write_text(TICKETS)
    (folder / "indent.yaml").write_text("base: configs/smoke/bert_tiny.yaml\ntrain:\n  steps: 3\n eval_every: 2\n")
    (folder / "twice.yaml").write_text("base: configs/smoke/bert_tiny.yaml\ndata: {}\ndata: {length: 32}\n")
    (folder / "nobase.yaml").write_text("base: missing.yaml\n")
    short = ["train.steps=2", "train.eval_every=2", "log.tensorboard=false", "optimizer.schedule.warmup_steps=1"]
    bert = ["configs/smoke/bert_tiny.yaml", "train.phases=[]", "run_dir=runs/bert"]
    classify = ["configs/finetune/smoke/classify_tiny.yaml", "init_from.path=runs/bert", "run_dir=runs/classify"]
    for arguments in (bert, ["configs/smoke/gpt2_tiny.yaml", "run_dir=runs/gpt2"], classify):
        command = [sys.executable, "-m", "jaxpt", "train", *arguments, *short]
        subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    shutil.copytree(folder / "runs" / "bert", folder / "damaged")
    largest = max((folder / "damaged" / "checkpoints").rglob("*"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def main() -> None:
    """Prepares the files, makes the mistakes, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=command_line.numbers, default=(), help="numbers of mistakes, with commas")
    parser.add_argument("--surface", choices=("cli", "python"))
    parser.add_argument(
        "--prepared", type=Path, help="a folder for the small runs, which are trained if it is not there"
    )
    parser.add_argument("--results", type=Path, help="append each answer to this file, as JSON")
    arguments = parser.parse_args()
    only, listed = set(arguments.only), map(json.loads, MISTAKES.read_text("utf-8").splitlines())
    known = {row["number"] for row in listed if arguments.surface in (None, row["surface"])}
    if unknown := only - known:
        parser.error(f"--only: there is no mistake {min(unknown)}")
    wrong = count = late = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.prepared or Path(temporary) / "prepared"
        if not folder.exists():
            partial = folder.with_name(f"{folder.name}.partial")  # of a call that was stopped
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            prepare(partial)
            partial.rename(folder)
        for row in answers(folder, arguments.surface, only):
            count, wrong, late = count + 1, wrong + bool(row.problem), late + (row.seconds > LATE)
            times = f"{row.seconds:6.1f} s {row.cpu_seconds:6.1f} s CPU"
            print(f"{row.number:3d} {times}  {row.problem or 'ok':30.30} {row.mistake}\n        {row.line}", flush=True)
            if arguments.results:
                with arguments.results.open("a") as file:
                    file.write(json.dumps(row._asdict()) + "\n")
    print(f"{count} mistakes, {wrong} not answered as they should be, {late} later than after {LATE} s")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
