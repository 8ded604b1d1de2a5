"""A stand-in for the hub's HTTP interface on this machine: repositories of kernels, their commits and files."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

API = re.compile(r"/api/kernels/([^/]+/[^/]+)/(revision|tree)/([^/?]+)")
FILE = re.compile(r"/kernels/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)")


class Hub:
    """Serves states: repository and revision -> commit, and commit -> files."""

    def __init__(self) -> None:
        self.branches: dict[tuple[str, str], str] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_words: object) -> None:
                hub.requests.append(f"{self.command} {self.path}")

            def do_GET(self) -> None:
                self.answer(*hub.answer(self.path))

            def do_HEAD(self) -> None:
                self.answer(*hub.answer(self.path), body=False)

            def answer(self, status: int, data: bytes, headers: dict[str, str], body: bool = True) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if body:
                    self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def push(self, repository: str, branch: str, files: dict[str, bytes]) -> str:
        """Adds a commit to a branch, and returns it."""
        parts = [name.encode() + b"\0" + data for name, data in sorted(files.items())]
        commit = hashlib.sha1(b"\0".join(parts), usedforsecurity=False).hexdigest()
        self.branches[repository, branch] = commit
        self.files[commit] = files
        return commit

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        if asked := API.match(path):
            repository, kind, revision = asked.groups()
            commit = self.branches.get((repository, revision), revision)
            if commit not in self.files:
                return 404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no such revision"}
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files[commit].items()
            ]
            value = {"id": repository, "sha": commit} if kind == "revision" else entries
            return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}
        asked = FILE.match(path)
        data = self.files.get(asked[2], {}).get(asked[3]) if asked else None
        if asked is None or data is None:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        etag = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        return 200, data, {"X-Repo-Commit": asked[2], "ETag": f'"{etag}"', "X-Linked-Size": str(len(data))}
