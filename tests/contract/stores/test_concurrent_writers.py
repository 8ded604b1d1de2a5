"""Several processes publish to one name at once: nothing is lost, and nobody waits for a process that was killed."""

from __future__ import annotations

import time

from support import child_processes

PROCESSES, APPENDS = 4, 10
APPEND = """
import os, sys
from opforge.remote.stores import open_store
store = open_store(os.environ["STORE"])
who, name = os.environ["WHO"], os.environ["NAME"]
for number in range(int(os.environ["APPENDS"])):
    line = f"{who}.{number}\\n".encode()
    while True:
        stored = store.get(name, 1 << 20)
        if stored is None:
            done = store.put_if_absent(name, line)
        else:
            done = store.put_if_unchanged(name, stored.data + line, stored.version)
        if done:
            break
"""


def start(url, name, who):
    env = {"STORE": url, "NAME": name, "WHO": str(who), "APPENDS": str(APPENDS)}
    return child_processes.start_python(APPEND, env=env)


def test_processes_append_to_one_object(writable):
    name = "v1/topics/op/shared.json"
    began = time.monotonic()
    processes = [start(writable.url, name, who) for who in range(PROCESSES)]
    for process in processes:
        output = process.communicate(timeout=120)
        assert process.returncode == 0, output
    lines = writable.store.get(name, 1 << 20).data.decode().split()
    print(f"{writable.kind}: {len(lines)} appends in {time.monotonic() - began:.1f} s")
    assert sorted(lines) == sorted(f"{who}.{number}" for who in range(PROCESSES) for number in range(APPENDS))
