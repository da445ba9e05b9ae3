"""Notices of a virtual machine's host: that it will be maintained, or is taken away. A run saves when one comes.

Google Cloud's metadata server is asked, and only on a machine of theirs (its firmware says so), or where
GCE_METADATA_HOST names a server; elsewhere nothing is sent anywhere.
https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
"""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxpt.errors import printable

PRODUCT = Path("/sys/class/dmi/id/product_name")
QUIET = {"maintenance-event": "NONE", "preempted": "FALSE"}
"""{key of the metadata: its value while nothing is announced}."""
POLL_SECONDS = 5.0
_TIMEOUT = 2.0


def server() -> str | None:
    """The metadata server's host, None on machines that have none."""
    if named := os.environ.get("GCE_METADATA_HOST"):
        return named
    with contextlib.suppress(OSError):
        if PRODUCT.read_text(encoding="utf-8", errors="replace").startswith("Google"):
            return "metadata.google.internal"
    return None


def notices(host: str) -> dict[str, str] | None:
    """What is announced now.

    Args:
      host: of the metadata server.

    Returns:
      {key: value} of what is not quiet; None where the server does not answer as one of Google does.
    """
    announced = {}
    for key, quiet in QUIET.items():
        url = f"http://{host}/computeMetadata/v1/instance/{key}"
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        try:
            with _opener.open(request, timeout=_TIMEOUT) as answer:
                if answer.headers.get("Metadata-Flavor") != "Google":
                    return None
                text = printable(answer.read(200).decode(errors="replace"), 80)
        except OSError:
            return None
        if text != quiet:
            announced[key] = text
    return announced


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would answer for another machine


@contextlib.contextmanager
def watch(notify: Callable[[str], None], poll_seconds: float = POLL_SECONDS) -> Iterator[None]:
    """Looks for notices within this block, in a thread; without a metadata server nothing is done.

    Args:
      notify: called in the thread with a line about each notice that was not there a look before.
      poll_seconds: between two looks.
    """
    if (host := server()) is None:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        before: dict[str, str] = {}
        while not ended.is_set():
            announced = notices(host)
            for key, text in (announced or {}).items():
                if before.get(key) != text:
                    notify(f"the machine's host announces {key}: {text}")
            before = before if announced is None else announced
            ended.wait(poll_seconds)

    threading.Thread(target=look, name="jaxpt-maintenance", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
