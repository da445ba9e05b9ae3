"""An HTTP server on loopback that answers as the Hugging Face hub does, for files of a directory."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMITS = {"main": "a" * 40, "older": "b" * 40}


@contextlib.contextmanager
def serve(models):
    """Serves {name: {revision: directory}} at the URL that it yields with the list of requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer()

        def answer(self, body=True):
            requests.append(self.path)
            parts = self.path.strip("/").partition("?")[0].split("/")
            is_api = parts[:2] == ["api", "models"]
            name = "/".join(parts[2:4] if is_api else parts[:2])
            revision = parts[5] if is_api and len(parts) > 5 else "main" if is_api else parts[3]
            if name not in models:
                return self.reply(404, {"X-Error-Code": "RepoNotFound"}, b"")
            revision = next((known for known, sha in COMMITS.items() if sha == revision), revision)
            if revision not in models[name]:
                return self.reply(404, {"X-Error-Code": "RevisionNotFound"}, b"")
            directory, sha = Path(models[name][revision]), COMMITS[revision]
            if is_api:
                files = {str(file.relative_to(directory)): file for file in sorted(directory.rglob("*.*"))}
                if parts[4:5] == ["tree"]:
                    answer = [
                        {"type": "file", "path": path, "size": file.stat().st_size, "oid": "0"}
                        for path, file in files.items()
                    ]
                else:
                    answer = {"id": name, "sha": sha, "siblings": [{"rfilename": path} for path in files]}
                return self.reply(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
            content = (directory / "/".join(parts[4:])).read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            return self.reply(200, {"X-Repo-Commit": sha, "ETag": etag}, content, body)

        def reply(self, code, headers, content, body=True):
            self.send_response(code)
            for key, text in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(key, text)
            self.end_headers()
            if body:
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
