"""Records from a server that is slow, lies, or breaks off: asked again, then named; one request a shard."""

import http.server
import threading
from pathlib import Path

import pytest

from jaxpt.data.records import cache, mirror
from jaxpt.data.records.store import shard_name
from jaxpt.errors import UserError
from jaxpt.runtime.progress import Progress
from tests import buckets
from tests.data.records.test_cache import SHARDS, Numbers, content, make
from tests.waiting import LIMIT


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves tmp_path/remote; `faults` maps a file name to what goes wrong with its next requests."""
    monkeypatch.setattr(mirror, "WAITS", (0.01, 0.02))
    root, asked, faults, ended = tmp_path / "remote", [], {}, threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            path = root / self.path.lstrip("/")
            fault = (faults.get(path.name) or [None]).pop(0)
            if fault == "silent":
                return ended.wait(LIMIT)
            if fault == "error":
                return self.send_error(503)
            if not path.is_file():
                return self.send_error(404)
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if fault == "short":
                data = data[: len(data) // 2]
            if fault == "flip":
                data = data[:-1] + bytes([data[-1] ^ 1])
            self.wfile.write(data)
            return None

        def log_message(self, *arguments):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}", root, asked, faults
    ended.set()
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "numbers"
    make(directory)
    return directory


def put(whole, root):
    (root / "numbers").mkdir(parents=True)
    for name, data in content(whole).items():
        (root / "numbers" / name).write_bytes(data)


NOT_MADE = Numbers(log="/nowhere/to/be/made")


def copied(directory, url, recipe=NOT_MADE):
    return cache.build(recipe, directory, {}, Progress(), 1, mirror=url)


@pytest.mark.slow
def test_a_store_is_copied_with_one_request_a_file(server, whole, tmp_path):
    url, root, asked, _ = server
    put(whole, root)
    store = copied(tmp_path / "numbers", url)
    assert content(tmp_path / "numbers") == content(whole) and len(store) == SHARDS * 40
    assert sorted(asked) == sorted(f"/numbers/{path.name}" for path in whole.iterdir())
    copied(tmp_path / "numbers", url)
    assert len(asked) == SHARDS + 1


@pytest.mark.parametrize("fault", ["silent", "error", "short", "flip"])
def test_a_failure_is_tried_again_then_named(server, whole, tmp_path, monkeypatch, fault):
    url, root, asked, faults = server
    monkeypatch.setattr(mirror, "TIMEOUT", 1.5 if fault == "silent" else LIMIT)
    put(whole, root)
    name = shard_name(2, SHARDS)
    faults[name] = [fault] * 2
    copied(tmp_path / "numbers", url)
    assert content(tmp_path / "numbers") == content(whole) and asked.count(f"/numbers/{name}") == 3
    faults[name] = [fault] * 3
    with pytest.raises(UserError, match=f"{name}: cannot be read after 3 tries") as error:
        copied(tmp_path / "again" / "numbers", url)
    assert "\n" not in str(error.value)
    assert (
        not list((tmp_path / "again" / "numbers").glob(".*"))
        and not (tmp_path / "again/numbers/manifest.json").exists()
    )


@pytest.mark.slow
def test_without_a_copy_the_records_are_made(server, whole, tmp_path):
    url, _, asked, _ = server
    copied(tmp_path / "numbers", url, Numbers())
    assert content(tmp_path / "numbers").keys() == content(whole).keys() and asked == ["/numbers/manifest.json"]


def test_a_shard_that_is_not_there_is_named(server, whole, tmp_path):
    url, root, _, _ = server
    put(whole, root)
    (root / "numbers" / shard_name(1, SHARDS)).unlink()
    with pytest.raises(UserError, match=f"{shard_name(1, SHARDS)}: is not there, but its manifest names it"):
        copied(tmp_path / "numbers", url)
    (root / "numbers" / "manifest.json").write_text("<html>Please log in</html>")
    with pytest.raises(UserError, match=r"manifest\.json: is damaged, or of another version of jaxpt"):
        copied(tmp_path / "other" / "numbers", url)


def test_other_file_systems_go_through_tensorflow(whole, tmp_path, monkeypatch):
    copied(tmp_path / "numbers", f"file://{Path(whole).parent}")
    assert content(tmp_path / "numbers") == content(whole)
    put(whole, tmp_path / "bucket")
    with buckets.reached(tmp_path / "bucket", tmp_path, monkeypatch) as bucket:
        copied(tmp_path / "again" / "numbers", f"gs://{bucket.name}")
    assert content(tmp_path / "again" / "numbers") == content(whole)
