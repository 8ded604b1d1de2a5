"""Which failures of a request are tried again, after which pause."""

from __future__ import annotations

import http
import http.client
import socket
import time
from email.message import Message
from email.utils import parsedate_to_datetime

from opforge.errors import StoreError
from opforge.remote.stores.pauses import pause

from .connection import TrustError
from .credentials import CredentialsError
from .pacing import EndlessAnswerError
from .timing import Timing

FAILURES = (OSError, ValueError, http.client.HTTPException, TrustError, CredentialsError, EndlessAnswerError)
"""Exceptions of connecting, sending and reading. http.client raises ValueError if a chunk has a negative length."""
TRY_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_NETWORK = "Check the URL and the network"


class Attempts:
    """The tries of one request. Each failure either sleeps, so that the request is sent again, or raises StoreError."""

    def __init__(self, url: str, operation: str, timing: Timing, size: int = 0) -> None:
        """Begins the time that all tries may take. `size` is that of a blob, in bytes."""
        self.url, self.operation, self.timing = url, operation, timing
        self.seconds = timing.total + size / timing.bytes_per_second
        self.end = time.monotonic() + self.seconds
        self._pauses = list(timing.pauses)
        self.failures = 0
        self.route = ""  # the proxy, which may be what is wrong
        self.may_have_arrived = False  # an earlier try, of which only the answer was lost

    def restart(self) -> None:
        """Allows all tries again: some of the answer has arrived. The time that they may take is not begun again."""
        self._pauses = list(self.timing.pauses)

    def failed(self, error: BaseException) -> None:
        """Sleeps before the next try. Raises StoreError if there is none, or if it would not help."""
        self.may_have_arrived = True
        reason, hint, is_final = _explain(error)
        self._next(reason, hint, 0.0, is_final)

    def postponed(self, status: int, headers: Message) -> None:
        """Sleeps as long as a server that is overloaded asks for. Raises StoreError if that is too long."""
        self.may_have_arrived = True
        seconds = _retry_after(headers)
        is_too_long = seconds > self.timing.max_retry_after
        reason = f"the server answered {status_words(status)}"
        if seconds:
            reason += f" and asks to come back in {seconds:.0f} s"
        self._next(reason, "Try again later", seconds, is_too_long)

    def _next(self, reason: str, hint: str, seconds: float, is_final: bool) -> None:
        self.failures += 1
        seconds = max(seconds, self._pauses.pop(0)) if self._pauses else float("inf")
        is_late = time.monotonic() + 1.5 * seconds > self.end
        if is_final or is_late:
            times = f" (tried {self.failures} times)" if self.failures > 1 else ""
            if time.monotonic() > self.end - 0.1:
                times += f"; all of it may take {self.seconds:.0f} s"
            raise StoreError(self.url, self.operation, reason + times + self.route, hint) from None
        pause(seconds, 1.5 * seconds)


def status_words(status: int) -> str:
    """Returns a status with its standard name. What the server calls it is not printed: it could repeat a token."""
    try:
        return f"{status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after(headers: Message) -> float:
    """Returns the seconds of Retry-After; 0 if it is missing or malformed."""
    value = (headers.get("Retry-After") or "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        # The server's own clock: this machine's may be wrong.
        now = parsedate_to_datetime(headers["Date"]).timestamp() if headers.get("Date") else time.time()
        return max(0.0, parsedate_to_datetime(value).timestamp() - now) if value else 0.0
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _explain(error: BaseException) -> tuple[str, str, bool]:
    """Returns the reason, a hint, and whether another try would fail too."""
    if isinstance(error, CredentialsError):
        return str(error), "Set the variable, or fix the file; credentials are sent by https:// only", True
    if isinstance(error, TrustError):
        return str(error), "Set SSL_CERT_FILE to a file of certificates", True
    if isinstance(error, EndlessAnswerError):
        return "the server sends more than was expected", "Check the URL: it may name another service", True
    if (verification := getattr(error, "verify_message", None)) is not None:
        hint = "Install ca-certificates, or set SSL_CERT_FILE to a file with the certificate of the server's authority"
        return f"the server's certificate is not trusted ({verification})", hint, True
    if isinstance(error, socket.gaierror):
        return "the host's name cannot be resolved", _NETWORK, error.errno == socket.EAI_NONAME
    if isinstance(error, TimeoutError):
        text = str(error)
        return f"the server did not answer in time{f': {text}' if 'sent only' in text else ''}", _NETWORK, False
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was cut in the middle of an answer", _NETWORK, False
    if isinstance(error, http.client.RemoteDisconnected):
        return "the server closed the connection without an answer", _NETWORK, False
    if isinstance(error, (http.client.HTTPException, ValueError)):
        return f"the answer is not HTTP ({type(error).__name__})", "Check the URL: it may name another service", False
    strerror = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"the connection failed ({strerror})", _NETWORK, False
