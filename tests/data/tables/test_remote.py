"""Remote paths that cannot be read end in one line, in seconds."""

import socket
import time
import urllib.error
import urllib.request

import pytest

from jaxpt.data.tables import files, remote
from jaxpt.data.tables.quiet_tensorflow import tensorflow
from jaxpt.errors import UserError


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No test asks the network."""
    remote.unreachable.cache_clear()
    monkeypatch.setenv("NO_GCE_CHECK", "true")

    def refuse(address, timeout=None):
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)  # no machine of Google's answers
    yield
    remote.unreachable.cache_clear()


def answer(monkeypatch, error):
    def urlopen(request, timeout):
        if callable(error):
            error()
            raise TimeoutError
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


@pytest.mark.parametrize("path", ["s3://bucket/a.txt", "hf://datasets/a/b.jsonl", "https://example.com/a.txt"])
def test_other_schemes(path):
    with pytest.raises(UserError, match=rf"^data.path: {path}: \w+:// is not supported, gs:// is; download the files"):
        files.expand(path, "data.path")


def test_no_network(monkeypatch):
    answer(monkeypatch, urllib.error.URLError(OSError(-2, "Name or service not known")))
    with pytest.raises(UserError, match=r"googleapis.com/ cannot be reached \(Name or service not known\); check net"):
        files.expand("gs://bucket/*.txt", "data.path")


def test_a_network_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 0.1)
    answer(monkeypatch, lambda: time.sleep(5))
    begun = time.monotonic()
    with pytest.raises(UserError, match="no answer in"):
        files.expand("gs://bucket/*.txt", "data.path")
    assert time.monotonic() - begun < 3


def test_a_bucket_that_may_not_be_read(monkeypatch):
    """As TensorFlow says it."""
    answer(monkeypatch, urllib.error.HTTPError("url", 400, "Bad Request", {}, None))

    class PermissionDeniedError(Exception):
        message = 'Error executing an HTTP request: HTTP response code 401 with body \'{\n  "error": {…'

    def refused(path):
        raise PermissionDeniedError

    for name in ("exists", "isdir", "glob"):
        monkeypatch.setattr(tensorflow().io.gfile, name, refused)
    with pytest.raises(UserError) as error:
        files.expand("gs://bucket/a.txt", "data.path")
    assert "HTTP response code 401" in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).endswith("; to log in: gcloud auth application-default login")
