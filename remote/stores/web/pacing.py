"""The socket below http.client, with bounds on the time and size of a server's response."""

from __future__ import annotations

import io
import socket
import time
import weakref
from typing import Any

from .timing import Timing

HEADER_BYTES = 256 << 10
QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Linux alone has it."""
_SEND_BYTES = 64 << 10


class EndlessAnswerError(Exception):
    """A server sends more than the request allows."""


class PacedSocket:
    """The methods of a socket that http.client uses: sendall, makefile and close.

    As with a socket, what `makefile` returned can still be read after `close`.
    """

    def __init__(self, sock: socket.socket, timing: Timing) -> None:
        self._sock, self._timing = sock, timing
        self._readers, self._is_closing = 0, False
        # In a thread that ended, or in a forked child, nobody else closes the socket. Not by __del__: if this is a part
        # of a cycle, the socket may go first, with a warning.
        weakref.finalize(self, sock.close).atexit = False
        self.begin()

    def begin(self, end: float = float("inf")) -> None:
        """Starts the time and the bytes of an answer: its headers may have HEADER_BYTES.

        `end` is the monotonic time at which all tries of the request end.
        """
        self._end = end
        self._deadline = time.monotonic() + self._timing.grace
        self._received, self._allowed = 0, HEADER_BYTES

    def allow(self, size: int) -> None:
        """Lets the answer have a body of `size` bytes. If it is sent in chunks, their lengths count too.

        Not many times the size: in chunks of one byte each, a large answer would keep the processor busy for minutes.
        """
        self._allowed = self._received + HEADER_BYTES + 2 * size

    def sendall(self, data: Any) -> None:
        """Sends bytes; each 64 KiB may take the time-out for a byte, and no request more than all of its time."""
        # Python applies the time-out to a whole call of sendall, not to each packet.
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _SEND_BYTES):
            self._sock.settimeout(max(0.001, min(self._end - time.monotonic(), self._timing.idle)))
            self._sock.sendall(view[start : start + _SEND_BYTES])
        self._deadline = time.monotonic() + self._timing.grace
        if QUICK_ACK is not None:
            # A server that sends an answer in two parts waits for the first one's acknowledgement before it sends the
            # second. On a kept connection that is delayed by 40 ms, unless the system is asked each time not to.
            self._sock.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)

    def recv_into(self, buffer: Any) -> int:
        """Reads the bytes that have arrived; waits at most the time-out for a byte."""
        now = time.monotonic()
        left = min(self._deadline + self._received / self._timing.bytes_per_second, self._end) - now
        self._sock.settimeout(max(0.001, min(left, self._timing.idle)))
        try:
            count = self._sock.recv_into(buffer)
        except TimeoutError:
            if left > self._timing.idle:
                raise
            raise TimeoutError(f"it sent only {self._received} bytes in the time that is allowed") from None
        self._received += count
        if self._received > self._allowed:
            raise EndlessAnswerError
        return count

    def makefile(self, *_arguments: Any) -> io.BufferedReader:
        """Returns a file that reads from the socket."""
        self._readers += 1
        return io.BufferedReader(_Reader(self), 64 << 10)

    def release(self) -> None:
        """Ends one file of `makefile`."""
        self._readers -= 1
        if self._is_closing and self._readers <= 0:
            self._sock.close()

    def close(self) -> None:
        """Closes the socket once no file of `makefile` is read any more."""
        self._is_closing = True
        if self._readers <= 0:
            self._sock.close()


class _Reader(io.RawIOBase):
    def __init__(self, sock: PacedSocket) -> None:
        self._sock: PacedSocket | None = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.recv_into(buffer) if self._sock else 0

    def close(self) -> None:
        if not self.closed:
            super().close()
            sock, self._sock = self._sock, None
            if sock:
                sock.release()
