"""What does a store of a remote add to one request on a kept connection of this machine, and to reading a file?"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from benchmarks.scratch import Scratch
from opforge.bench.harness import Report, scaled, take_turns
from opforge.remote.stores import open_store

ROUNDS, INNER = 40, 25
SIZES = {"an offer's file of 8 KB": 8 << 10, "1 MB": 1 << 20}
RAW, STORE, READ, FOLDER = "http.client", "get, http://", "open and read", "get, file://"
TARGET_MS = 1.0
SERVER = """
import http.server, os, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def run(scratch: Scratch) -> Report:
    """Times one request by each way, in turns."""
    report = Report("one object, read again and again", f"{RAW} and {READ}: nothing is checked, bounded or retried")
    folder = os.path.join(scratch.folder, "remote")
    os.makedirs(folder)
    for size in SIZES.values():
        with open(os.path.join(folder, f"object-{size}"), "wb") as file:
            file.write(os.urandom(size))
    proxies = [name for name in os.environ if name.lower().endswith("_proxy")]
    saved = {name: os.environ.pop(name) for name in proxies}
    server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        for what, size in SIZES.items():
            _measure(report, what, _contenders(url, folder, f"object-{size}", size), size)
    finally:
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGTERM)
        server.communicate()
        os.environ.update(saved)
    return report


def _contenders(url: str, folder: str, name: str, size: int) -> dict[str, Callable[[], object]]:
    raw = http.client.HTTPConnection(urlsplit(url).netloc)
    stores = {STORE: open_store(url), FOLDER: open_store(f"file://{folder}")}

    def by_hand() -> None:
        raw.request("GET", f"/{name}")
        assert len(raw.getresponse().read()) == size

    def by_store(store: str) -> None:
        stored = stores[store].get(name, size)
        assert stored and len(stored.data) == size

    def from_file() -> None:
        with open(os.path.join(folder, name), "rb") as file:
            assert len(file.read()) == size

    return {RAW: by_hand, STORE: lambda: by_store(STORE), READ: from_file, FOLDER: lambda: by_store(FOLDER)}


def _measure(report: Report, what: str, contenders: dict[str, Callable[[], object]], size: int) -> None:
    samples = take_turns(contenders, ROUNDS, inner=INNER)
    table = report.table(what, "ms", against=(RAW,))
    for name, times in samples.items():
        table.add(name, scaled(times, 1e3), "ceiling" if name in (RAW, READ) else "")
    differences = sorted(a - b for a, b in zip(samples[STORE], samples[RAW], strict=True))
    added = differences[len(differences) // 2] * 1e3
    report.figure(f"{what}: {STORE} adds to {RAW}", added, "ms", TARGET_MS)
