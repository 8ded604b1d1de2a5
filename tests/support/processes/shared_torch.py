"""A process that has imported torch, from which the servers of all workers of a session are forked.

An import takes two seconds of a processor, and five with torch's compiler. The first worker that needs the process
starts it; it ends when no server is left.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from typing import Any

START = "from support.processes import shared_torch; exec(shared_torch.next_server({}, {}))"
session: str | None = None
"""The session's folder, where its workers find the process that one of them has started; None is a process's own."""
LONGEST_TEST = 600
"""The seconds in which the last tests of other workers have ended."""
_started: list[subprocess.Popen[bytes]] = []
_servers: list[Server] = []


# -- in the process of the tests ---------------------------------------------------------------------------------------


class Server:
    """A process that has imported torch. It is killed when this process ends, or before by `end`."""

    def __init__(self, text: str, number: int, compiling: bool = False) -> None:
        """Forks it. It runs `text`, in which {} is the number of the open file that is `number` in this process.

        Args:
            text: Python code.
            number: A file that it inherits.
            compiling: Whether it is to have imported torch's compiler too.
        """
        with open(os.path.join(session or tempfile.mkdtemp(), f"torch-{compiling:d}"), "a+") as known:
            fcntl.flock(known, fcntl.LOCK_EX)
            known.seek(0)
            if not self._ask(known.read(), text, number):
                address = _start(compiling)
                known.truncate(0)
                known.write(address)
                if not self._ask(address, text, number):
                    raise RuntimeError("the process that has imported torch has ended")
        _servers.append(self)

    def _ask(self, address: str, text: str, number: int) -> bool:
        self._connection = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            self._connection.connect(address)
            socket.send_fds(self._connection, [text.encode()], [number])
            self.pid = int.from_bytes(self._connection.recv(8, socket.MSG_WAITALL), "little")
            return bool(self.pid)
        self._connection.close()
        return False

    def end(self) -> None:
        """Ends it, although a fork of this process may have the connection too."""
        with suppress(OSError):  # the process that forked it has ended
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        _servers.remove(self)


def _start(compiling: bool) -> str:
    """Starts the process. Returns the address at which it listens."""
    from support.paths import TESTS

    address = os.path.join(tempfile.mkdtemp(prefix="torch-"), "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(16)
        number = listening.fileno()
        # OpenBLAS starts no threads: a process that has some should not be forked. Without the source tree: whether
        # opforge is found is a program's own.
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": TESTS}
        argv = [sys.executable, "-c", START.format(number, compiling)]
        _started.append(subprocess.Popen(argv, env=env, pass_fds=[number], stdin=subprocess.DEVNULL))
    return address


def processes() -> tuple[list[int], list[int]]:
    """Returns the servers of this process, and what it has started of which others may have servers."""
    return [server.pid for server in _servers], [process.pid for process in _started]


def wait() -> None:
    """Waits until what this process has started has ended, which it does after the last server of all workers.

    A process that a test has left behind may hold one of them: then it is ended.
    """
    for process in _started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_TEST)
        process.kill()


# -- in the process that has imported torch ----------------------------------------------------------------------------


def next_server(number: int, compiling: bool) -> Any:
    """Forks servers until there is none left. Returns, in the process of each one, its code."""
    import torch

    if compiling:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own imports
            import torch._inductor.compile_fx
    assert torch and len(os.listdir("/proc/self/task")) == 1, "a process with threads should not be forked"
    servers: dict[socket.socket, int] = {}
    with socket.socket(fileno=number) as listening:
        address = listening.getsockname()
        while True:
            for ready in select.select([listening, *servers], [], [])[0]:
                if ready is not listening:  # it was closed
                    os.kill(servers.pop(ready), signal.SIGTERM)
                    ready.close()
                    continue
                connection, _ = listening.accept()
                text, files, _flags, _address = socket.recv_fds(connection, 1 << 12, 1)
                if not files:
                    connection.close()
                    continue
                pid = os.fork()
                if not pid:
                    for other in (connection, *servers):
                        other.close()
                    return compile(text.decode().format(files[0]), "<string>", "exec")
                os.close(files[0])
                connection.sendall(pid.to_bytes(8, "little"))
                servers[connection] = pid
            if not servers:
                break
    os.unlink(address)
    os.rmdir(os.path.dirname(address))
    with suppress(ChildProcessError):  # not before: a worker adds up what its own servers have taken
        while os.wait():
            pass
    os._exit(0)  # torch takes two thirds of a second to end
