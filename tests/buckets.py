"""A stand-in for Google's storage on loopback: a proxy that answers for its hosts over TLS, from files of a directory.

TensorFlow and urllib reach it as they would reach the storage behind a company's proxy: by HTTPS_PROXY, with the
proxy's own certificate authority. Nothing of TensorFlow or jaxpt is replaced.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from jaxpt.data.tables import files

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
PAGE = 2
"""Objects in one answer to a listing: the rest is asked for with a token."""


class Bucket:
    """The objects of a bucket, and what was asked of it.

    Args:
      root: the directory whose files are the objects.
      name: of the bucket.
    """

    def __init__(self, root: Path, name: str = "bucket") -> None:
        self.root, self.name = root, name
        self.asked: list[tuple[str, str]] = []
        """(path, Range) of each request."""
        self.faults: dict[str, list[str]] = {}
        """What goes wrong with the next reads of an object: `busy` is status 503, `cut` half of the bytes, `refused` is
        status 403."""
        self.is_locked = False
        """Whether all is refused, as to who is not logged in."""

    def names(self) -> list[str]:
        """Of all objects, in the order of a listing."""
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())

    def listing(self, prefix: str, delimiter: str, first: int) -> dict[str, Any]:
        """A page of the objects whose name starts with `prefix`; those with a `delimiter` behind it as one prefix."""
        entries = dict.fromkeys(
            (prefix + rest.partition(delimiter)[0] + delimiter, True)
            if delimiter and delimiter in (rest := name.removeprefix(prefix))
            else (name, False)
            for name in self.names()
            if name.startswith(prefix)
        )
        page = [*entries][first : first + PAGE]
        more = {"nextPageToken": str(first + PAGE)} if first + PAGE < len(entries) else {}
        return {
            "items": [{"name": name, **self.facts(name)} for name, is_prefix in page if not is_prefix],
            "prefixes": [name for name, is_prefix in page if is_prefix],
        } | more

    def facts(self, name: str) -> dict[str, str]:
        """What the storage says of an object."""
        stat = (self.root / name).stat()
        return {"size": str(stat.st_size), "generation": "1", "updated": "2026-01-01T00:00:00.000Z"}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket
    context: ssl.SSLContext

    def do_CONNECT(self) -> None:
        """Begins a tunnel, and answers in the place of the host at its end."""
        self.send_response(200)
        self.end_headers()
        self.connection = self.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb", -1), self.connection.makefile("wb", 0)
        self.close_connection = False

    def do_HEAD(self) -> None:
        self._answer(400, b"")

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = {key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()}
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        self.bucket.asked.append((urllib.parse.unquote(url.path), self.headers.get("Range", "")))
        if self.bucket.is_locked:
            return self._answer(401, b"{}")
        if self.headers["Host"].startswith("storage."):  # BUCKET/OBJECT
            return self._content("/".join(parts[1:]))
        if parts[:3] != ["storage", "v1", "b"] or parts[3] != self.bucket.name:
            return self._answer(404, b"{}")
        if parts[4:] == ["o"]:
            first = int(query.get("pageToken", 0))
            return self._json(self.bucket.listing(query.get("prefix", ""), query.get("delimiter", ""), first))
        name = "/".join(parts[5:])
        is_there = not name or (self.bucket.root / name).is_file()
        return self._json(self.bucket.facts(name) if name else {}) if is_there else self._answer(404, b"{}")

    def _content(self, name: str) -> None:
        path = self.bucket.root / name
        fault = (self.bucket.faults.get(name) or [None]).pop(0)
        if not path.is_file() or fault in ("busy", "refused"):
            return self._answer({"busy": 503, "refused": 403}.get(fault, 404), b"")
        content = path.read_bytes()
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        if int(first) >= len(content):
            return self._answer(416, b"")
        part = content[int(first) : int(last) + 1]
        return self._answer(206, part[: len(part) // 2] if fault == "cut" else part, len(part))

    def _json(self, body: dict[str, Any]) -> None:
        self._answer(200, json.dumps(body).encode())

    def _answer(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = length is not None and length > len(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def reached(root: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Serves the files of `root` to this process, as a bucket with a name of its own: TensorFlow remembers what it has
    read."""
    bucket = Bucket(root, f"bucket{time.time_ns()}")
    with serving(bucket, directory) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        urllib.request.install_opener(urllib.request.build_opener())  # which looks for a proxy once
        files.unreachable.cache_clear()
        try:
            yield bucket
        finally:
            urllib.request.install_opener(None)
            files.unreachable.cache_clear()


@contextlib.contextmanager
def serving(bucket: Bucket, directory: Path) -> Iterator[dict[str, str]]:
    """Serves a bucket.

    Args:
      bucket: what is served.
      directory: where the certificate of its authority is written.

    Yields:
      The environment in which a process finds it.
    """
    authority = trustme.CA()
    certificate = directory / "authority.pem"
    authority.cert_pem.write_to_path(str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*HOSTS).configure_cert(context)
    handler = type("Handler", (_Handler,), {"bucket": bucket, "context": context})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        proxy = f"http://127.0.0.1:{server.server_port}"
        settings = {"no_proxy": "", "NO_GCE_CHECK": "true", "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000"}
        trusted = dict.fromkeys(("CURL_CA_BUNDLE", "SSL_CERT_FILE"), os.fspath(certificate))
        yield dict.fromkeys(("https_proxy", "HTTPS_PROXY"), proxy) | trusted | settings
    finally:
        server.shutdown()
        server.server_close()
