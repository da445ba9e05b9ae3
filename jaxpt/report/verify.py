"""`jaxpt verify RUN_DIR`: whether every file of a run, or of prepared batches, is as it was written."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxpt import config as configs
from jaxpt.config import CheckpointConfig
from jaxpt.data import tokenizers
from jaxpt.data.batches import manifest
from jaxpt.data.batches.files import Reader
from jaxpt.data.stream.feed import steps_of
from jaxpt.errors import UserError, listed, printable
from jaxpt.hf import files as hf_files
from jaxpt.hf import origin
from jaxpt.runtime import plugins
from jaxpt.runtime.disk import read_json
from jaxpt.runtime.progress import counted
from jaxpt.train import copies, lock
from jaxpt.train import run_dir as run_dirs
from jaxpt.train.checkpoint import Checkpoints
from jaxpt.train.lock import hold


@plugins.unread()
def verify(path: str, say: Callable[[str], None] = print, repair: bool = False) -> int:
    """Compares a run's files with their checksums: all checkpoints, config.yaml, tokenizer, run.json; metrics and
    evaluations line by line. Files that every trained run has are missed.

    Args:
      path: RUN_DIR, or a directory of prepared batches.
      say: called with a line for each of them.
      repair: fetch damaged checkpoints from `checkpoint.copy_to`.

    Returns:
      0 if all are whole, also after repair, else 2.

    Raises:
      UserError: `path` is neither.
    """
    directory, bad = Path(path), []
    if (directory / manifest.NAME).is_file():
        parts = _prepared(directory, manifest.read(directory))
    elif (directory / "checkpoints").is_dir():
        parts = _checked(directory, repair)
    else:
        raise UserError(f"{path}: is no run_dir, it holds no checkpoints; nor prepared batches, with {manifest.NAME}")
    for part, fault in parts:
        say(printable(f"{part}: {fault or 'whole'}"))
        bad += [part] if fault not in (None, _NOT_READ, _NOT_WRITTEN) else []
    say(f"{path}: {f'{len(bad)} not whole: {listed(bad)}' if bad else 'all is whole'}")
    return 2 if bad else 0


_NOT_READ = "not compared: only its own code reads it, and verify runs none of a run's"
_NOT_WRITTEN = "not there yet: the run is under way, and writes it at its end"


def _prepared(directory: Path, saved_manifest: manifest.Manifest) -> Iterator[tuple[str, str | None]]:
    """(part, what is wrong with it or None); every member of every file is read."""
    yield "tokenizer", _fault(lambda: tokenizers.load(directory / manifest.TOKENIZER))
    for index, phase in enumerate(saved_manifest.phases):
        folder = directory / manifest.folder(index)
        parts = {"train": phase.train} | {f"validation-{name}": rows for name, rows in phase.validation.items()}
        for name, rows in parts.items():
            fault = _fault(functools.partial(_read_all, folder, name, rows))
            yield f"{manifest.folder(index)}/{name}, {rows.rows:,} rows", fault


def _read_all(folder: Path, name: str, rows: manifest.Rows) -> None:
    reader = Reader(folder, name, rows.files)
    members = steps_of(rows.rows, rows.per_member)
    for number in counted(range(members), f"reading {name}", members, "batches"):
        reader.member(number)


def _checked(run_dir: Path, repair: bool) -> Iterator[tuple[str, str | None]]:
    """(part, what is wrong with it or None)."""
    config = configs.load(run_dir)  # a damaged one is refused
    copy = Path(config.checkpoint.copy_to) if config.checkpoint.copy_to else None
    if repair and copy is None:
        raise UserError("--repair: the run has no checkpoint.copy_to to fetch from")
    if repair:
        with hold(run_dir):  # no run writes there meanwhile
            for step in copies.repair(run_dir, copy, _damage):
                yield f"checkpoint {step}, fetched from {copy}", None
    is_changed = configs.is_changed((run_dir / "config.yaml").read_text(encoding="utf-8"))
    yield "config.yaml", "was changed since the run wrote it (its checksum differs)" if is_changed else None
    last = max((int(path.name) for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit()), default=0)
    wanted = ["tokenizer", "metrics.jsonl"] * (last > 0) + ["run.json"] * (last >= config.train.steps)
    is_running = lock.is_held(run_dir)
    for name in wanted:  # an imported model has its checkpoint at step 0
        if not (run_dir / name).exists():
            yield name, _NOT_WRITTEN if is_running and name == "run.json" else "missing"
    tokenizer = run_dir / "tokenizer"
    if tokenizer.is_dir() and "." in config.data.tokenizer.kind:
        yield f"tokenizer of kind {config.data.tokenizer.kind}", _NOT_READ
    elif tokenizer.is_dir():
        yield "tokenizer", _fault(lambda: tokenizers.load(tokenizer, config.data.tokenizer.kind))
    if (run_dir / origin.FOLDER).is_dir():
        yield origin.FOLDER, hf_files.damage(run_dir / origin.FOLDER)
    if (run_dir / "run.json").exists():
        yield "run.json", _fault(lambda: run_dirs.receipt(run_dir))
    if (run_dir / "metrics.jsonl").exists():
        lines, damaged = run_dirs.records(run_dir)
        yield f"metrics.jsonl, {len(lines):,} lines", f"{damaged} more are damaged" if damaged else None
    for file in sorted((run_dir / "evaluations").glob("*.jsonl")):
        yield f"evaluations/{file.name}", _damaged_lines(file)
    with Checkpoints(run_dir, CheckpointConfig(), read_only=True) as checkpoints:
        for step in checkpoints.steps():
            facts = run_dir / "checkpoints" / str(step) / "_CHECKPOINT_METADATA"  # Orbax's own, without a checksum
            fault = checkpoints.damage(step) or _fault(functools.partial(read_json, facts))
            if not facts.parent.exists():  # a run under way has removed it
                continue
            if fault and copy and (copy / "checkpoints" / str(step)).is_dir():
                fault += f"; {copy} has a copy: `jaxpt verify {shlex.quote(str(run_dir))} --repair` fetches it"
            yield f"checkpoint {step}", fault


def _damaged_lines(file: Path) -> str | None:
    """What is wrong with a file of JSON objects, which has no checksum; None if each line is one."""
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            is_object = isinstance(json.loads(line), dict)
        except ValueError:
            is_object = False
        if not is_object:
            return f"line {number} is no JSON object"
    return None


def _damage(checkpoint: Path) -> str | None:
    facts = checkpoint / "_CHECKPOINT_METADATA"  # Orbax's own, without a checksum
    return copies.damage(checkpoint) or _fault(functools.partial(read_json, facts))


def _fault(read: Callable[[], object]) -> str | None:
    try:
        read()
    except UserError as error:
        return str(error)
    return None
