"""Runs a program with DeepSpeed in a process of its own, since DeepSpeed prints and warns when it is imported."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
from typing import Any

from support import child_processes
from support.processes import forked_python

MISSING = "needs DeepSpeed: pip install --no-build-isolation deepspeed==0.19.8"


def is_installed() -> bool:
    """Returns whether DeepSpeed is installed."""
    try:
        importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def run(
    code: str,
    store: str | os.PathLike[str],
    folder: Any,
    timeout: float = 280,
    has_torch: bool = True,
    **variables: str | None,
) -> dict[str, Any]:
    """Runs the code as the only rank of a job on this machine. Returns the JSON document of its last line.

    Its process has imported torch already, unless `has_torch` is false.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    machine = {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "HOME": str(folder)}
    env = {**rank, **machine, "OPFORGE_CACHE_DIR": str(store), **variables}
    run_code = child_processes.run_with_torch if has_torch else child_processes.run_python
    output = run_code(code, timeout=timeout, env=env, cwd=folder)
    document: dict[str, Any] = json.loads(output.splitlines()[-1])
    return document


FORK = """
import os, sys
{before}
children = []
for rank in "01":
    child = os.fork()
    if not child:
        os.environ.update(RANK=rank, LOCAL_RANK=rank)
        with open("printed-" + rank, "w") as printed:
            os.dup2(printed.fileno(), 1)
        break
    children.append(child)
else:
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
{code}
"""


def fork_two_ranks(before: str, code: str, folder: Any, timeout: float = 200) -> list[dict[str, Any]]:
    """Runs the code as the two ranks of a job, which are forked from a process that has run `before`.

    Returns the JSON documents of their last lines.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "DS_ACCELERATOR": "cpu"}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "HOME": str(folder)}
    child_processes.run_with_torch(FORK.format(before=before, code=code), env, timeout, folder)
    printed = [os.path.join(folder, f"printed-{rank}") for rank in "01"]
    documents = []
    for path in printed:
        with open(path) as file:
            documents.append(json.loads(file.readlines()[-1]))
    return documents


def run_two_ranks(code: str, folder: Any, timeout: float = 200, **variables: str) -> list[dict[str, Any]]:
    """Runs the code as the two ranks of a job on this machine. Returns the JSON documents of their last lines."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "DS_ACCELERATOR": "cpu"}
    job |= {"GLOO_SOCKET_IFNAME": "lo", "HOME": str(folder), "OMP_NUM_THREADS": "1", **variables}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    python = forked_python.python()
    processes = [child_processes.start_python(code, python, env={**os.environ, **job, **rank}) for rank in ranks]
    documents = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=timeout)
            assert process.returncode == 0, out + err
            documents.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return documents
