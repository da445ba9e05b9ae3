"""Runs every command that writes on disks of 20 sizes, and checks how each of them ends.

    python tools/full_disk.py [--sizes 20] [--seed 0] [--jobs 2] [--only WRITER]

Half of the sizes are those of a file system that is full (a tmpfs; root alone can mount it), half those of the largest
file (RLIMIT_FSIZE): from nothing to a bit more than the command needs, evenly, or at random with another seed. Right
is: exit code 0, or 74 with one line that names a file or directory; and the same command with room to spare then ends
as if the disk had never been full: with the same result. Without mounts all sizes are those of files. Exits with 1
where a case is wrong.
"""

import argparse
import collections
import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import command_line
import flips
import fuzz

TASK = """
model: {kind: gpt2, vocab_size: 300, layers: 1, embed_dim: 16, heads: 2, max_positions: 32}
task: {kind: classification}
data:
  {path: rows.jsonl, validation_fraction: 0.3, tokenizer: {kind: bpe, path: run/tokenizer}, length: 32, batch_size: 8,
   cache_dir: cache}
train: {steps: 2}
log: {tensorboard: false}
"""
STUDY = """
question: Does it fit?
recipe: recipe.yaml
set: {data.cache_dir: new/cache, log.tensorboard: true}
rows: [{name: one}]
"""
WRITERS = {  # writer: (arguments of the command, files that are its result)
    "train": (["train", "recipe.yaml", "run_dir=new/run", "data.cache_dir=new/cache", "log.tensorboard=true"], "train"),
    "resume": (["train", "run", "train.steps=8", "log.tensorboard=true"], "train"),
    "fine-tuning": (["train", "task.yaml", "run_dir=new/run", "data.cache_dir=new/cache"], "train"),
    "import": (["import", "hf", "new/run"], "new/run/checkpoints/0/state/**/*"),
    "export": (["export", "run", "new/hf"], "new/hf/*"),
    "adapter": (["train", "recipe.yaml", "run_dir=new/run", "init_from.path=run", "train.lora={rank: 2}"], "train"),
    "generate": (["generate", "run", "--file", "prompts.jsonl", "--out", "new/answers.jsonl", "--max-new-tokens", "4"],
                 "new/answers.jsonl"),
    "predict": (["predict", "tuned", "rows.jsonl", "--out", "new/predictions.jsonl"], "new/predictions.jsonl"),
    "embed": (["embed", "run", "lines.txt", "--out", "new/vectors.parquet"], "new/vectors.parquet"),
    "eval --tasks": (["eval", "run", "--tasks", "task_of_harness.yaml", "--out", "new/harness"], "new/harness/*"),
    "cache": (["cache", "recipe.yaml", "run_dir=new/run", "data.cache_dir=new/cache"], "new/cache/**/*"),
    "tokenizer": (["tokenizer", "train", "recipe.yaml", "--out", "new/tokenizer", "data.cache_dir=new/cache"],
                  "new/tokenizer/*"),
    "inspect": (["inspect", "recipe.yaml", "--html", "new/page.html"], "new/page.html"),
    "probe": (["probe", "run", "path=rows.jsonl", "test_path=rows.jsonl", "text=question", "label=label"], ""),
    "study": (["study", "study.yaml", "run_dir=new/study"], "new/study/*.md"),
}  # fmt: skip


def prepare() -> None:
    """A trained and a fine-tuned run, an export, and files to work on, in the current directory."""
    from jaxpt import cli

    rng = random.Random(0)
    texts = [fuzz.SENTENCE.format(i) * rng.randint(1, 3) for i in range(60)]
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    Path("lines.txt").write_text("\n".join(texts))
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": text[:9]}) + "\n" for text in texts))
    rows = [
        dict.fromkeys(("question", "text"), f"{text[:9]}{n}")
        | {"options": ["cat", "dog"], "answer": n % 2, "label": "ab"[n % 2]}
        for n, text in enumerate(texts)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("recipe", flips.RECIPE), ("task", TASK), ("study", STUDY), ("task_of_harness", flips.TASK)):
        Path(f"{name}.yaml").write_text(text)
    train = [["train", f"{name}.yaml", f"run_dir={run}"] for name, run in (("recipe", "run"), ("task", "tuned"))]
    for argv in (*train, ["export", "run", "hf"]):
        assert cli.main(argv) == 0, argv
    Path("new").mkdir()


def result(folder: Path, files: str) -> str:
    """A digest of what a command wrote: of a training its last loss and step, of others the files."""
    if files == "train":
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("*/run.json"))]
        found += [json.loads(path.read_text()) for path in sorted(folder.glob("new/*/run.json"))]
        return str([[one["step"], one["finished"], round(one["train_loss"] or -1, 5)] for one in found])
    hashed = hashlib.blake2b()
    for path in sorted(folder.glob(files)) if files else ():
        if path.is_file() and path.suffix not in (".html", ".md") and path.name not in flips.VARY:
            hashed.update(path.name.encode() + path.read_bytes().replace(str(folder).encode(), b"."))
        hashed.update(str(path.relative_to(folder)).encode())
    return hashed.hexdigest()


def mount(folder: Path, size: int | None, again: bool = False) -> bool:
    """A tmpfs of so many bytes (None: of many) on a folder; False where this is not allowed."""
    options = f"{'remount,' if again else ''}size={-(-size // 4096) * 4096 if size is not None else 1 << 30}"
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True).returncode == 0


def used(folder: Path) -> int:
    stat = os.statvfs(folder)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def places(count: int, seed: int) -> list[float]:
    """From 0 to 1: evenly; with a seed that is not 0 at random, one in each of as many equal parts."""
    if seed == 0:
        return [n / max(1, count - 1) for n in range(count)]
    rng = random.Random(seed)
    return [(n + rng.random()) / count for n in range(count)]


def sizes(need: int, largest: int, count: int, mounts: bool, seed: int) -> list[tuple[str, int]]:
    """(what is limited, bytes): of the disk on a linear scale, of the largest file on a logarithmic one."""
    disks = count // 2 if mounts else 0
    files = [("file", int(64 * (1.1 * largest / 64) ** place)) for place in places(count - disks, seed)]
    return [("disk", int(1.2 * need * place)) for place in places(disks, seed)] + files


Ended = tuple[str | int, str, str]
"""(exit code or traceback, what was said, digest of the result)"""


def run(writer: str, folder: Path, what: str, size: int | None, taken: int = 0) -> Ended:
    """The command under a limit: (exit code or traceback, what it said, result)."""
    argv, files = WRITERS[writer]
    if size is not None and what == "disk":
        assert mount(folder, taken + size, again=True)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    code, said = flips.called(argv, folder, (size if what == "file" else None, hard))
    if size is not None and what == "disk":
        mount(folder, None, again=True)
    return code, said, result(folder, files)


FULL = 74
"""The exit code of a full disk (`jaxpt.runtime.exit_codes`)."""


def judge(first: Ended, then: Ended, whole: Ended) -> str:
    """How a case ended; what begins with a capital letter is wrong."""
    code, said, found = first
    said = re.sub(r"\n {4}", " ", said)  # long lines are broken
    if isinstance(code, str) or "Traceback (most recent" in said:
        return "TRACEBACK"
    lines = [line for line in said.splitlines() if line.startswith("jaxpt: ") and not line.startswith("jaxpt: note")]
    if code == 0:
        return "done" if found == whole[2] else "DONE, BUT OTHERWISE"
    if code == 1 and (told := re.findall(r"^one failed: .+", said, re.MULTILINE)):  # a study tells of its rows
        lines, code = told, FULL
    if code != FULL:
        return f"EXIT CODE {code}"
    if len(lines) != 1:
        return f"{len(lines)} LINES"
    if ": " not in lines[0].removeprefix("jaxpt: "):
        return "NO FILE NAMED"
    if then[0] != 0:
        return "NOT MENDED BY ROOM"
    return "refused, then done" if then[2] == whole[2] else "REFUSED, THEN OTHERWISE"


def serve(writer: str, samples: Path, work: Path, count: int, seed: int) -> None:
    """All sizes of a writer, in this process; a line of JSON in `results` for each."""
    place = work / writer
    place.mkdir()
    mounts = mount(place, None)

    def fresh(name: str) -> tuple[Path, int]:
        folder = place / name if not mounts else place
        for old in folder.iterdir() if folder.exists() else ():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(samples, folder, dirs_exist_ok=True)
        return folder, used(folder)

    folder, taken = fresh("whole")
    before = set(folder.rglob("*"))
    whole = run(writer, folder, "", None)
    assert whole[0] == 0, whole
    new = [path.stat().st_size for path in folder.rglob("*") if path.is_file() and path not in before] or [4096]
    for what, size in sizes(sum(-(-size // 4096) * 4096 for size in new), max(new), count, mounts, seed):
        folder, taken = fresh(f"{what}-{size}")
        first = run(writer, folder, what, size, taken)
        then = run(writer, folder, "", None) if first[0] != 0 else whole
        verdict = judge(first, then, whole)
        told = first[1] if verdict != "NOT MENDED BY ROOM" else f"{first[1]}\nthen {then[0]}: {then[1]}"
        told = f"{first[0]}\n{told}" if isinstance(first[0], str) else told
        with (work / "results").open("a") as file:
            file.write(json.dumps([writer, what, size, verdict, told[-1500:]]) + "\n")
    if mounts:
        os.chdir("/")
        subprocess.run(["umount", "-l", place], check=False)


def main(count: int, seed: int, jobs: int, only: str | None) -> int:
    """Runs the cases and prints what came of them."""
    begin = time.monotonic()
    fuzz.import_all(standing_in=False)
    work = Path(tempfile.mkdtemp(prefix="jaxpt-full-disk-"))
    samples = work / "samples"
    samples.mkdir()
    if os.waitstatus_to_exitcode(os.waitpid(fuzz.forked(prepare, samples, work / "samples"), 0)[1]):
        print((work / "samples.err").read_text(), (work / "samples.out").read_text())
        return 1
    print(f"{count} sizes of disks and files for each writer; prepared in {time.monotonic() - begin:.0f} s", flush=True)
    (work / "results").touch()
    todo, running, broken = [only] if only else list(WRITERS), {}, []
    while todo or running:
        while todo and len(running) < jobs:
            writer = todo.pop(0)
            log, serving = work / f"{writer}.log", lambda writer=writer: serve(writer, samples, work, count, seed)
            running[fuzz.forked(serving, work, log)] = writer
        pid, status = os.wait()
        writer = running.pop(pid)
        rows = [row for row in map(json.loads, (work / "results").read_text().splitlines()) if row[0] == writer]
        if status:
            broken.append(writer)
            print(f"{writer}: ENDED THE PROCESS: {(work / f'{writer}.log.err').read_text()[-2000:]}")
            subprocess.run(["umount", "-l", work / writer], capture_output=True, check=False)
        for _, what, size, verdict, told in rows:
            if verdict[0].isupper() or verdict[0].isdigit():
                print(f"{writer}, {what} of {size:,} bytes: {verdict}\n  " + told.replace("\n", "\n  "))
        verdicts = collections.Counter(row[3] for row in rows)
        told = ", ".join(f"{n} {what}" for what, n in verdicts.most_common())
        print(f"{writer:14} {len(rows):3}: {told}", flush=True)
    rows = [json.loads(line) for line in (work / "results").read_text().splitlines()]
    wrong = sum(row[3][0].isupper() or row[3][0].isdigit() for row in rows) + len(broken)
    disks = sum(row[1] == "disk" for row in rows)
    print(f"{wrong} of {len(rows)} wrong ({disks} of full disks); {time.monotonic() - begin:.0f} s")
    shutil.rmtree(work, ignore_errors=True)
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=command_line.count, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=command_line.count, default=os.cpu_count())
    parser.add_argument("--only", choices=WRITERS)
    given = parser.parse_args()
    sys.exit(main(given.sizes, given.seed, given.jobs, given.only))
