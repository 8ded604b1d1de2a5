"""A connection to a server: TCP, through a proxy if the environment names one, and TLS."""

from __future__ import annotations

import http.client
import os
import socket
import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from .address import Address
from .credentials import CredentialsError, Secret, authorization, basic_of_url
from .pacing import PacedSocket
from .timing import Timing

if TYPE_CHECKING:
    import ssl


class TrustError(Exception):
    """TLS cannot be used here; the message says why."""


class Connection(http.client.HTTPConnection):
    """A connection that is made by the first request. `authorization` is read then, so a new token is used."""

    def __init__(self, address: Address, token_variable: str, timing: Timing) -> None:
        super().__init__(address.host, address.port)
        self.address, self.timing, self.requests = address, timing, 0
        self._proxy, self._proxy_authorization, variable = _proxy_for(address)
        self.route = f", with the proxy {':'.join(map(str, self._proxy))} of {variable}" if self._proxy else ""
        # A proxy reads what is sent by HTTP, also if it is for this machine.
        is_private = address.is_private() and (address.scheme == "https" or not self._proxy)
        self.authorization = authorization(address, token_variable, is_private)

    def connect(self) -> None:
        host, port = self._proxy or (self.host, self.port)
        # As bytes: for a text Python would import the tables of names in Unicode, which only a proxy can have.
        name: Any = host.encode() if host.isascii() else host
        sock = socket.create_connection((name, port), self.timing.connect)
        try:
            sock.settimeout(self.timing.idle)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.address.scheme == "https":
                if self._proxy:
                    self._open_tunnel(sock)
                sock = trust().wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise
        self.sock = cast(socket.socket, PacedSocket(sock, self.timing))

    def paced(self) -> PacedSocket:
        """Returns the socket. The connection is made if there is none."""
        if self.sock is None:
            self.connect()
        return cast(PacedSocket, self.sock)

    def target(self, path: str) -> str:
        """Returns the target in the request's first line: a proxy is sent the whole URL."""
        return f"{self.address}{path}" if self._proxy and self.address.scheme == "http" else path

    def credentials(self) -> dict[str, Secret]:
        """Returns the headers of a request that nobody may see."""
        headers = {"Authorization": self.authorization} if self.authorization else {}
        if self._proxy_authorization and self.address.scheme == "http":
            headers["Proxy-Authorization"] = self._proxy_authorization
        return headers

    def _open_tunnel(self, sock: socket.socket) -> None:
        target = f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self._proxy_authorization:
            lines.append(f"Proxy-Authorization: {self._proxy_authorization.reveal()}")
        sock.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
        # Byte by byte: what follows the blank line belongs to TLS.
        answer, end = b"", time.monotonic() + self.timing.grace
        while not answer.endswith(b"\r\n\r\n"):
            byte = sock.recv(1)
            if not byte or len(answer) > 16384 or time.monotonic() > end:
                raise ConnectionError("the proxy did not answer CONNECT")
            answer += byte
        status = answer.split(b" ", 2)[1:2]
        if status != [b"200"]:
            code = status[0][:3].decode("ascii", "replace") if status else "nothing"
            raise ConnectionError(f"the proxy refused the connection: it answered {code}")


def _proxy_for(address: Address) -> tuple[tuple[str, int] | None, Secret | None, str]:
    """Returns the host and port of an address's proxy, its credentials, and the variable that names it."""
    from urllib.request import getproxies_environment, proxy_bypass

    proxies = getproxies_environment()
    kind = address.scheme if proxies.get(address.scheme) else "all"
    url, variable = proxies.get(kind), f"{kind}_proxy"
    if not url or proxy_bypass(f"{address.host}:{address.port}"):
        return None, None, variable
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or 80
    except ValueError:
        raise CredentialsError(f"the proxy that {variable} names is not a URL") from None
    if parts.scheme != "http" or not parts.hostname:
        raise CredentialsError(f"the proxy that {variable} names is not of the form http://HOST:PORT")
    return (parts.hostname, port), basic_of_url(parts.username, parts.password), variable


_contexts: dict[tuple[str | None, str | None], ssl.SSLContext] = {}


def trust() -> ssl.SSLContext:
    """Returns which certificates are trusted: the system's, or those of SSL_CERT_FILE and SSL_CERT_DIR.

    Raises:
        TrustError: Python has no TLS, or SSL_CERT_FILE cannot be read.
    """
    names = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    context = _contexts.get(names)
    if context is None:
        try:
            import ssl
        except ImportError as error:
            raise TrustError("this Python has no ssl module") from error
        # OpenSSL would ignore a file that is missing, and trust nobody.
        if names[0] and not os.path.isfile(names[0]):
            raise TrustError(f"SSL_CERT_FILE={names[0]!r} is not a file")
        try:
            context = _contexts[names] = ssl.create_default_context()
        except (ssl.SSLError, OSError) as error:
            raise TrustError(f"the certificates that are trusted cannot be read ({error.strerror or error})") from error
    return context
