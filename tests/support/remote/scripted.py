"""A server of this machine that answers with whatever bytes a test wants, also what no real server sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Answer = Callable[["Request", int], "bytes | Iterable[bytes] | None"]


class Request:
    """A request as it arrived: its first line, its headers (names in lower case) and its body."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _version = first.split(" ", 2)
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.body = body


class Script:
    """What a server answers: `answer(request, number)` returns bytes, or parts of them; None closes the connection.

    An answer that does not end with a complete body is followed by the end of the connection, unless `keep` is True.
    """

    def __init__(self, answer: Answer, keep: bool = True) -> None:
        self.answer, self.keep = answer, keep
        self.requests: list[Request] = []
        self.connections = 0
        self.url = ""


def response(status: str = "200 OK", body: bytes = b"", **headers: Any) -> bytes:
    """Returns a whole answer. Names of headers are written with "_" for "-"."""
    fields = {"Content-Length": len(body), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + body


@contextmanager
def serve(
    answer: Answer, keep: bool = True, wrap: Callable[[socket.socket], socket.socket] | None = None
) -> Iterator[Script]:
    """Serves until the block ends. `wrap` makes a TLS socket of a connection."""
    script = Script(answer, keep)
    listener = socket.create_server(("127.0.0.1", 0))
    script.url = f"http{'s' if wrap else ''}://127.0.0.1:{listener.getsockname()[1]}"
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                sock, _address = listener.accept()
            except OSError:
                return
            script.connections += 1
            sockets.append(sock)
            thread = threading.Thread(target=_serve_connection, args=(sock, script, wrap), daemon=True)
            threads.append(thread)
            thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield script
    finally:
        # Closing a listener does not end an accept() that waits.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(10)
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)
        for sock in sockets:
            sock.close()


def _serve_connection(
    sock: socket.socket, script: Script, wrap: Callable[[socket.socket], socket.socket] | None
) -> None:
    with suppress(OSError):
        if wrap:
            sock = wrap(sock)
        with sock, sock.makefile("rb") as reader:
            while request := _read_request(reader):
                script.requests.append(request)
                answer = script.answer(request, len(script.requests))
                if answer is None:
                    return
                for part in [answer] if isinstance(answer, bytes) else answer:
                    sock.sendall(part)
                if not script.keep:
                    return


def _read_request(reader: Any) -> Request | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline()
        if not line:
            return None
        head += line
    request = Request(head[:-4], b"")
    request.body = reader.read(int(request.headers.get("content-length", 0)))
    return request
