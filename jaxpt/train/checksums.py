"""Checksums of a directory's files, written with them and compared before they are read.

Orbax restores flipped bits without a word; the checksums name the file that was altered.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAME = "checksums.json"
"""The file, in the directory that it describes: {file: [bytes, BLAKE2b]}."""


def write(directory: Path) -> None:
    """Hashes all files below a directory into its `checksums.json`."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != NAME)
    with ThreadPoolExecutor() as pool:  # hashing gives up Python's lock
        digests = list(pool.map(digest, files))
    found = {
        path.relative_to(directory).as_posix(): [path.stat().st_size, hashed] for path, hashed in zip(files, digests)
    }
    (directory / NAME).write_text(json.dumps(found, indent=1), encoding="utf-8")


def damage(directory: Path, contents: bool = True) -> str | None:
    """What is wrong with a directory that `write` has seen.

    Args:
      directory: where the files are.
      contents: compare the contents too, not only which files there are and how long.

    Returns:
      The first file that is missing or altered, and how; None where all is as it was.
    """
    try:
        wanted = json.loads((directory / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{directory / NAME} is missing"
    except ValueError:
        return f"{directory / NAME} is altered: it is no JSON"
    for name, (size, _) in wanted.items():
        if not (directory / name).is_file():
            return f"{directory / name} is missing"
        if (directory / name).stat().st_size != size:
            return f"{directory / name} is altered: {(directory / name).stat().st_size} bytes, {size} were written"
    if not contents:
        return None
    with ThreadPoolExecutor() as pool:
        found = pool.map(digest, [directory / name for name in wanted])
        for (name, (_, hashed)), now in zip(wanted.items(), found):
            if now != hashed:
                return f"{directory / name} is altered: its contents are not those that were written"
    return None


def digest(path: Path) -> str:
    """BLAKE2b of a file's contents, 128 bits in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
