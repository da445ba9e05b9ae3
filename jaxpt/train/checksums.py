"""Checksums of a directory's files, written with them and compared before they are read.

Orbax restores flipped bits without a word; the checksums name the file that was altered.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jaxpt.runtime.disk import write_text
from jaxpt.runtime.progress import counted

NAME = "checksums.json"
"""The file, in the directory that it describes: {"of": its owner, "files": {file: [bytes, BLAKE2b]}}."""


def write(directory: Path, of: Any = None) -> None:
    """Hashes all files below a directory into its `checksums.json`.

    What a subdirectory's own `checksums.json` names is taken from there, and that file goes: so each process can hash
    what it has written, and one of them puts all together.

    Args:
      directory: where the files are.
      of: a JSON value kept beside the checksums: whose the directory is.
    """
    entries = {}
    for part in sorted(directory.glob(f"*/{NAME}")):
        for name, entry in json.loads(part.read_text(encoding="utf-8"))["files"].items():
            entries[f"{part.parent.name}/{name}"] = entry
        part.unlink()
    paths = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    names = sorted(paths.keys() - entries.keys() - {NAME})
    with ThreadPoolExecutor() as pool:  # hashing gives up Python's lock
        for name, hashed in zip(names, pool.map(digest, [paths[name] for name in names])):
            entries[name] = [paths[name].stat().st_size, hashed]
    text = json.dumps({"of": of, "files": dict(sorted(entries.items()))}, indent=1)
    write_text(directory / NAME, text)


def damage(directory: Path, contents: bool = True) -> str | None:
    """What is wrong with a directory that `write` has seen.

    Args:
      directory: where the files are.
      contents: compare the contents too, not only which files there are and how long.

    Returns:
      The first file that is missing or altered, and how; None where all is as it was.
    """
    if not (directory / NAME).is_file():  # a pipe or a device would never end
        return f"{directory / NAME} is {'no regular file' if (directory / NAME).exists() else 'missing'}"
    try:
        entries = json.loads((directory / NAME).read_text(encoding="utf-8"))["files"]
    except ValueError:
        return f"{directory / NAME} is altered: it is no JSON"
    except (KeyError, TypeError):
        return f"{directory / NAME} is of an older version of jaxpt, which this one does not read"
    for name, (size, _) in entries.items():
        if not (directory / name).is_file():
            return f"{directory / name} is missing"
        if (directory / name).stat().st_size != size:
            return f"{directory / name} is altered: {(directory / name).stat().st_size} bytes, {size} were written"
    if not contents:
        return None
    with ThreadPoolExecutor() as pool:
        digests = pool.map(digest, [directory / name for name in entries])
        pairs = zip(entries.items(), digests)
        for (name, (_, hashed)), now in counted(pairs, f"reading {directory}", len(entries), "files"):
            if now != hashed:
                return f"{directory / name} is altered: its contents are not those that were written"
    return None


def owner(directory: Path) -> Any:
    """The `of` that `write` stored in a directory without damage."""
    return json.loads((directory / NAME).read_text(encoding="utf-8")).get("of")


def digest(path: Path) -> str:
    """BLAKE2b of a file's contents, 128 bits in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
