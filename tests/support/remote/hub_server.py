"""A stand-in for the hub's HTTP interface on this machine: repositories of kernels, their commits and files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

API = re.compile(r"/api/kernels/([^/]+/[^/?]+)(?:/(revision|tree)/([^/?]+))?")
CHANGE = re.compile(r"/api/kernels/([^/]+/[^/]+)/(branch|preupload|commit)/([^/?]+)")
FILE = re.compile(r"/kernels/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)")
LARGE = re.compile(r"/kernels/[^/]+/[^/]+\.git/info/lfs/objects/batch")
UPLOAD = "/uploads/"


class Hub:
    """Serves states: repository and revision -> commit, and commit -> files."""

    def __init__(self) -> None:
        self.branches: dict[tuple[str, str], str] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.authorizations: list[str] = []
        """The header of each request that changes something."""
        self.repositories: set[str] = set()
        self.refusals: dict[str, tuple[int, str]] = {}
        """What is answered instead: an operation, one of those of `operation` -> a status and its text."""
        self.large = ""
        """How the names end of the files that are uploaded on their own, before the commit, as libraries are."""
        self.uploads: dict[str, bytes] = {}
        """Those files, by their digests."""
        self.interrupted_uploads = 0
        """How many of the next uploads lose their connection."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_words: object) -> None:
                hub.requests.append(f"{self.command} {self.path}")

            def do_GET(self) -> None:
                self.answer(*hub.answer(self.path))

            def do_HEAD(self) -> None:
                self.answer(*hub.answer(self.path), body=False)

            def do_POST(self) -> None:
                hub.authorizations.append(self.headers.get("Authorization", ""))
                length = int(self.headers.get("Content-Length") or 0)
                data = self.rfile.read(length) if length else self.chunks()
                self.answer(*hub.change(self.path, data))

            def do_PUT(self) -> None:
                if hub.interrupted_uploads:
                    hub.interrupted_uploads -= 1
                    self.close_connection = True
                    return
                hub.uploads[self.path.removeprefix(UPLOAD)] = self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(200, b"", {})

            def chunks(self) -> bytes:
                """Reads a body without a length: a size in hexadecimal before each part."""
                data = b""
                while self.headers.get("Transfer-Encoding") == "chunked":
                    size = int(self.rfile.readline().split(b";")[0], 16)
                    data += self.rfile.read(size)
                    self.rfile.readline()
                    if not size:
                        break
                return data

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
            commit = self.branches.get((repository, revision or "main"), revision)
            if commit not in self.files:
                return 404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no such revision"}
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files[commit].items()
            ]
            value = {"id": repository, "sha": commit} if kind != "tree" else entries
            return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}
        asked = FILE.match(path)
        data = self.files.get(asked[2], {}).get(asked[3]) if asked else None
        if asked is None or data is None:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        etag = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        return 200, data, {"X-Repo-Commit": asked[2], "ETag": f'"{etag}"', "X-Linked-Size": str(len(data))}

    def change(self, path: str, data: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Makes a repository or a branch, or adds a commit, as the hub does: small files are in it, as base64."""
        if refusal := self.refusals.get(operation(path)):
            return refusal[0], json.dumps({"error": refusal[1]}).encode(), {"Content-Type": "application/json"}
        if LARGE.fullmatch(path):
            return 200, json.dumps(self._upload_actions(json.loads(data))).encode(), {}
        if path == "/api/repos/create":
            asked = json.loads(data)
            name = f"{asked['organization']}/{asked['name']}"
            is_known = name in self.repositories
            self.repositories.add(name)
            self.branches.setdefault((name, "main"), self.push(name, "main", {}))
            return (409 if is_known else 200), json.dumps({"url": f"{self.url}/kernels/{name}"}).encode(), {}
        change = CHANGE.match(path)
        assert change, path
        repository, kind, branch = change.groups()
        if kind == "branch":
            if (repository, branch) in self.branches:
                return 409, b"{}", {}
            self.branches[repository, branch] = self.branches[repository, "main"]
            return 200, b"{}", {}
        files = dict(self.files[self.branches[repository, branch]])
        if kind == "preupload":
            answers = [
                {
                    "path": path,
                    "uploadMode": "lfs" if self._is_large(path) else "regular",
                    "shouldIgnore": False,
                    "oid": self._oid(path, files.get(path)),
                }
                for path in (file["path"] for file in json.loads(data)["files"])
            ]
            return 200, json.dumps({"files": answers}).encode(), {}
        for line in map(json.loads, data.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                files[line["value"]["path"]] = self.uploads[line["value"]["oid"]]
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        commit = self.push(repository, branch, files)
        value = {"commitUrl": f"{self.url}/kernels/{repository}/commit/{commit}", "commitOid": commit}
        return 200, json.dumps(value).encode(), {}

    def _is_large(self, path: str) -> bool:
        return bool(self.large) and path.endswith(self.large)

    def _upload_actions(self, asked: dict[str, list[dict[str, str]]]) -> dict[str, object]:
        """Returns where files are uploaded to; nothing for one that is there."""
        missing = [
            {**each, "actions": {"upload": {"href": f"{self.url}{UPLOAD}{each['oid']}"}}}
            for each in asked["objects"]
            if each["oid"] not in self.uploads
        ]
        return {"transfer": "basic", "objects": missing}

    def _oid(self, path: str, data: bytes | None) -> str | None:
        """Returns git's name of a file, or the digest of a large one: by it a client knows that it need not send it."""
        if data is None:
            return None
        if self._is_large(path):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def operation(path: str) -> str:
    """Returns what a request does: "create", "upload", "branch", "preupload" or "commit"."""
    if path == "/api/repos/create":
        return "create"
    change = CHANGE.match(path)
    return change[2] if change else "upload"
