"""Remote files: whether their storage can be reached is found out in seconds, before TensorFlow retries for minutes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

from jaxpt.errors import UserError, printable

SCHEMES = ("gs", "hdfs", "viewfs", "file", "ram")
"""File systems that TensorFlow has without plugins."""
SECONDS = 5.0
_STORAGE = "https://storage.googleapis.com/"
_METADATA = ("169.254.169.254", 80)  # answers on Google's machines alone; other addresses of it need a resolver


def check(path: str, key: str) -> None:
    """Finds out whether the storage of a remote path can be reached at all.

    Args:
      path: with a scheme, such as `gs://bucket/file`.
      key: the setting that holds it, for messages.

    Raises:
      UserError: no such scheme, or the storage cannot be reached.
    """
    scheme = path.partition("://")[0]
    if scheme not in SCHEMES and importlib.util.find_spec("tensorflow_io") is None:
        raise UserError(f"{key}: {path}: {scheme}:// is not supported, gs:// is; download the files or mount them")
    if scheme == "gs" and (problem := unreachable()):
        raise UserError(f"{key}: {path}: {_STORAGE} cannot be reached ({problem}); check network and proxy")


@contextlib.contextmanager
def errors(path: str, key: str) -> Iterator[None]:
    """TensorFlow's errors become one line."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:  # tf.errors.OpError; TensorFlow need not be imported here
        raise UserError(f"{key}: {path}: cannot be read ({reason(error)})") from None


def reason(error: Exception) -> str:
    """An error of TensorFlow in one line; who may not read a bucket is told how to log in."""
    text = printable(str(getattr(error, "message", None) or error).partition("\n")[0], 200)
    login = any(code in text for code in ("401", "403", "ermission", "redential"))
    return text + "; to log in: gcloud auth application-default login" * login


@functools.cache
def unreachable() -> str | None:
    """Why Google's storage cannot be reached; None if it can."""
    if not _is_on_google():
        os.environ.setdefault("NO_GCE_CHECK", "true")  # else TensorFlow asks a server that is not there, ten times
    outcomes: list[str | None] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(_STORAGE, method="HEAD"), timeout=SECONDS).close()
            outcomes.append(None)
        except urllib.error.HTTPError:  # it answers
            outcomes.append(None)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            outcomes.append(getattr(reason, "strerror", None) or str(reason))

    asking = threading.Thread(target=ask, daemon=True)  # a resolver has no timeout
    asking.start()
    asking.join(SECONDS)
    return outcomes[0] if outcomes else f"no answer in {SECONDS:.0f} s"


def _is_on_google() -> bool:
    """Whether this machine is one of Google's cloud, which has credentials of its own."""
    try:
        socket.create_connection(_METADATA, timeout=1.0).close()
    except OSError:
        return False
    return True
