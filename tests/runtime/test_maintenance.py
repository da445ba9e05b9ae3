"""Notices of the machine's host, from a metadata server on loopback; elsewhere nothing is asked."""

import http.server
import threading
import time

import pytest

from jaxpt.runtime import maintenance
from tests.waiting import until


class Metadata(http.server.BaseHTTPRequestHandler):
    """Answers as Google's server does, with what `values` holds."""

    values, flavor = {}, "Google"

    def do_GET(self):
        asked_as_google = self.headers["Metadata-Flavor"] == "Google"
        key = self.path.removeprefix("/computeMetadata/v1/instance/")
        self.send_response(200 if asked_as_google and key in self.values else 404)
        self.send_header("Metadata-Flavor", self.flavor)
        self.end_headers()
        self.wfile.write(self.values.get(key, "").encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata(monkeypatch):
    handler = type("Handler", (Metadata,), {"values": dict(maintenance.QUIET)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()


def test_each_notice_is_told_once(metadata):
    lines = []
    with maintenance.watch(lines.append, poll_seconds=0.01):
        time.sleep(0.1)
        assert lines == []
        metadata.values["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        until(lambda: lines)
        time.sleep(0.1)
        metadata.values["preempted"] = "TRUE"
        until(lambda: len(lines) > 1)
        time.sleep(0.1)
    assert lines == [
        "the machine's host announces maintenance-event: TERMINATE_ON_HOST_MAINTENANCE",
        "the machine's host announces preempted: TRUE",
    ]


def test_what_does_not_answer_as_a_metadata_server_announces_nothing(metadata, monkeypatch):
    metadata.flavor, metadata.values["preempted"] = "Other", "TRUE"
    assert maintenance.notices(maintenance.server()) is None
    assert maintenance.notices("127.0.0.1:9") is None  # nobody listens there


def test_other_machines_have_no_server(monkeypatch, tmp_path):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    for product, host in ((None, None), ("Standard PC", None), ("Google Compute Engine\n", "metadata.google.internal")):
        monkeypatch.setattr(maintenance, "PRODUCT", tmp_path / "product_name")
        if product:
            maintenance.PRODUCT.write_text(product)
        assert maintenance.server() == host
