"""Sends requests on kept connections, follows redirects within the host, and repeats failed requests."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Callable, Mapping
from typing import BinaryIO, NamedTuple, TypeVar

from opforge.errors import StoreError

from .address import Address, place_of, redirected
from .attempts import FAILURES, TRY_LATER, Attempts, status_words
from .connection import Connection
from .pacing import PacedSocket
from .timing import Timing

T = TypeVar("T")
MAX_REDIRECTS = 5
MAX_REFUSAL_BYTES = 64 << 10
"""Bytes of an error page that are read so that its connection can be kept."""
_SEND_BYTES = 256 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HINTS = {
    401: "Add ?token_env=NAME with a variable that holds a token, or a login to ~/.netrc; both need https://",
    403: "Check what the credentials allow",
    405: "The server takes no such requests; publish to another store",
    407: "Put the proxy's credentials into the proxy's URL",
    411: "Publish to a server that takes PUT",
    413: "Raise the server's limit for the size of a request",
    423: "Unlock the file on the server",
    501: "The server takes no such requests; publish to another store",
    507: "Free some space on the server",
}


class Request(NamedTuple):
    """A request for an object. `headers` is called for each try."""

    operation: str
    method: str
    name: str
    headers: Callable[[], Mapping[str, str]] = dict
    body: bytes | BinaryIO = b""


class Answer(NamedTuple):
    """The answer of a server, of which the body is still to be read."""

    response: http.client.HTTPResponse
    paced: PacedSocket

    @property
    def status(self) -> int:
        """The status, such as 200."""
        return self.response.status

    def header(self, name: str) -> str:
        """Returns a header; "" if it is missing."""
        return str(self.response.headers.get(name, ""))


class _Connections(NamedTuple):
    pid: int
    by_address: dict[Address, Connection]


class Client:
    """The requests to one server. Each thread has connections of its own, and so has a forked child."""

    def __init__(self, url: str, address: Address, path: str, token_variable: str, timing: Timing) -> None:
        self.url, self.address, self.timing = url, address, timing
        self._path, self._token_variable = path, token_variable
        self._local = threading.local()

    def path(self, name: str) -> str:
        """Returns the path of an object on the server."""
        return f"{self._path}/{name}"

    def attempts(self, operation: str, size: int = 0) -> Attempts:
        """Returns the tries that a request has. `size` is that of a blob, in bytes."""
        return Attempts(self.url, operation, self.timing, size)

    def exchange(self, request: Request, read: Callable[[Answer], T], attempts: Attempts | None = None) -> T:
        """Returns the result of `read` for the answer. Calls `read` again if it raises an error of a cut connection."""
        attempts = attempts or self.attempts(request.operation)
        address, path = self.address, self.path(request.name)
        redirects = 0
        while True:
            connection = None
            try:
                connection = self._connection(address)
                attempts.route = connection.route
                answer = self._send(connection, request, path, attempts)
                if answer.status in _REDIRECTS and request.method in ("GET", "HEAD"):
                    address, path = self._redirect(request, answer, address, path, redirects)
                    redirects += 1
                    _finish(connection, answer)
                elif answer.status in TRY_LATER:
                    _finish(connection, answer)
                    attempts.postponed(answer.status, answer.response.headers)
                else:
                    result = read(answer)
                    _finish(connection, answer)
                    return result
            except FAILURES as error:
                if connection:
                    connection.close()
                attempts.failed(error)
            except StoreError:
                if connection:
                    connection.close()  # what is left of the answer may be endless
                raise

    def refusal(self, operation: str, status: int) -> StoreError:
        """Returns the error for a status that the operation does not expect."""
        hint = _HINTS.get(status, "Check the URL, and what the server logs")
        return StoreError(self.url, operation, f"the server answered {status_words(status)}", hint)

    def _connection(self, address: Address) -> Connection:
        kept: _Connections | None = getattr(self._local, "connections", None)
        if kept is None or kept.pid != os.getpid():
            # A forked child drops its parent's connections: what both send would be mixed.
            kept = self._local.connections = _Connections(os.getpid(), {})
        connection = kept.by_address.get(address)
        if connection is None or connection.sock is None:
            connection = kept.by_address[address] = Connection(address, self._token_variable, self.timing)
        return connection

    def _send(self, connection: Connection, request: Request, path: str, attempts: Attempts) -> Answer:
        """Sends a request, once more if the server has closed a kept connection meanwhile."""
        try:
            return self._send_once(connection, request, path, attempts.end)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            if not connection.requests:
                raise
        connection.close()
        connection.requests = 0
        attempts.may_have_arrived = True
        return self._send_once(connection, request, path, attempts.end)

    def _send_once(self, connection: Connection, request: Request, path: str, end: float) -> Answer:
        paced = connection.paced()
        paced.begin(end)
        connection.putrequest(request.method, connection.target(path))  # it adds "Accept-Encoding: identity"
        for name, value in request.headers().items():
            connection.putheader(name, value)
        for name, secret in connection.credentials().items():
            connection.putheader(name, secret.reveal())
        if request.method in ("PUT", "PROPFIND"):
            connection.putheader("Content-Length", str(size_of(request.body)))
        try:
            connection.endheaders()
            if isinstance(request.body, bytes):
                if request.body:
                    connection.send(request.body)
            else:
                request.body.seek(0)
                while chunk := request.body.read(_SEND_BYTES):
                    connection.send(chunk)
        except (ConnectionResetError, BrokenPipeError):
            pass  # a server that refuses a request may answer, and close the connection, before it has read the body
        response = connection.getresponse()
        connection.requests += 1
        return Answer(response, paced)

    def _redirect(
        self, request: Request, answer: Answer, address: Address, path: str, count: int
    ) -> tuple[Address, str]:
        target = redirected(address, path, answer.header("Location"))
        if target is None or count >= MAX_REDIRECTS:
            if target is None:
                reason = f"the server redirects to {place_of(answer.header('Location'))}, and not within its host"
            else:
                reason = "there are too many redirects"
            hint = "Check the URL; use the one that it redirects to, if you trust that host"
            raise StoreError(self.url, request.operation, reason, hint)
        return target


def _finish(connection: Connection, answer: Answer) -> None:
    """Leaves the connection as the next request needs it. It is closed if much of the answer is left."""
    response = answer.response
    if not response.isclosed() and (response.length or 0) <= MAX_REFUSAL_BYTES:
        response.read(MAX_REFUSAL_BYTES)
    if not response.isclosed():
        response.close()
        connection.close()


def size_of(body: bytes | BinaryIO) -> int:
    """Returns the bytes of a body. A file is left at its end."""
    return len(body) if isinstance(body, bytes) else body.seek(0, os.SEEK_END)
