"""Records that were prepared elsewhere, on a web server or an object store: copied once, then read from the local disk.

One request a shard, none a record. A copy is checked against the manifest before it gets its name; a server that does
not answer, or gives other bytes, is asked again, then named. Tested against a server that is slow, lies and breaks off;
what TensorFlow opens (`gs://…`) has its time-outs.
"""

from __future__ import annotations

import http.client
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from jaxpt.data._tf import tf
from jaxpt.data.records.shard import is_intact
from jaxpt.data.records.store import manifest_is_whole, write_manifest
from jaxpt.data.tables.files import open_file
from jaxpt.errors import StorageError, UserError
from jaxpt.runtime import disk
from jaxpt.runtime.progress import Progress

TIMEOUT = 30.0
"""Seconds without a byte after which a request is given up."""
WAITS = (1.0, 4.0, 16.0)
"""Seconds before each further try."""
_AT_A_TIME = 8


def fetch(url: str, directory: Path, say: Progress) -> bool:
    """Copies a store, as far as it is not there yet.

    Args:
      url: where it lies: `https://…`, `http://…`, or what TensorFlow opens (`gs://…`).
      directory: where it goes; it exists.
      say: shows the progress of the copy.

    Returns:
      True if the mirror has this store.

    Raises:
      UserError: names what could not be read, or the disk is full.
    """
    try:
        text = _tried(f"{url}/manifest.json", lambda file: file.read())
    except FileNotFoundError:
        return False
    try:
        manifest = json.loads(text)
    except ValueError:  # such as the page of a proxy
        manifest = None
    if not manifest_is_whole(manifest):
        raise UserError(f"data.mirror: {url}/manifest.json: is damaged, or of another version of jaxpt")
    missing = [s for s in manifest["shards"] if not is_intact(directory / s["file"], s["crc32"])]
    total = sum(shard["size"] for shard in missing) / 1e6
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        copies = [pool.submit(_copy, f"{url}/{shard['file']}", directory, shard) for shard in missing]
        try:
            for number, copy in enumerate(copies, 1):
                copy.result()
                say.update(f"copying {url}: {number} of {len(copies)} shards, {total:.0f} MB in all")
        finally:
            pool.shutdown(cancel_futures=True)
    write_manifest(directory, manifest)
    return True


def _copy(url: str, directory: Path, shard: dict[str, Any]) -> None:
    def write(source: IO[bytes]) -> None:
        with disk.whole_file(directory / shard["file"]) as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            if not is_intact(Path(target.name), shard["crc32"]):
                raise OSError("other bytes than its manifest tells")

    try:
        _tried(url, write)
    except FileNotFoundError:
        raise UserError(f"data.mirror: {url}: is not there, but its manifest names it") from None


def _tried(url: str, use: Callable[[IO[bytes]], Any]) -> Any:
    """What `use` makes of the file at `url`; failures are tried again, a file that is not there is not."""
    for wait in (*WAITS, None):
        try:
            is_http = url.startswith(("http://", "https://"))
            with urllib.request.urlopen(url, timeout=TIMEOUT) if is_http else open_file(url, unpack=False) as file:
                return use(file)
        except (OSError, http.client.HTTPException, tf.errors.OpError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code in (403, 404, 410):
                raise FileNotFoundError(url) from None
            if isinstance(error, FileNotFoundError | tf.errors.NotFoundError):
                raise FileNotFoundError(url) from None
            if full := disk.full(error):
                raise StorageError(
                    f"data.mirror: no room for a copy of {url} ({full}); give another data.cache_dir"
                ) from None
            if wait is None:
                reason = " ".join(str(getattr(error, "message", error)).split()) or type(error).__name__
                tries = len(WAITS) + 1
                raise UserError(f"data.mirror: {url}: cannot be read after {tries} tries ({reason})") from None
            time.sleep(wait)
    raise AssertionError
