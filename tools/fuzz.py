"""Feeds damaged and hostile files to jaxpt's commands, and checks how each of them ends.

    python tools/fuzz.py [--cases 200] [--seed N] [--jobs 2] [--only KIND] [--case N]

Each case takes a small file or directory of one kind (recipe, override, Hugging Face directory, checkpoint, prepared
records, vocabulary, data file), changes it at random, and runs a command on it in a process forked from one that has
imported everything. Right is: exit code 0, or 2 with one plain line on stderr; nothing half written; less than 10
seconds of CPU and 2 GB of memory. Cases depend on seed and number alone: `--seed N --case K` repeats one and prints
what it said. `train` ends before it would compile. Exits with 1 where a case is wrong.
"""

import argparse
import collections
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import command_line

ROOT = Path(__file__).parents[1]
CPU_SECONDS, WALL_SECONDS, MEMORY = 10, 90, 2 << 30
SENTENCE = "the cat sat on the mat and the dog ran to the house number {} . "
RECIPES = {
    "bert": """
model: {kind: bert, vocab_size: 96, layers: 1, embed_dim: 16, heads: 2, mlp_dim: 32, max_positions: 32}
objective: {kind: masked_lm, dupe_factor: 1}
data:
  {path: text.txt, validation_fraction: 0.2, tokenizer: {kind: wordpiece},
   length: 32, batch_size: 8, cache_dir: cache}
train: {steps: 4, phases: [{steps: 2}, {set: {data.length: 16}}]}
log: {tensorboard: false}
""",
    "gpt2": """
model: {kind: gpt2, vocab_size: 300, layers: 1, embed_dim: 16, heads: 2, max_positions: 32}
objective: {kind: causal_lm}
data:
  {path: text.jsonl, validation_fraction: 0.2, tokenizer: {kind: bpe},
   length: 32, batch_size: 8, cache_dir: cache}
optimizer: {kind: adamw, learning_rate: 1e-3, schedule: {kind: cosine, warmup_steps: 2}}
train: {steps: 4}
""",
}
CONTROL = "\x1b[2J\x1b]0;x\x07"
VALUES = (
    None, True, False, 0, 1, -1, 2, 3, 7, 10**4, 2**31, 10**9, 10**12, 10**400, 0.5, -0.1, 1e-30, 1e300,
    float("nan"), float("inf"), "", "x", "bert", "gpt2", "none", "../..", "/dev/zero", "/etc/passwd", "a\0b", CONTROL,
    "x" * 50_000, "é\u2028\u202e", "12", "1e3", "*",
    [], {}, [[]], [0], ["x"], {"": 1}, {"kind": "x"}, {"a": {"b": 1}}, [{"kind": "heldout"}], {"kind": ["x"]},
)  # fmt: skip
TEXT = (b"", b"\0", b"\xff\xfe", b"\n", b"{", b"]", b"[" * 5000, b'"', b"&a [*a]", b"<<: *a\n", b"1e999", b"9" * 400,
        CONTROL.encode(), b"\xe2\x80\xa8", b"x" * 5000, b": ", b"- ", b"!!python/object:os.system []\n")  # fmt: skip


# ---- changes --------------------------------------------------------------------------------------------------------


def change_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to four changes: a flipped, removed, repeated or zeroed piece, or one from TEXT."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content) + 1)
        end = min(len(content), at + rng.choice((1, 1, 4, 30, 1000)))
        piece = content[at:end]
        how = rng.choice(("flip", "remove", "repeat", "zero", "insert", "cut"))
        if how == "flip" and piece:
            piece = bytes([piece[0] ^ (1 << rng.randrange(8))]) + piece[1:]
        piece = {"remove": b"", "repeat": piece * 3, "zero": bytes(len(piece)), "insert": rng.choice(TEXT) + piece}.get(
            how, piece
        )
        content = content[:at] + piece + (b"" if how == "cut" else content[end:])
    return content


def change_tree(tree: object, rng: random.Random) -> object:
    """One to three changes of a value of JSON: a value replaced, removed, moved or added somewhere."""
    for _ in range(rng.randint(1, 3)):
        places: list[tuple] = []

        def walk(node: object, found: list[tuple] = places) -> None:
            for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                found.append((node, key))
                if isinstance(value, dict | list):
                    walk(value)

        if isinstance(tree, dict | list):
            walk(tree)
        if not places or rng.random() < 0.02:
            return rng.choice(VALUES)
        node, key = rng.choice(places)
        how = rng.choice(("replace", "replace", "replace", "remove", "add", "swap"))
        if how == "replace":
            node[key] = json.loads(json.dumps(rng.choice(VALUES)))
        elif how == "swap":
            other, there = rng.choice(places)
            node[key] = json.loads(json.dumps(other[there]))
        elif how == "remove":
            del node[key]
        elif isinstance(node, dict):
            node[rng.choice(("x", "kind", "base", CONTROL, "a.b", f"{key}s", ""))] = rng.choice(VALUES)
        else:
            node.append(rng.choice(VALUES))
    return tree


def change_file(path: Path, rng: random.Random) -> str:
    """Changes a file: its tree if it is JSON, its bytes, or what it is."""
    how = rng.choice(("bytes", "bytes", "bytes", "tree", "tree", "tree", "kind"))
    if how == "tree" and path.suffix in (".json", ".yaml"):
        import yaml

        tree = yaml.safe_load(path.read_text())
        path.write_text(json.dumps(change_tree(tree, rng)))
    elif how == "kind":
        how = rng.choice(("remove", "empty", "directory", "pipe", "device", "broken link"))
        path.unlink()
        if how == "empty":
            path.touch()
        elif how == "directory":
            path.mkdir()
        elif how == "pipe":
            os.mkfifo(path)
        elif how != "remove":
            path.symlink_to("/dev/zero" if how == "device" else "nowhere")
    else:
        path.write_bytes(change_bytes(path.read_bytes(), rng))
    return f"{path.name}: {how}"


def any_file(directory: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(path for path in directory.rglob("*") if path.is_file()))


# ---- kinds of cases: each changes files of the current directory and gives the arguments of a command ---------------


def recipe(rng):
    path = Path(rng.choice(("bert", "gpt2")) + ".yaml")
    return [rng.choice(("train", "train", "inspect")), str(path)], change_file(path, rng)


def override(rng):
    from jaxpt.config import dump, load
    from jaxpt.config.plain import leaves

    path = rng.choice(("bert", "gpt2")) + ".yaml"
    known = [key for key, _ in leaves(dump(load(path)))]
    items = []
    for _ in range(rng.randint(1, 3)):
        value = rng.choice(VALUES)
        text = value if isinstance(value, str) else json.dumps(value)
        items.append(f"{rng.choice(known)}={text}".replace("\0", "\1"))
    return [rng.choice(("train", "train", "train", "inspect")), path, *items], " ".join(items)[:300]


def hugging_face(rng):
    said = [change_file(any_file(Path("hf"), rng), rng) for _ in range(rng.choice((1, 1, 2)))]
    return ["import", "hf", "out", *rng.choice(([], [], ["--partial"]))], ", ".join(said)


def checkpoint(rng):
    return ["export", "run", "out"], change_file(any_file(Path("run"), rng), rng)


def cache(rng):
    said = change_file(any_file(Path("cache"), rng), rng)
    return [*rng.choice((["cache", "bert.yaml", "--verify"], ["inspect", "bert.yaml", "-n", "1"]))], said


def vocabulary(rng):
    return ["tokenizer", "inspect", "run/tokenizer", "the cat sat"], change_file(
        any_file(Path("run/tokenizer"), rng), rng
    )


def data_file(rng):
    name = rng.choice(("bert", "gpt2"))
    path = Path({"bert": "text.txt", "gpt2": "text.jsonl"}[name])
    return ["inspect", f"{name}.yaml", "-n", "1"], change_file(path, rng)


KINDS = {  # {kind: (what makes a case, share of the cases)}; those that read data take seconds
    "recipe": (recipe, 4), "override": (override, 4), "Hugging Face": (hugging_face, 8), "checkpoint": (checkpoint, 3),
    "vocabulary": (vocabulary, 4), "cache": (cache, 1), "data": (data_file, 1),
}  # fmt: skip


# ---- one case -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Case:
    """A running or finished case."""

    number: int
    kind: str
    directory: Path
    pid: int
    start: float
    wrong: str = ""
    code: int | None = None
    seconds: float = 0.0
    peak: int = 0

    def text(self, name: str) -> str:
        path = self.directory.parent / f"{self.directory.name}.{name}"
        return path.read_text("utf-8", "replace") if path.exists() else ""


def forked(function, directory: Path, out: Path | None = None) -> int:
    """Runs a function in a process of its own, in a directory; its exit code is what the function returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(directory)
        if out is not None:
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{out}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = function() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start(number: int, seed: int, only: str | None, samples: Path, work: Path) -> Case:
    rng = random.Random(f"{seed} {number}")
    kind = only or rng.choices(list(KINDS), [share for _, share in KINDS.values()])[0]
    directory = work / f"{number}"
    shutil.copytree(samples, directory, symlinks=True)
    out = work / f"{number}"

    def run() -> int:
        from jaxpt import cli

        argv, said = KINDS[kind][0](rng)
        (work / f"{number}.case").write_text(f"{kind}: {' '.join(argv)[:300]!r}\n{said!r}")
        (work / f"{number}.before").write_text(json.dumps(sorted(os.listdir())))
        return cli.main(argv)

    return Case(number, kind, directory, forked(run, directory, out), time.monotonic())


def watch(case: Case) -> bool:
    """Looks at a case; True if it has ended."""
    pid, status, usage = os.wait4(case.pid, os.WNOHANG)
    if not pid:
        try:
            pages = int(Path(f"/proc/{case.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return False
        if pages * os.sysconf("SC_PAGE_SIZE") > MEMORY:
            case.wrong = "more than 2 GB of memory"
        elif time.monotonic() - case.start > WALL_SECONDS:
            case.wrong = "hangs"
        if case.wrong:
            os.killpg(case.pid, signal.SIGKILL)
            os.wait4(case.pid, 0)
        return bool(case.wrong)
    case.code, case.seconds, case.peak = (
        os.waitstatus_to_exitcode(status),
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss,
    )
    case.wrong = judge(case)
    return True


def judge(case: Case) -> str:
    """What is wrong with how a case ended; "" if nothing is."""
    out, err = case.text("out"), case.text("err")
    lines = [line for line in err.splitlines() if line.strip() and not line.startswith("jaxpt: note: ")]
    if case.code not in (0, 2):
        return f"exit code {case.code}"
    if case.code == 2 and len(lines) != 1:
        return f"{len(lines)} lines on stderr"
    if case.seconds > CPU_SECONDS:
        return f"{case.seconds:.0f} s of CPU"
    if case.peak * 1024 > MEMORY:
        return f"{case.peak >> 10} MB of memory"
    if odd := [line for line in (out + err).splitlines() if not line.replace("\t", " ").isprintable()]:
        return f"control characters: {odd[0][:100]!r}"
    left = set(os.listdir(case.directory)) - set(json.loads(case.text("before") or "[]"))
    if case.code == 2 and (half := [name for name in left if name == "out" or "partial" in name]):
        return f"left behind: {', '.join(half)}"
    return ""


# ---- all ------------------------------------------------------------------------------------------------------------


def checked_run(config, timings=None) -> int:
    """Stands for a training: builds the model's shapes, without compiling anything."""
    config.objective.network(config.model).shapes()
    return 0


def prepare() -> None:
    """Makes the samples in the current directory."""
    import jax
    import numpy as np
    from flax import traverse_util

    from jaxpt import cli, config, hf
    from jaxpt.data import tokenizers
    from jaxpt.models import stored

    texts = [SENTENCE.format(i) for i in range(60)]
    Path("text.txt").write_text("\n\n".join(texts))
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for name, text in RECIPES.items():
        Path(f"{name}.yaml").write_text(text)
    loaded = config.load("bert.yaml")
    network, rng = loaded.objective.network(loaded.model), np.random.default_rng(0)
    flat = {}
    for path, param in stored.stored_params(network).items():
        shape = param.unpadded
        flat[path] = np.pad(rng.normal(size=shape).astype(np.float32), [(0, a - b) for a, b in zip(param.shape, shape)])
    hf.save("hf", network, traverse_util.unflatten_dict(flat, sep="/"), shard_bytes=9000)
    tokenizers.train(texts, loaded.data.tokenizer, 90, "hf")
    assert cli.main(["import", "hf", "run"]) == 0
    for name in RECIPES:
        assert cli.main(["cache", f"{name}.yaml", "--workers", "1"]) == 0
    assert jax.devices()


def import_all(standing_in: bool = True) -> None:
    """All that the commands import, so that a forked process starts at once; `train` stands for `checked_run` then."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
    sys.path.insert(0, str(ROOT))
    import warnings

    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
    import tensorflow  # noqa: F401

    import jaxpt.cli.doctor
    import jaxpt.hf.convert
    import jaxpt.report.caches
    import jaxpt.report.inspect
    import jaxpt.report.tokenizers
    import jaxpt.train.loop

    if standing_in:
        jaxpt.train.loop.train = checked_run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=command_line.count, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=command_line.count, default=os.cpu_count())
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--case", type=int, help="run one case, and print what it said")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    begin = time.monotonic()
    import_all()
    work = Path(tempfile.mkdtemp(prefix="jaxpt-fuzz-"))
    samples = work / "samples"
    samples.mkdir()
    done = os.waitstatus_to_exitcode(os.waitpid(forked(prepare, samples, work / "samples"), 0)[1])
    if done:
        print((work / "samples.err").read_text())
        return 1
    print(f"seed {seed}: {options.cases} cases; prepared in {time.monotonic() - begin:.0f} s", flush=True)
    numbers = collections.deque(range(options.cases) if options.case is None else [options.case])
    running, finished = [], []
    while numbers or running:
        while numbers and len(running) < options.jobs:
            running.append(start(numbers.popleft(), seed, options.only, samples, work))
        for case in [case for case in running if watch(case)]:
            running.remove(case)
            finished.append(case)
            shutil.rmtree(case.directory, ignore_errors=True)
            if case.wrong or options.case is not None:
                print(f"case {case.number}: {case.wrong or 'right'}: {case.text('case')}")
                print("  " + "\n  ".join((case.text("err") or case.text("out")).splitlines()[-12:])[-1500:], flush=True)
        time.sleep(0.01)
    shutil.rmtree(work, ignore_errors=True)
    for kind in KINDS:
        cases = [case for case in finished if case.kind == kind]
        codes = collections.Counter(case.code for case in cases)
        failed = sum(bool(case.wrong) for case in cases)
        print(f"{kind:13} {len(cases):5} cases: exit code 0 {codes[0]}, 2 {codes[2]}; wrong {failed}")
    wrong = sum(bool(case.wrong) for case in finished)
    most = max(finished, key=lambda case: case.seconds)
    print(f"{wrong} of {len(finished)} wrong; at most {most.seconds:.1f} s of CPU (case {most.number}), "
          f"{max(case.peak for case in finished) >> 10} MB; {time.monotonic() - begin:.0f} s; seed {seed}")  # fmt: skip
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
