"""Processes as machines that share a remote: each has a cache folder of its own, and publishes what it builds."""

from __future__ import annotations

import json

from support import child_processes

LOAD = """
import os, sys, time
from support import sample_ops
builder = sample_ops.builder_class(os.environ["OP"], "plain", abi="c")()
op = builder.load()
print(op.origin, flush=True)
"""


def node(nodes, name, op, code=LOAD, **env):
    """Starts a process on a node that loads the op, and publishes what it builds."""
    variables = {
        "OPFORGE_CACHE_DIR": str(nodes.folder / name),
        "XDG_CACHE_HOME": str(nodes.folder / f"{name}-caches"),
        "OPFORGE_REMOTES": f"{nodes.url}?push=1",
        "OPFORGE_LOG": str(nodes.folder / "log"),
        "OP": str(op),
    }
    return child_processes.start_python(code, env={**variables, **env})


def events(nodes, kind):
    """Returns the events of one kind that all machines have logged."""
    try:
        lines = (nodes.folder / "log").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [event for event in map(json.loads, lines) if event["event"] == kind]
