"""Runs programs in processes that have imported torch already, which costs a second of processor time each.

They are forked from a server that has done nothing else: see `shared_torch`. A program sees what `python -c` would show
it, but for torch and the modules that torch imports: it is for tests whose subject is not how a process starts.
Variables that OpenMP or torch's import read have no effect.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from support.processes import shared_torch

START = "from support.processes import torch_server; exec(torch_server.next_program({}))"
LOADER = "LD_LIBRARY_PATH"
"""What the dynamic loader has read when a process starts: programs with a value of it have a server that imports torch
itself."""
_servers: dict[tuple[int, str], tuple[subprocess.Popen[bytes] | shared_torch.Server, socket.socket]] = {}
"""This process's servers, by its id, since a fork of this process has none, and by LOADER."""
MOST_SERVERS = 3
"""Each needs 100 MB. The oldest one ends for another."""


class Program(NamedTuple):
    """A program to be run: its text, environment and working folder, and whether a warning is an error."""

    text: str
    env: dict[str, str]
    folder: str
    strict: bool = False
    path: str = ""
    """The file that the text is from, if any."""


def run(program: Program, files: Sequence[Any], timeout: float) -> int | None:
    """Runs a program and returns its exit status, or None if it did not end within `timeout` seconds and was killed.

    `files` are its standard input, output and error: open files.
    """
    connection = _connection(program.env.get(LOADER))
    request = json.dumps(program).encode()
    socket.send_fds(connection, [len(request).to_bytes(8, "little")], [file.fileno() for file in files])
    connection.sendall(request)
    pid = _number(connection)
    connection.settimeout(timeout)
    try:
        return _number(connection)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        connection.settimeout(None)
        _number(connection)
        return None
    finally:
        connection.settimeout(None)


def _connection(libraries: str | None) -> socket.socket:
    """Returns the connection to this process's server with a value of LOADER, which is started if need be."""
    from support import child_processes

    key = os.getpid(), libraries or ""
    if key not in _servers:
        if len(_servers) == MOST_SERVERS:
            _end(next(iter(_servers)))
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            if libraries:
                argv = [child_processes.PYTHON, "-c", START.format(number)]
                env = child_processes.environment(**{"OPENBLAS_NUM_THREADS": "1", LOADER: libraries})
                process = subprocess.Popen(argv, env=env, pass_fds=[number], stdin=subprocess.DEVNULL)
            else:
                process = shared_torch.Server(START, number)
        _servers[key] = process, ours
    return _servers[key][1]


def end() -> None:
    """Ends this process's servers."""
    for key in [key for key in _servers if key[0] == os.getpid()]:
        _end(key)


def _end(key: tuple[int, str]) -> None:
    process, connection = _servers.pop(key)
    connection.close()
    if isinstance(process, shared_torch.Server):
        process.end()
    else:
        process.terminate()
        process.wait()


def _number(connection: socket.socket) -> int:
    received = connection.recv(8, socket.MSG_WAITALL)
    if len(received) < 8:
        raise RuntimeError("the server of processes with torch has ended")
    return int.from_bytes(received, "little", signed=True)


def next_program(number: int) -> Any:
    """Serves requests from a socket until it is closed. Returns, in the process of each one, its code."""
    import torch

    assert torch and len(os.listdir("/proc/self/task")) == 1, "a process with threads should not be forked"
    make_ends_cheap()
    with socket.socket(fileno=number) as connection:
        while True:
            length, files, _flags, _address = socket.recv_fds(connection, 8, 3)
            if not length:
                sys.exit()
            request = b""
            while len(request) < int.from_bytes(length, "little"):
                request += connection.recv(1 << 16)
            pid = os.fork()
            if not pid:
                break
            for file in files:
                os.close(file)
            connection.sendall(pid.to_bytes(8, "little"))
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            connection.sendall(status.to_bytes(8, "little", signed=True))
    return become(Program(*json.loads(request)), files)


def make_ends_cheap() -> None:
    """Saves this process's children two thirds of a second each at their end; a process calls it that has torch.

    What a child has imported and loaded itself ends as it does without this.
    """
    gc.freeze()  # a collection would touch, and so copy, each page of torch's objects
    libc = ctypes.CDLL(None)
    # Handlers run in reverse order: first those of a child, then these two, and torch's never.
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc.fcloseall, None)


def become(program: Program, files: Sequence[int]) -> Any:
    """Makes this process one that has just been started for a program, which is returned compiled."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(program.env)
    os.chdir(program.folder)
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ["", *own, *(path for path in sys.path if path and path not in before)]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    tempfile.tempdir = None
    if program.strict:
        warnings.simplefilter("error")
    if program.path:
        sys.argv = [program.path]
        sys.modules["__main__"].__file__ = program.path
    return compile(program.text, program.path or "<string>", "exec")
