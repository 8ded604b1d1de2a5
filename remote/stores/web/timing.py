"""How long a request may take, and how often it is tried."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds, unless a comment says otherwise. Tests shorten them."""

    connect: float = 1.0
    idle: float = 10.0  # without a byte, or to send 64 KiB
    grace: float = 30.0  # an answer may take this long ...
    bytes_per_second: float = 256_000.0  # ... and the time that it takes at this rate
    total: float = 60.0  # all tries of a request, with the pauses; for a blob also its time at that rate
    pauses: tuple[float, ...] = (0.2, 1.0)  # before the second try and the third
    max_retry_after: float = 20.0  # if a server asks for a longer pause, the request fails at once
    void: float = 30.0  # a WebDAV lock that has not changed for so long is void
