"""Loads one op on a node of its own and prints its time: `python -m benchmarks.store.child_remote STEP ...`."""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def builder() -> Any:
    """Returns the builder of the op in the folder BENCH_OP."""
    from opforge import OpBuilder

    class PlainBuilder(OpBuilder):
        """An op of plain functions."""

        name, sources, abi, folder = "plain", ["plain.cpp"], "c", os.environ["BENCH_OP"]

    return PlainBuilder()


def key() -> dict[str, Any]:
    """Makes a key and trusts it."""
    from opforge.remote.signatures import keys, trust_file

    public = keys.create("bench")
    trust_file.write(trust_file.read()._replace(keys=(trust_file.TrustedKey(public, ("op:*",)),)))
    return {}


def push(url: str) -> dict[str, Any]:
    """Builds the op and publishes it."""
    from opforge.remote import publish, remotes
    from opforge.remote.op_statements import OP
    from opforge.remote.signatures import keys
    from opforge.remote.stores import open_store

    entry, remote = builder().build(), remotes.parse(url)
    pushed = publish.push(open_store(url), remote, OP, OP.at(entry.folder, entry.record["description"]), keys.signer())
    return {"size": pushed.size}


def load() -> dict[str, Any]:
    """Loads the op."""
    import torch  # noqa: F401  # before the clock starts

    import opforge

    op = builder()
    before, resident, began = _allocated(), _memory(), time.perf_counter()
    origin = ""
    try:
        origin = op.load().origin
    except opforge.errors.PrebuiltRequiredError:
        pass  # a miss
    seconds = time.perf_counter() - began
    memory = {"memory": _allocated() - before, "resident": _memory() - resident}
    return {"load": seconds, **memory, "origin": origin, "end": time.time()}


def floor(url: str) -> dict[str, Any]:
    """Gets a library as it is by one bare request, hashes it, and opens it: what no loader can do without."""
    import ctypes
    import hashlib
    import http.client
    import tempfile
    from urllib.parse import urlsplit

    import torch  # noqa: F401  # before the clock starts

    parts = urlsplit(url)
    began = time.perf_counter()
    connection = http.client.HTTPConnection(parts.netloc)
    connection.request("GET", parts.path)
    data = connection.getresponse().read()
    hashlib.sha256(data).hexdigest()
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(data)
        file.flush()
        ctypes.CDLL(file.name)
    return {"load": time.perf_counter() - began, "memory": 0, "resident": 0}


def parts() -> dict[str, Any]:
    """Loads the op, and says where the time goes: in imports, in requests, and in the rest."""
    import builtins

    import torch  # noqa: F401  # before the clock starts

    import opforge

    spent, depth, real = {"imports": 0.0, "requests": 0.0}, {"imports": 0, "requests": 0}, builtins.__import__

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            depth[name] += 1
            began = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                depth[name] -= 1
                if not depth[name]:
                    spent[name] += time.perf_counter() - began

        return wrapped

    op = builder()
    builtins.__import__ = timed("imports", real)
    from opforge.remote.stores.web.client import Client

    Client.exchange = timed("requests", Client.exchange)  # type: ignore[method-assign]
    began = time.perf_counter()
    op.load()
    seconds = time.perf_counter() - began
    assert opforge
    return {"load": seconds, **spent}


def miss() -> dict[str, Any]:
    """Asks the remote for an op that it does not have, after another one: without imports and a new connection."""
    from opforge.builders.lookup import remotes
    from opforge.cache.current_store import current_store, writable_store

    source, seconds, reasons = remotes.sources()[0], 0.0, list[str]()
    for _turn in range(2):
        spec = builder().spec()
        request = remotes.request_for(spec, writable_store(current_store()))
        request = request._replace(description=os.urandom(16).hex())
        began = time.perf_counter()
        is_new, rejected = source.fetch(request)
        if is_new:
            raise RuntimeError("the remote has what cannot be there")
        reasons += map(str, rejected)
        seconds = time.perf_counter() - began
    return {"load": seconds, "memory": 0, "resident": 0, "reasons": reasons}


def _allocated() -> int:
    """Returns the most memory that this process has had, in bytes, without the pages of mapped files.

    Those are other processes' too: the code of `cryptography` alone is 6 MB of them.
    """
    with open("/proc/self/status", encoding="ascii") as file:
        pages = next(int(line.split()[1]) for line in file if line.startswith("RssFile:"))
    return _memory() - (pages << 10)


def _memory() -> int:
    """Returns the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    gc.disable()  # `import torch` leaves a full collection, of 75 ms, to whatever allocates next
    step, *arguments = sys.argv[1:]
    steps: dict[str, Callable[..., Any]] = {
        "key": key,
        "push": push,
        "fetch": load,
        "miss": miss,
        "floor": floor,
        "parts": parts,
    }
    print(json.dumps(steps[step](*arguments)))
