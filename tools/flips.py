"""Damages the files of a run, of the caches and of what commands write, and checks that nobody reads them in silence.

    python tools/flips.py [--flips 2000] [--seed N] [--jobs 2] [--only KIND] [--case N]

A small run is trained; its checkpoints, vocabulary, records and packs are there, and what export, generation,
embeddings and the harness wrote of it. Each case copies all of that, flips a bit of one file (or sets a byte, zeroes or
cuts a piece), and runs a command that reads the file. Right is: the result of the undamaged files; or another one, and
a line that says so; or exit code 2 and one line. Training ends before it would compile: its result is the state that it
resumes from, its first batches and its configuration. Cases depend on seed and number alone. Exits with 1 if one is
wrong.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import command_line
import fuzz

RECIPE = """
model: {kind: gpt2, vocab_size: 300, layers: 1, embed_dim: 16, heads: 2, max_positions: 32}
objective: {kind: causal_lm, join_documents: false}
data:
  {path: text.jsonl, validation_fraction: 0.2, tokenizer: {kind: bpe}, length: 32, batch_size: 8, packing: true,
   cache_dir: cache}
optimizer: {kind: adamw, learning_rate: 1e-3}
train: {steps: 4}
checkpoint: {every: 2}
log: {tensorboard: false}
"""
SAID = re.compile(r"damage|alter|chang|again|aside|left out|missing|is gone|differ|of another|anew")
NOT_WHOLE = re.compile(r": \d+ not whole: ")
"""The last line of `jaxpt verify` for a damaged run; it names each part in a line of its own."""
COMMANDS = {  # kind of file: (pattern below the directory of a case, commands that read it, share of the cases)
    "config.yaml": ("run/config.yaml", ("train", "export", "verify"), 3),
    "run.json": ("run/run.json", ("train", "verify"), 2),
    "metrics.jsonl": ("run/metrics.jsonl", ("train", "verify"), 2),
    "vocabulary": ("run/tokenizer/*", ("train", "export", "verify", "tokenizer"), 4),
    "checkpoint": ("run/checkpoints/**/*", ("train", "export", "export", "verify", "verify"), 8),
    "records": ("cache/records/**/*", ("train", "inspect", "cache"), 4),
    "packs": ("cache/packs/*", ("train", "inspect"), 2),
    "cached vocabulary": ("cache/tokenizers/**/*", ("inspect",), 2),
    "export": ("hf/*", ("import", "generate"), 4),
    "generated": ("answers.jsonl*", ("generate --out",), 2),
    "harness": ("harness/*", ("eval",), 2),
}  # fmt: skip


# ---- commands: argv, and what of the files belongs to the result ----------------------------------------------------

ARGUMENTS = {
    "train": ["train", "run", "train.steps=8"],
    "export": ["export", "run", "out"],
    "verify": ["verify", "run"],
    "tokenizer": ["tokenizer", "inspect", "run/tokenizer", "the cat sat on 12 mats"],
    "inspect": ["inspect", "recipe.yaml", "-n", "2", "run_dir=fresh"],
    "cache": ["cache", "recipe.yaml", "run_dir=fresh"],
    "import": ["import", "hf", "out"],
    "generate": ["generate", "hf", "--prompt", "the cat", "--max-new-tokens", "4"],
    "generate --out": ["generate", "run", "--file", "prompts.jsonl", "--out", "answers.jsonl", "--max-new-tokens", "4"],
    "eval": ["eval", "run", "--tasks", "task.yaml", "--out", "harness"],
}  # fmt: skip
WRITTEN = {
    "export": "out/**/*", "import": "out/**/*", "generate --out": "answers.jsonl",
    "eval": "harness/*",
}  # fmt: skip
VARY = ("checksums.json", "_METADATA", "_CHECKPOINT_METADATA", "_sharding", "commit_success.txt", "run_id")
"""Files that differ from run to run: times, random ids, and checksums of such files."""
EACH = 250
"""Cases in a process: what JAX and TensorFlow keep of them grows."""
trained: list[str] = []
"""What a training that ended before its first step would have begun with."""


class Ready(Exception):
    """Training would compile its step now."""


def ready(run, current, end, metrics):
    """Stands for a phase of training: notes what it begins with."""
    import jax
    import numpy as np

    from jaxpt import config as configs
    from jaxpt.train import ending

    found = hashlib.blake2b()
    batches = run.phase.data.train.batches(int(current.step) - run.phase.data_start)
    for x in jax.tree.leaves((current, next(batches), next(batches))):
        found.update(np.asarray(x).tobytes())
    trained.append(found.hexdigest() + json.dumps(configs.dump(run.config), sort_keys=True))
    metrics.close()
    ending.write_receipt(run, current, finished=False)
    raise Ready


def called(argv: list[str], folder: Path, limit: tuple[int | None, int] = (None, -1)) -> tuple[str | int, str]:
    """Runs a command in a folder, in this process.

    Args:
      argv: its arguments.
      folder: where it runs.
      limit: bytes of the largest file (None: any), and the hard limit.

    Returns:
      (exit code or traceback, what it said).
    """
    from jaxpt import cli

    trained.clear()
    os.chdir(folder)
    said: list[bytes] = []
    kept = os.dup(1), os.dup(2)
    reader, writer = os.pipe()  # a file would have its limit too
    listener = threading.Thread(target=lambda: said.extend(iter(lambda: os.read(reader, 1 << 16), b"")))
    listener.start()
    for number in (1, 2):
        os.dup2(writer, number)
    os.close(writer)
    try:
        if limit[0] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        code = cli.main(argv)
    except Ready:
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        code = traceback.format_exc()
    finally:
        if limit[0] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit[1], limit[1]))
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept):
            os.dup2(old, number)
            os.close(old)
        listener.join(5)  # a thread or process that was left behind may have the pipe still
        os.chdir("/")
    return code, b"".join(said).decode("utf-8", "replace")


def result(command: str) -> str:
    """A digest of what a command made, in the current directory."""
    found = hashlib.blake2b(repr(trained).encode())
    for path in sorted(Path().glob(WRITTEN[command])) if command in WRITTEN else ():
        if path.is_file() and path.name not in VARY:
            found.update(path.name.encode() + path.read_bytes().replace(os.getcwd().encode(), b"."))
    return found.hexdigest()


def read(command: str, folder: Path) -> tuple[str | int, str, str]:
    """Runs a command in a folder: (exit code or traceback, what it said, digest of the result)."""
    code, said = called(ARGUMENTS[command], folder)
    with contextlib.chdir(folder):
        return code, said, result(command)


# ---- damage ---------------------------------------------------------------------------------------------------------


def damage(path: Path, rng: random.Random) -> str:
    """Changes a file so that it differs; says how."""
    whole = path.read_bytes()
    how = rng.choice(("flip", "flip", "flip", "byte", "zeros", "cut"))
    at = rng.randrange(len(whole))
    end = min(len(whole), at + rng.choice((1, 8, 64)))
    if how == "flip":
        changed = whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :]
    elif how == "byte":
        changed = whole[:at] + bytes([(whole[at] + rng.randrange(1, 256)) % 256]) + whole[at + 1 :]
    else:
        changed = whole[:at] + (bytes(end - at) + whole[end:] if how == "zeros" else b"")
    path.write_bytes(changed)
    return f"{how} at {at} of {len(whole)}" + ("" if changed != whole else ", as it was")


def judge(code: str | int, said: str, found: str, whole: tuple[str | int, str, str], is_written: bool) -> str:
    """How a command ended; what begins with a capital letter is wrong. `is_written`: what it prints is no result."""
    if isinstance(code, str) or "Traceback (most recent" in said:
        return "TRACEBACK"
    lines = [line for line in said.splitlines() if line.startswith("jaxpt: ") and not line.startswith("jaxpt: note")]
    if code == 2 and (len(lines) == 1 or NOT_WHOLE.search(said)):
        return "refused"
    if code != 0:
        return f"EXIT CODE {code}, {len(lines)} lines"
    new = [line for line in said.splitlines() if line not in whole[1].splitlines()]
    told = any(SAID.search(line) for line in new)
    is_same = found == whole[2] and (is_written or plain(said) == plain(whole[1]))
    if is_same:
        return "the same, and said" if told else "the same"
    return "said" if told else "SILENT"


def plain(said: str) -> list[str]:
    """What was said, without times and rates."""
    return [re.sub(r"\d+(\.\d+)? ?(s|ms|k?tokens/s)\b|in \d.*", "", line) for line in said.splitlines()]


# ---- all ------------------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Trains the run and makes all that is read later, in the current directory."""
    from jaxpt import cli
    from jaxpt.inference import files

    rng = random.Random(0)
    texts = [fuzz.SENTENCE.format(i) * rng.randint(1, 3) for i in range(60)]
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    Path("recipe.yaml").write_text(RECIPE)
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": text[:9]}) + "\n" for text in texts[:4]))
    rows = [{"question": text[:9], "options": ["cat", "dog"], "answer": n % 2} for n, text in enumerate(texts[:6])]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("task.yaml").write_text(TASK)
    assert cli.main(["train", "recipe.yaml", "run_dir=run"]) == 0
    assert cli.main(ARGUMENTS["export"]) == 0
    Path("out").rename("hf")
    write = files.ResumableJsonl.write

    def interrupted(self, index, values):
        if index == 2:
            raise Ready
        write(self, index, values)

    files.ResumableJsonl.write = interrupted
    for command in ("generate --out", "eval"):
        with contextlib.suppress(Ready):
            cli.main(ARGUMENTS[command])


TASK = """
data: {path: rows.jsonl}
form: multiple_choice
context: question
choices: options
answer: answer
"""


def copied(samples: Path, folder: Path) -> None:
    """A copy of the samples; what was interrupted belongs to the model in it."""
    shutil.copytree(samples, folder)
    for state in folder.rglob("*.state"):
        state.write_text(state.read_text().replace(str(samples), str(folder)))


def case(number: int, seed: int, only: str | None, samples: Path, work: Path) -> tuple[str, Path, str, str]:
    """(kind, file, command, how) of a case, whose directory is made."""
    rng = random.Random(f"{seed} {number}")
    kind = only or rng.choices(list(COMMANDS), [share for _, _, share in COMMANDS.values()])[0]
    pattern, commands, _ = COMMANDS[kind]
    files = sorted(p.relative_to(samples) for p in samples.glob(pattern) if p.is_file() and p.stat().st_size)
    folder = work / str(number)
    copied(samples, folder)
    file, command = rng.choice(files), rng.choice(commands)
    return kind, file, command, damage(folder / file, rng)


def serve(numbers: range, seed: int, only: str | None, samples: Path, work: Path, verbose: bool) -> None:
    """Runs cases one after the other in this process; a line of JSON in `results` for each."""
    from jaxpt.train import loop

    loop.Run._phase = ready
    whole: dict[str, tuple[str | int, str, str]] = {}
    for number in numbers:
        kind, file, command, how = case(number, seed, only, samples, work)
        if command not in whole:
            copied(samples, work / f"whole-{numbers.start}-{command}")
            whole[command] = read(command, work / f"whole-{numbers.start}-{command}")
            assert whole[command][0] == 0, whole[command]
        begin = time.monotonic()
        code, said, found = read(command, work / str(number))
        verdict = judge(code, said, found, whole[command], command in WRITTEN or command == "train")
        shutil.rmtree(work / str(number))
        told = (code if isinstance(code, str) else said) if verdict[0].isupper() or verbose else said[-300:]
        with (work / "results").open("a") as file_of_results:
            row = [number, kind, str(file), command, how, verdict, told[-1500:], time.monotonic() - begin]
            file_of_results.write(json.dumps(row) + "\n")


def main(flips: int, seed: int | None, jobs: int, only: str | None = None, one: int | None = None) -> int:
    """Runs the cases and prints what came of them."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    begin = time.monotonic()
    fuzz.import_all(standing_in=False)
    work = Path(tempfile.mkdtemp(prefix="jaxpt-flips-"))
    samples = work / "samples"
    samples.mkdir()
    if os.waitstatus_to_exitcode(os.waitpid(fuzz.forked(prepare, samples, work / "samples"), 0)[1]):
        print((work / "samples.err").read_text(), (work / "samples.out").read_text())
        return 1
    print(f"seed {seed}: {flips} flips; prepared in {time.monotonic() - begin:.0f} s", flush=True)
    todo = [range(at, min(at + EACH, flips)) for at in range(0, flips, EACH)] if one is None else [range(one, one + 1)]
    running: dict[int, range] = {}
    shown, rows, crashed = 0, [], []
    while todo or running:
        while todo and len(running) < jobs:
            numbers = todo.pop(0)
            args = (numbers, seed, only, samples, work, one is not None)
            running[fuzz.forked(lambda args=args: serve(*args), work, work / f"server-{numbers.start}")] = numbers
        pid, status = os.wait()
        numbers = running.pop(pid)
        rows = [json.loads(line) for line in (work / "results").read_text().splitlines()]
        if status:  # a case ended the process
            last = max((row[0] for row in rows if row[0] in numbers), default=numbers.start - 1) + 1
            crashed.append(last)
            print(f"case {last}: ENDED THE PROCESS: {(work / f'server-{numbers.start}.err').read_text()[-1500:]}")
            todo.insert(0, range(last + 1, numbers.stop)) if last + 1 < numbers.stop else None
        for number, _, file, command, how, verdict, told, _ in rows[shown:]:
            if verdict[0].isupper() or one is not None:
                print(f"case {number}: {verdict}: {command} with {file}: {how}\n  " + told.replace("\n", "\n  "))
        shown = len(rows)
        sys.stdout.flush()
    for kind in COMMANDS:
        verdicts = collections.Counter(row[5].split(",")[0] if row[5][0].isupper() else row[5]
                                       for row in rows if row[1] == kind)  # fmt: skip
        told = ", ".join(f"{n} {what}" for what, n in verdicts.most_common())
        print(f"{kind:18} {sum(verdicts.values()):5}: {told}")
    wrong = sum(row[5][0].isupper() for row in rows) + len(crashed)
    print(f"{wrong} of {len(rows) + len(crashed)} wrong; {time.monotonic() - begin:.0f} s; seed {seed}")
    shutil.rmtree(work, ignore_errors=True)
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=command_line.count, default=2000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=command_line.count, default=os.cpu_count())
    parser.add_argument("--only", choices=COMMANDS)
    parser.add_argument("--case", type=int, help="run one case, and print what it said")
    given = parser.parse_args()
    sys.exit(main(given.flips, given.seed, given.jobs, given.only, given.case))
