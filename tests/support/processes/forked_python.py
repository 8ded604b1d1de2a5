"""What a shell of a test has as `python`, `opforge` and `build-ops`: processes that have imported torch already.

Each is forked by a server, as those of `torch_server`. What is typed into such a shell is to show what commands do; how
the installed commands start is tried by others. Python with an option besides -c and -m starts as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # each command begins with this file, and needs nothing else
    from support.processes import shared_torch

COMMANDS = {"opforge": "main", "build-ops": "build_ops"}
"""Command -> the function of opforge.cli that runs it."""
START = "from support.processes import forked_python; exec(forked_python.next_program({}))"
SCRIPT = "#!/bin/sh\nexec '{python}' -SE '{client}' '{address}' {name} \"$@\"\n"
_server: dict[tuple[int, bool], tuple[shared_torch.Server, str]] = {}
"""This process's servers and the folders with their commands, by the process's id and by whether they have imported
torch's compiler."""


# -- in the process of the tests ---------------------------------------------------------------------------------------


def commands(compiling: bool = False) -> str:
    """Returns a folder with the commands, to be put before the others of PATH. Their server ends by `end`.

    Args:
        compiling: Whether they have imported torch's compiler too, which takes three seconds of a processor. Variables
            that its import reads have the values of this process.
    """
    import tempfile

    from support.processes import shared_torch

    key = os.getpid(), compiling
    if key not in _server:
        folder = tempfile.mkdtemp(prefix="torch-")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address := os.path.join(folder, "socket"))
            listening.listen(16)
            server = shared_torch.Server(START, listening.fileno(), compiling)
        for name in ("python", *COMMANDS):
            path = os.path.join(folder, name)
            with open(path, "w") as file:
                file.write(SCRIPT.format(python=sys.executable, client=__file__, address=address, name=name))
            os.chmod(path, stat.S_IRWXU)
        _server[key] = server, folder
    return _server[key][1]


def python() -> str:
    """Returns the path of the command `python`, for a test that would start `sys.executable`."""
    return os.path.join(commands(), "python")


def end() -> None:
    """Ends this process's servers, and removes their commands."""
    for key in [key for key in _server if key[0] == os.getpid()]:
        server, folder = _server.pop(key)
        server.end()
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


# -- in the server -----------------------------------------------------------------------------------------------------


def next_program(number: int) -> Any:
    """Serves commands. Returns, in the process of each one, its code."""
    from support.processes import torch_server

    torch_server.make_ends_cheap()
    with socket.socket(fileno=number) as listening:
        python = os.path.join(os.path.dirname(listening.getsockname()), "python")
        while True:
            connection, _ = listening.accept()
            with contextlib.suppress(ChildProcessError):  # none is left; what each took is counted as the server's
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not os.fork():
                break
            connection.close()
    length, files, _flags, _address = socket.recv_fds(connection, 8, 3)
    request = b""
    while len(request) < int.from_bytes(length, "little"):
        request += connection.recv(1 << 16)
    pid = os.fork()
    if not pid:
        connection.close()
        words, env, folder = json.loads(request)
        if words[:2] == ["opforge", "pack"]:  # it tries the package in processes that import torch
            sys.executable = python
        return _become(words, env, folder, files)
    for file in files:
        os.close(file)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(status.to_bytes(8, "little", signed=True))
    os._exit(0)


def _become(words: list[str], env: dict[str, str], folder: str, files: list[int]) -> Any:
    from support.processes import torch_server

    name, *arguments = words
    path = ""
    if name in COMMANDS:
        text, sys.argv[:] = f"from opforge.cli import {COMMANDS[name]} as command; command()", words
    elif arguments[0] == "-c":
        text, sys.argv[:] = arguments[1], ["-c", *arguments[2:]]
    elif arguments[0] == "-m":
        text = f"import runpy; runpy.run_module({arguments[1]!r}, run_name='__main__', alter_sys=True)"
        sys.argv[:] = arguments[1:]
    else:
        path, text, sys.argv[:] = arguments[0], "", arguments
    argv = [*sys.argv]
    code = torch_server.become(torch_server.Program(text, env, folder), files)
    sys.argv[:] = argv
    if not path:
        return code
    with open(path, encoding="utf-8") as file:
        text = file.read()
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    sys.modules["__main__"].__file__ = path
    return compile(text, path, "exec")


# -- a command ---------------------------------------------------------------------------------------------------------


def main() -> None:
    """Has a command run by the server, with this process's files, and ends as it does."""
    address, *words = sys.argv[1:]
    if words[0] == "python" and (not words[1:] or (words[1][0] == "-" and words[1] not in ("-c", "-m"))):
        os.execv(sys.executable, [sys.executable, *words[1:]])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        request = json.dumps([words, dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(connection, [len(request).to_bytes(8, "little")], [0, 1, 2])
        connection.sendall(request)
        answer = connection.recv(8, socket.MSG_WAITALL)
    if len(answer) < 8:
        sys.exit(f"{' '.join(words)}: the process that runs it was killed")  # and this is no status of the command's
    status = int.from_bytes(answer, "little", signed=True)
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
