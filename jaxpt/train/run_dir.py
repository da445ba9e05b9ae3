"""A run's directory: which configuration it belongs to, and whether a run may go on in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.errors import UserError


def open_run(config: Config) -> Path:
    """Makes or opens the run_dir, and writes `config.yaml`.

    Args:
      config: what was asked for.

    Returns:
      The directory.

    Raises:
      UserError: it cannot be written, or it belongs to a run of another identity (the differing keys are named).
    """
    run_dir = Path(config.run_dir)
    saved = run_dir / "config.yaml"
    if saved.exists():
        old = configs.load(saved)
        changed = configs.differences(old, config)
        if changed:
            key, was, now = changed[0]
            more = f" (and {', '.join(k for k, _, _ in changed[1:6])})" if len(changed) > 1 else ""
            raise UserError(
                f"{run_dir}: belongs to another run: {key} is {was!r} there, {now!r} was asked for{more}; "
                f"choose another run_dir=…, or delete this one"
            )
    elif run_dir.exists() and not run_dir.is_dir():
        raise UserError(f"{run_dir}: run_dir is a file, a directory is wanted")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_text(saved, configs.to_yaml(config))
    except OSError as error:
        raise UserError(f"{run_dir}: cannot write the run_dir: {error.strerror or error}") from None
    return run_dir


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it is either the old or the new one, never half of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def check_fingerprint(saved: dict[str, Any], current: dict[str, Any], where: str) -> None:
    """Raises UserError, naming the first difference, where the data are not those of the checkpoint.

    Args:
      saved: the data's fingerprint in the checkpoint.
      current: the data's fingerprint now.
      where: the checkpoint, for the message.
    """
    for key in sorted(saved.keys() | current.keys()):
        if saved.get(key) != current.get(key):
            raise UserError(
                f"{where}: was trained on other data: {key} was {saved.get(key)!r}, is {current.get(key)!r}; "
                "restore the data, or branch into a new run_dir with init_from"
            )
