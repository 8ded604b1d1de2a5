"""The store of an HTTP(S) server. Any server can be read; one that honours preconditions can be published to."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Container, Iterator
from typing import BinaryIO

from opforge.errors import StoreError
from opforge.remote.stores.protocol import ListedObject, ObjectStore, StoredObject, check_name, check_prefix
from opforge.remote.stores.urls import OPENING, split

from .address import address_of
from .client import Answer, Client, Request, size_of
from .timing import Timing

READ_BYTES = 64 << 10
RESUME_BYTES = 64 << 10
"""A cut download that got so many bytes further may be cut as often again."""
WEAK_SECONDS = 5.0
"""How long a server may have only a weak ETag for an object that is new."""
PAGES = (b"<!doctype html", b"<html")
PAGE_BYTES = 100
"""How a web page begins, and within how many bytes."""
_CONTENT_RANGE = r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})"
_ETAG = re.compile(r'(W/)?"[\x21\x23-\x7e]{0,1000}"')
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


def open_url(url: str) -> WebStore:
    """Returns the store of http://HOST/PATH or https://HOST/PATH. Raises StoreError."""
    parts = split(url, ("token_env",))
    if not parts.host or not re.fullmatch(r"[A-Za-z0-9._:-]+", parts.host):
        raise StoreError(parts.text, OPENING, f"{parts.host!r} is not the name of a host", "Expected http://HOST/PATH")
    if not re.fullmatch(r"[A-Za-z0-9._~/@+=-]*", parts.path) or "/.." in parts.path:
        hint = "Use letters, digits and '._~/@+=-'"
        raise StoreError(parts.text, OPENING, f"the path {parts.path!r} has other characters", hint)
    variable = parts.options.get("token_env", "")
    if "token_env" in parts.options and not re.fullmatch(_VARIABLE, variable):
        # It may be the token itself, so it is not printed.
        raise StoreError(parts.text, OPENING, "token_env is not the name of a variable", "Write ?token_env=NAME")
    return WebStore(parts.text, variable)


class WebStore(ObjectStore):
    """Objects as files of an HTTP(S) server. Use it from any thread, and after a fork."""

    def __init__(self, url: str, token_variable: str = "", timing: Timing | None = None) -> None:
        parts = split(url, ())
        self.url = parts.text
        address = address_of(parts.scheme, parts.host, parts.port)
        self._client = Client(self.url, address, parts.path.rstrip("/"), token_variable, timing or Timing())
        self._is_dav: bool | None = None

    def __repr__(self) -> str:
        return f"WebStore({self.url!r})"

    def get(self, name: str, limit: int) -> StoredObject | None:
        operation = f"get {check_name(self.url, name)}"

        def read(answer: Answer) -> StoredObject | None:
            if answer.status in (404, 410):
                return None
            self._check_body(operation, answer)
            data = self._body(operation, answer, limit)
            if data[:PAGE_BYTES].lstrip().lower().startswith(PAGES):
                raise self._page_error(operation)
            return StoredObject(data, _etag_of(answer))

        return self._client.exchange(Request(operation, "GET", name), read)

    def exists(self, name: str) -> bool:
        return self._etag(name) is not None

    def download(self, name: str, file: BinaryIO, size: int) -> None:
        operation = f"download {check_name(self.url, name)}"
        start, done, furthest, etag = file.tell(), 0, 0, ""
        attempts = self._client.attempts(operation, size)

        def headers() -> dict[str, str]:
            return {"Range": f"bytes={done}-", "If-Range": etag} if done else {}

        def read(answer: Answer) -> None:
            nonlocal done, furthest, etag
            is_rest = answer.status == 206 and bool(done)
            if is_rest:
                match = re.fullmatch(_CONTENT_RANGE, answer.header("Content-Range"))
                if not match or (int(match[1]), int(match[2])) != (done, size):
                    raise self._error(operation, "the server sent another range than the rest", "Try again")
                self._check_encoding(operation, answer)
            else:
                self._check_body(operation, answer)
                done = 0
                file.seek(start)
                file.truncate()
                etag = _etag_of(answer)
            length = answer.response.length
            if length is not None and length != size - done:
                if answer.header("Content-Type").lower().startswith("text/html"):
                    raise self._page_error(operation)
                raise self._size_error(operation, done + length, size)
            answer.paced.allow(size - done)
            try:
                while chunk := answer.response.read(READ_BYTES):
                    done += len(chunk)
                    if done > size:
                        raise self._size_error(operation, f"more than {size}", size)
                    try:
                        file.write(chunk)
                    except (OSError, ValueError) as error:
                        reason = f"the received data cannot be written ({getattr(error, 'strerror', None) or error})"
                        raise self._error(operation, reason, "Free some space") from error
                    if done - furthest >= RESUME_BYTES:
                        furthest = done  # so the tries end, even if each begins again
                        attempts.restart()
                if done < size and answer.response.length is None and not answer.response.chunked:
                    raise self._size_error(operation, done, size)  # it closes connections where an object ends
                if done < size:
                    raise http.client.IncompleteRead(b"", size - done)
            finally:
                if done and (not etag or etag.startswith("W/")):
                    done = 0  # nothing says whether the rest is of the same object

        self._client.exchange(Request(operation, "GET", name, headers), read, attempts)

    def put_if_absent(self, name: str, data: bytes | BinaryIO) -> bool:
        check_name(self.url, name)
        self._prove()
        if not isinstance(data, bytes):
            # Two publishers of a blob at once write the same bytes, as its name is its digest.
            return self._etag(name) is None and self._create(name, data)
        if not self._is_dav:
            return self._create(name, data)
        from . import dav

        while True:
            with dav.hold(self._client, name) as lock:
                is_new = self._etag(name) is None
                if not is_new or lock.is_held():
                    return is_new and self._create(name, data)

    def put_if_unchanged(self, name: str, data: bytes, version: str) -> bool:
        operation = f"put {check_name(self.url, name)}"
        self._prove()
        if not version:
            hint = "Make the server send ETags, or publish elsewhere"
            raise self._error(operation, "the server sends no ETags, so a change cannot be detected", hint)
        if not self._is_dav:
            strong = self._strong(operation, name, version)
            return strong is not None and self._replace(name, data, strong)
        from . import dav

        while True:
            with dav.hold(self._client, name) as lock:
                etag = self._etag(name)
                if etag is None or _opaque(etag) != _opaque(version):
                    return False
                if lock.is_held():
                    # A weak ETag never matches: under the lock it need not.
                    return self._replace(name, data, "" if etag.startswith("W/") else etag)

    def list(self, prefix: str, but: Container[str] = ()) -> Iterator[ListedObject]:
        check_prefix(self.url, prefix)
        hint = "Use the server's folder (file://) or an S3 store for what needs a listing"
        raise self._error(f"list {prefix}", "an HTTP server cannot list its objects", hint)

    def modified(self, name: str) -> float | None:
        from email.utils import parsedate_to_datetime  # publishing alone needs it

        operation = f"ask when {check_name(self.url, name)} was written"

        def read(answer: Answer) -> float | None:
            stated = answer.header("Last-Modified") if answer.status == 200 else ""
            try:
                return parsedate_to_datetime(stated).timestamp() if stated else None
            except ValueError:
                return None

        return self._client.exchange(Request(operation, "HEAD", name), read)

    def delete(self, name: str) -> None:
        operation = f"delete {check_name(self.url, name)}"

        def read(answer: Answer) -> None:
            if answer.status not in (200, 202, 204, 404, 410):
                raise self._client.refusal(operation, answer.status)

        self._client.exchange(Request(operation, "DELETE", name), read)

    # Publishing.

    def _prove(self) -> None:
        if self._is_dav is None:
            from opforge.remote.stores import preconditions  # reading needs none of what publishing does

            preconditions.prove(self.url, self._create, self._replace)
            request = Request("ask what the server can do", "OPTIONS", preconditions.PROBE)
            self._is_dav = bool(self._client.exchange(request, lambda answer: answer.header("DAV")))

    def _create(self, name: str, data: bytes | BinaryIO) -> bool:
        return self._put(name, data, "If-None-Match", "*")

    def _replace(self, name: str, data: bytes, etag: str) -> bool:
        return self._put(name, data, "If-Match", etag)

    def _put(self, name: str, data: bytes | BinaryIO, header: str, value: str) -> bool:
        """Stores an object under a precondition; without one if `value` is empty. Returns whether it was met."""
        operation = f"put {check_name(self.url, name)}"
        attempts = self._client.attempts(operation, size_of(data))
        headers = {header: value} if value else {}
        request = Request(operation, "PUT", name, lambda: headers, data)
        status = self._client.exchange(request, lambda answer: answer.status, attempts)
        if status in (404, 409) and header == "If-None-Match":
            from . import dav

            dav.make_collections(self._client, name)
            status = self._client.exchange(request, lambda answer: answer.status, attempts)
        if status == 412 and attempts.may_have_arrived and isinstance(data, bytes):
            # An earlier try may have stored it, if only its answer was lost.
            stored = self.get(name, len(data))
            return stored is not None and stored.data == data
        if status in (200, 201, 204):
            return True
        if status == 412 or (status == 404 and header == "If-Match"):
            return False
        raise self._client.refusal(operation, status)

    def _etag(self, name: str) -> str | None:
        """Returns an object's ETag, "" if the server sends none; None if there is no such object."""
        operation = f"look at {check_name(self.url, name)}"

        def read(answer: Answer) -> str | None:
            if answer.status in (404, 410):
                return None
            if answer.status != 200:
                raise self._client.refusal(operation, answer.status)
            return _etag_of(answer)

        return self._client.exchange(Request(operation, "HEAD", name), read)

    def _strong(self, operation: str, name: str, version: str) -> str | None:
        """Returns the strong ETag of a version, for which a server may need seconds; None if the object has changed."""
        end = time.monotonic() + WEAK_SECONDS
        etag: str | None = version
        while etag is not None and etag.startswith("W/"):
            if time.monotonic() > end:
                hint = "Make the server send strong ETags: without compression, for example"
                raise self._error(operation, "the server sends weak ETags only", hint)
            time.sleep(0.3)
            etag = self._etag(name)
            if etag is not None and _opaque(etag) != _opaque(version):
                return None
        return etag

    # Reading.

    def _check_body(self, operation: str, answer: Answer) -> None:
        if answer.status != 200:
            raise self._client.refusal(operation, answer.status)
        self._check_encoding(operation, answer)

    def _check_encoding(self, operation: str, answer: Answer) -> None:
        encoding = answer.header("Content-Encoding")
        if encoding.lower() not in ("", "identity"):
            hint = "Turn compression off for these files"
            raise self._error(
                operation,
                f"the server compressed the response, against the request ({encoding[:20]!r})",
                hint,
            )

    def _body(self, operation: str, answer: Answer, limit: int) -> bytes:
        length = answer.response.length
        if length is not None and length > limit:
            raise self._size_error(operation, length, limit, "at most ")
        answer.paced.allow(limit)
        data = answer.response.read(limit + 1)
        if len(data) > limit:
            raise self._size_error(operation, f"more than {limit}", limit, "at most ")
        if length is not None and len(data) < length:
            raise http.client.IncompleteRead(data, length - len(data))
        return data

    def _size_error(self, operation: str, actual: int | str, expected: int, bound: str = "") -> StoreError:
        hint = "Check the URL, or publish it again"
        return self._error(operation, f"it has {actual} bytes, and {bound}{expected} were expected", hint)

    def _page_error(self, operation: str) -> StoreError:
        hint = "The network's login page or a proxy may answer for it: open the URL in a browser, or check the URL"
        return self._error(operation, "the answer is a web page (HTML), and not the store's file", hint)

    def _error(self, operation: str, reason: str, hint: str) -> StoreError:
        return StoreError(self.url, operation, reason, hint)


def _etag_of(answer: Answer) -> str:
    """Returns an answer's ETag; "" if it has none, or one that could not be sent back."""
    etag = answer.header("ETag")
    return etag if _ETAG.fullmatch(etag) else ""


def _opaque(etag: str) -> str:
    return etag.removeprefix("W/")
