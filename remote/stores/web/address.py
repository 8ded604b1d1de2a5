"""Where a request goes: the parts of an HTTP(S) URL."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """A server."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    def is_private(self) -> bool:
        """Returns whether nobody else can read what is sent: by TLS, or because it does not leave the machine."""
        return self.scheme == "https" or self.host == "localhost" or _is_loopback(self.host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, such as 127.0.0.1.example.com


def address_of(scheme: str, host: str, port: int | None) -> Address:
    """Returns the address; the scheme's own port if `port` is None."""
    return Address(scheme, host, _PORTS[scheme] if port is None else port)


def place_of(location: str) -> str:
    """Returns the scheme and the host of a redirect for a message: its path and query could hold a token."""
    try:
        parts = urlsplit(location)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    except ValueError:
        place = ""
    return repr(place) if place.isascii() and place.isprintable() and 3 < len(place) < 100 else "no URL"


def redirected(address: Address, path: str, location: str) -> tuple[Address, str] | None:
    """Returns where a redirect from `path` leads; None if it leads away from the host, or from TLS to no TLS."""
    try:
        parts = urlsplit(urljoin(f"{address}{path}", location))
        if (
            parts.scheme not in _PORTS
            or not parts.hostname
            or not location.isascii()
            or not location.isprintable()
            or " " in location
        ):
            return None
        target = address_of(parts.scheme, parts.hostname, parts.port)
    except ValueError:
        return None
    if target != address and (target.scheme != "https" or target.host != address.host):
        return None
    return target, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
