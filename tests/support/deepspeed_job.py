"""Runs a program with DeepSpeed in a process of its own, since DeepSpeed prints and warns when it is imported."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
from typing import Any

from support import child_processes

MISSING = "needs DeepSpeed: pip install --no-build-isolation deepspeed==0.19.8"


def is_installed() -> bool:
    """Returns whether DeepSpeed is installed."""
    try:
        importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def run(
    code: str, store: str | os.PathLike[str], folder: Any, timeout: float = 280, **variables: str | None
) -> dict[str, Any]:
    """Runs the code as the only rank of a job on this machine. Returns the JSON document of its last line."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    machine = {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "HOME": str(folder)}
    env = {**rank, **machine, "OPFORGE_CACHE_DIR": str(store), **variables}
    output = child_processes.run_python(code, timeout=timeout, env=env, cwd=folder)
    document: dict[str, Any] = json.loads(output.splitlines()[-1])
    return document
