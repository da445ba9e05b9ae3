"""`jaxpt verify RUN_DIR`: whether every file of a run is as it was written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxpt import config as configs
from jaxpt.config import CheckpointConfig
from jaxpt.data import tokenizers
from jaxpt.disk import read_json
from jaxpt.errors import UserError
from jaxpt.train import run_dir as run_dirs
from jaxpt.train.checkpoint import Checkpoints


def verify(path: str, say: Callable[[str], None] = print) -> int:
    """Compares a run's files with their checksums: all checkpoints, tokenizer, run.json; metrics line by line.

    Args:
      path: RUN_DIR.
      say: called with a line for each of them.

    Returns:
      0 if all are whole, else 2.

    Raises:
      UserError: `path` is no run_dir.
    """
    run_dir, bad = Path(path), 0
    if not (run_dir / "checkpoints").is_dir():
        raise UserError(f"{path}: is no run_dir, it holds no checkpoints")
    for what, fault in _checked(run_dir):
        say(f"{what}: {fault or 'whole'}")
        bad += fault is not None
    say(f"{path}: {f'{bad} damaged' if bad else 'all is whole'}")
    return 2 if bad else 0


def _checked(run_dir: Path) -> Iterator[tuple[str, str | None]]:
    """(part, what is wrong with it or None)."""
    config = configs.load(run_dir)  # a damaged one is refused
    yield "config.yaml", None
    tokenizer = run_dir / "tokenizer"
    if tokenizer.is_dir():
        yield "tokenizer", _fault(lambda: tokenizers.load(tokenizer, config.data.tokenizer.kind))
    if (run_dir / "run.json").exists():
        yield "run.json", _fault(lambda: run_dirs.receipt(run_dir))
    found, damaged = run_dirs.records(run_dir)
    yield f"metrics.jsonl, {len(found):,} lines", f"{damaged} more are damaged" if damaged else None
    checkpoints = Checkpoints(run_dir, CheckpointConfig(), read_only=True)
    try:
        for step in checkpoints.steps():
            facts = run_dir / "checkpoints" / str(step) / "_CHECKPOINT_METADATA"  # Orbax's own, without a checksum
            yield f"checkpoint {step}", checkpoints.damage(step) or _fault(functools.partial(read_json, facts))
    finally:
        checkpoints.close()


def _fault(read: Callable[[], object]) -> str | None:
    try:
        read()
    except UserError as error:
        return str(error)
    return None
