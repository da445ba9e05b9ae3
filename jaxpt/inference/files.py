"""Files of prompts, and files of results that a kill leaves resumable.

    prompts.jsonl   {"prompt": …, …} a line, or rows of another format; or a .txt with a prompt a line; also as .gz
    G.jsonl         the same rows in the same order, each with what was generated
    G.jsonl.state   what G.jsonl belongs to: prompts and settings; then a checksum for each row of G.jsonl, one a line;
                    there until G.jsonl is complete

Each row is one write, so a kill leaves whole rows and at most one torn line. A resume cuts off that line, and rows that
have no checksum yet. A row with a different checksum was altered; the message names it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from jaxpt.data import tables
from jaxpt.errors import StorageError, UserError
from jaxpt.runtime import disk
from jaxpt.runtime.progress import Progress, progress_line

Row = dict[str, Any]

_SYNC_SECONDS = 5.0
"""Seconds between two fsyncs. A power loss costs no more than this; a killed process loses nothing."""


# ---- prompts --------------------------------------------------------------------------------------------------------


def read_prompts(path: str | Path, field: str = "prompt") -> list[Row]:
    """Reads a file of prompts.

    Args:
      path: rows of any format of `jaxpt.data.tables` (JSONL, TSV, Parquet, …), or a `.txt` with a prompt a line, whose
        blank lines are skipped. Each may be compressed (`.gz`).
      field: the column with the prompt; the name that a line of a `.txt` gets.

    Returns:
      The rows, with all their columns, as JSON can have them (`without_nan`).

    Raises:
      UserError: a line is malformed; the message names the file and the line.
    """
    path, rows = str(path), []
    format = tables.file_format(path)
    column = "text" if format == "text" else field
    for row in tables.read(path, format, **({"replace_surrogates": False} if format == "jsonl" else {})):
        place = tables.where(path, row, format)
        prompt = tables.text(row, column, place)
        if any("\ud800" <= letter <= "\udfff" for letter in prompt):
            raise UserError(f"{place}: column {column!r} holds half a surrogate pair; wants whole characters")
        if format != "text" or prompt.strip():
            rows.append({field: prompt} if format == "text" else without_nan(row.values))
    if not rows:
        raise UserError(f"{path}: is empty; wants one prompt a line")
    return rows


def without_nan(value: Any) -> Any:
    """A value as JSON can have it: None for NaN, a text for an infinity.

    Example:
      >>> without_nan({"a": [float("nan"), float("-inf"), 0.5]})
      {'a': [None, '-Infinity', 0.5]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [without_nan(element) for element in value]
    return {name: without_nan(member) for name, member in value.items()} if isinstance(value, dict) else value


# ---- results --------------------------------------------------------------------------------------------------------


class ResumableJsonl:
    """A file of results: one row for each prompt, in the order of the prompts. Re-run the same command to resume.

    Example:
      with ResumableJsonl("G.jsonl", rows, {"seed": 0}, adds=["completions"]) as results:
          for i in results.remaining():
              results.write(i, {"completions": [...]})

    Attributes:
      done: number of rows in the file.
    """

    def __init__(
        self,
        path: str | Path,
        prompts: Sequence[Row],
        settings: Mapping[str, Any],
        adds: Sequence[str],
        say: Progress | None = None,
        doing: str = "generating",
        unit: str = "prompts",
        keeps_state: bool = False,
    ) -> None:
        """Creates the file, or opens the one that an earlier process left.

        Args:
          path: the file.
          prompts: all rows of the input.
          settings: all that determines the results, as JSON; a resume under others is refused.
          adds: the fields that `write` adds to a row.
          say: shows the progress.
          doing: what is done, for the progress.
          unit: what a row is, for the progress.
          keeps_state: keep `.state` beside a complete file too, until other files that belong to it are complete.

        Raises:
          UserError: `path` holds other results, another process writes it, a row of the input has one of the fields
            `adds`, or the file cannot be written.
        """
        self.path, self._prompts, self._say = Path(path), prompts, say or Progress()
        self._doing, self._unit, self._keeps_state = doing, unit, keeps_state
        self._state = state_of(self.path)
        self._adds = set(adds)
        for number, row in enumerate(prompts, 1):
            if taken := self._adds & row.keys():
                name = sorted(taken)[0]
                raise UserError(
                    f"{self.path}: row {number} of the input has a field {name!r}, where results go; rename it"
                )
        self._waiting: dict[int, bytes] = {}
        identity = {"prompts": len(prompts), "digest": _digest(prompts), "settings": dict(settings)}
        self._file = self._open(json.loads(json.dumps(identity)))
        try:
            self.done = self._recover()
        except BaseException:
            self._file.close()
            raise
        self._first, self._begun = self.done, time.monotonic()
        self._synced = self._begun
        self.show()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def remaining(self) -> range:
        """Indices of the prompts without a row in the file."""
        return range(self.done, len(self._prompts))

    def write(self, index: int, values: Mapping[str, Any]) -> None:
        """Adds the row of a prompt; it waits in memory until those before it are written.

        Args:
          index: index of the prompt. The order is free; each comes once.
          values: the fields to add.

        Raises:
          ValueError: the row is there, or `values` are not the fields that were announced.
          UserError: the disk is full.
        """
        if index not in self.remaining() or index in self._waiting or values.keys() != self._adds:
            raise ValueError(f"row {index} with {sorted(values)}: wants each row once, with {sorted(self._adds)}")
        self._waiting[index] = _line({**self._prompts[index], **values})
        lines = []
        while (line := self._waiting.pop(self.done + len(lines), None)) is not None:
            lines.append(line)
        if lines:
            self._append(b"".join(lines))
            self.done += len(lines)
            self.show()

    def show(self, under_way: int = 0) -> None:
        """Shows the progress.

        Args:
          under_way: rows that are finished and not yet written.
        """
        done, seconds = max(self.done, under_way), time.monotonic() - self._begun
        self._say.update(progress_line(self._doing, done, len(self._prompts), self._unit, seconds, self._first))

    def close(self) -> str:
        """Closes the file; a complete one loses its `.state`, unless `keeps_state`.

        Returns:
          A line for the user: how many rows there are, and how to get the others.
        """
        total = len(self._prompts)
        if not self._file.closed:
            os.fsync(self._file.fileno())
            if self.done == total and not self._keeps_state:
                self._state.unlink(missing_ok=True)  # while the lock is held
                _sync_directory(self.path.parent)
            self._file.close()
        if self.done == total:
            return f"{self.path}: {total:,} rows"
        resume = f"re-run the same command to resume ({self._state} is for that)"
        return f"{self.path}: {self.done:,} of {total:,} rows; {resume}"

    def _open(self, identity: Row) -> Any:
        """Opens the file for appending and locks it; its `.state` then holds `identity`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_new = check_unused(self.path)
            if not is_new:
                self._check(identity)
            file = self.path.open("ab+", buffering=0)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); choose another --out") from None
        if not disk.lock(file.fileno()):
            file.close()
            raise UserError(f"{self.path}: another process writes it; stop that one, or choose another --out")
        if is_new:
            self._write_state(identity)
        return file

    def _write_state(self, identity: Row) -> None:
        disk.write_text(self._state, json.dumps(identity) + "\n")
        _sync_directory(self.path.parent)

    def _check(self, identity: Row) -> None:
        """Refuses to resume results of other prompts or settings."""
        resolve = "resume with the same, delete both files, or choose another --out"
        try:
            before = json.loads(self._state.read_text("utf-8").partition("\n")[0])
            old, new = before["settings"], identity["settings"]
            count, digest = before["prompts"], before["digest"]
            names = sorted(old.keys() | new.keys())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{self._state}: is damaged; delete it and {self.path.name}") from None
        if name := next((name for name in names if old.get(name) != new.get(name)), None):
            change = f"{name} {json.dumps(old.get(name))}, now it is {json.dumps(new.get(name))}"
            raise UserError(f"{self.path}: was begun with {change}; {resolve}")
        if digest != identity["digest"]:
            counts = f"{count:,} rows then, {identity['prompts']:,} now"
            raise UserError(f"{self.path}: was begun with other prompts ({counts}); {resolve}")

    def _recover(self) -> int:
        """Cuts off a torn last line and rows without a checksum. Returns the number of rows that remain."""
        self._file.seek(0)
        identity, *checksums = self._state.read_bytes().split(b"\n")
        size = done = 0
        for number, line in enumerate(self._file):
            if not line.endswith(b"\n"):
                break
            where = f"{self.path}: line {number + 1}"
            if number == len(self._prompts):
                raise UserError(f"{where}: is beyond the last prompt; delete {self.path.name} and {self._state.name}")
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            prompt, checksum = self._prompts[number], checksums[number] if number + 1 < len(checksums) else None
            is_row = isinstance(row, dict) and _line({key: row.get(key) for key in prompt}) == _line(prompt)
            if not is_row or checksum not in (None, _checksum(line)):
                raise UserError(
                    f"{where}: is not the row of this prompt; delete it and the lines after it to generate them again"
                )
            if checksum is not None:
                size, done = size + len(line), number + 1
        self._file.truncate(size)
        os.truncate(self._state, len(identity) + 1 + done * (len(_checksum(b"")) + 1))
        return done

    def _append(self, lines: bytes) -> None:
        try:
            checksums = b"".join(_checksum(line) + b"\n" for line in lines.splitlines(keepends=True))
            while lines:
                lines = lines[self._file.write(lines) :]
            with self._state.open("ab") as file:
                file.write(checksums)
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            if (full := disk.full(error)) is None:
                raise
            raise StorageError(f"{self.path}: {full}; make room, then re-run the same command to resume") from None


def check_unused(path: Path) -> bool:
    """Checks that a file of results can be created or resumed.

    Returns:
      True if it is to be created.

    Raises:
      UserError: the file belongs to something else.
    """
    state = state_of(path)
    is_new = not state.exists()
    if is_new and path.exists() and path.stat().st_size:
        raise UserError(
            f"{path}: already exists, and no {state.name} says that it can be resumed; delete it, or choose another "
            "--out"
        )
    return is_new


def is_complete(path: Path) -> bool:
    """True if the file exists and needs no resume."""
    return path.exists() and not state_of(path).exists()


def state_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.state")


def _line(row: Row) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # JSON can spell half a surrogate pair
        return json.dumps(row).encode() + b"\n"


def _checksum(line: bytes) -> bytes:
    return b"%08x" % zlib.crc32(line)


def _digest(rows: Sequence[Row]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for row in rows:
        hashed.update(_line(row))
    return hashed.hexdigest()


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
