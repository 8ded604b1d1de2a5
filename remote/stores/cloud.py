"""The stores of S3 and its kin, of Google and of Azure, by the package obstore. Only S3 has been tried."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, BinaryIO

from opforge.errors import StoreError
from opforge.errors.base import printable

from . import preconditions
from .protocol import ListedObject, ObjectStore, StoredObject, check_name, check_prefix, is_name
from .urls import OPENING, StoreUrl, places_of, split, without_credentials

OPTIONS = {"s3": ("endpoint", "region", "skip_signature"), "gs": ("skip_signature",), "az": ("account", "endpoint")}
"""Scheme -> the options that may be in the URL. Everything else is read from the environment, such as credentials."""
REQUEST_SECONDS, SECONDS, BYTES_PER_SECOND = 20.0, 60.0, 256_000.0
"""Time limits of one try of a request and of all its tries; for a blob, plus its transfer time at this rate."""
MAX_REASON_CHARACTERS = 300
CREDENTIALS = (
    "Set the credentials, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and check what they allow; or, for a"
    " public bucket, add skip_signature=true to the URL"
)
HINTS = {
    "//169.254.": CREDENTIALS,  # the service of a cloud's machines, asked for their role if no credentials are set
    "InvalidCertificate": "Set SSL_CERT_FILE to a file with the certificate of its authority",
    "BadScheme": "Name the server in the URL, ?endpoint=http://HOST:PORT: that allows one without TLS",
}
"""By a part of a reason: what to do about it."""
CAUSE = re.compile(r'<Message>([^<]*)|(InvalidCertificate)\(\s*(\w+)|(?:message|error): "([^"]+)"|(BadScheme)')
"""In a message of obstore, after its first line: the server's own words, or the first cause."""
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""The codes of S3's and of Azure's answers that there is no such bucket."""
_KEYS = {"account": "account_name"}
_used_by_pid = 0
"""The process that has used obstore. Its threads do not exist in a forked child, which would wait for them for ever."""


def open_url(url: str) -> CloudStore:
    """Returns the store of s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH. Raises StoreError."""
    parts = split(url, OPTIONS[url.partition("://")[0].lower()])
    if not parts.host:
        raise StoreError(parts.text, OPENING, "it names no bucket", f"Expected {parts.scheme}://BUCKET/PATH")
    _check_endpoint(parts)
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise _not_installed(parts) from error
    options = {_KEYS.get(name, name): value for name, value in {**parts.options, **places_of(url)}.items()}
    client: dict[str, Any] = {"connect_timeout": "1s", "read_timeout": "10s"}
    if parts.options.get("endpoint", "").startswith("http://"):
        client["allow_http"] = True
    backoff = {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=2), "base": 4}
    retries = {"max_retries": 2, "retry_timeout": timedelta(seconds=SECONDS - REQUEST_SECONDS), "backoff": backoff}

    def open_for(size: int) -> Any:
        timed = {**client, "timeout": f"{1000 * (REQUEST_SECONDS + size / BYTES_PER_SECOND):.0f}ms"}
        try:
            return from_url(without_credentials(url), config=options, client_options=timed, retry_config=retries)  # type: ignore
        except Exception as error:
            raise StoreError(parts.text, OPENING, _reason(error), "Check its options and the environment") from None

    return CloudStore(parts.text, open_for)


def _check_endpoint(parts: StoreUrl) -> None:
    """Raises StoreError if obstore would ask another endpoint than the URL names: no option is above this variable."""
    name = "AWS_ENDPOINT_URL_S3"
    stated, other = parts.options.get("endpoint"), os.environ.get(name)
    if parts.scheme == "s3" and stated and other and stated != other:
        reason = f"the URL names an endpoint, and {name} names another one, {without_credentials(other)}"
        raise StoreError(parts.text, OPENING, reason, f"Unset {name}, and name each store's endpoint in its URL")


class CloudStore(ObjectStore):
    """Objects of a bucket. A process that was forked after the first use of such a store cannot use any."""

    def __init__(self, url: str, open_for: Callable[[int], Any]) -> None:
        """Keeps the function that opens obstore's store. Its argument, a blob's bytes, sets a request's time limit."""
        self.url, self._store, self._open_for = url, open_for(0), open_for

    def __repr__(self) -> str:
        return f"CloudStore({self.url!r})"

    def get(self, name: str, limit: int) -> StoredObject | None:
        import obstore

        with self._errors(f"get {check_name(self.url, name)}") as operation:
            try:
                result = obstore.get(self._store, name)
            except FileNotFoundError as error:
                if any(f"<Code>{code}</Code>" in str(error) for code in NO_BUCKET):
                    raise  # a name with a mistake would look like a store that has nothing, and say nothing
                return None
            size = result.meta["size"]
            if size > limit:
                raise self._size_error(operation, size, f"at most {limit}")
            return StoredObject(bytes(result.bytes()), _version(result.meta))

    def exists(self, name: str) -> bool:
        import obstore

        with self._errors(f"look at {check_name(self.url, name)}"):
            try:
                obstore.head(self._store, name)
            except FileNotFoundError:
                return False
            return True

    def download(self, name: str, file: BinaryIO, size: int) -> None:
        import obstore

        done, store = 0, self._open_for(size)
        end = time.monotonic() + SECONDS + size / BYTES_PER_SECOND
        e_tag: str | None = None
        with self._errors(f"download {check_name(self.url, name)}") as operation:
            while done < size or e_tag is None:
                options: Any = {"range": {"offset": done}, "if_match": e_tag} if done else {}
                try:
                    result = obstore.get(store, name, options=options)
                    if result.meta["size"] != size:
                        raise self._size_error(operation, result.meta["size"], str(size))
                    e_tag = result.meta["e_tag"] or ""
                    before = done
                    for chunk in result.stream(min_chunk_size=1):
                        done += len(chunk)
                        if time.monotonic() > end:
                            raise self._late_error(operation, done, size)
                        _write(file, chunk, self.url, operation)
                    if done != size:
                        raise self._size_error(operation, done, str(size))
                except obstore.exceptions.GenericError:
                    if not e_tag or done <= before:
                        raise
                    if time.monotonic() > end:
                        raise self._late_error(operation, done, size) from None

    def put_if_absent(self, name: str, data: bytes | BinaryIO) -> bool:
        check_name(self.url, name)
        self._prove()
        return self._create(name, data)

    def put_if_unchanged(self, name: str, data: bytes, version: str) -> bool:
        check_name(self.url, name)
        self._prove()
        return self._replace(name, data, version)

    def list(self, prefix: str, but: Container[str] = ()) -> Iterator[ListedObject]:
        import obstore

        # A prefix of obstore is a path of whole parts.
        folder = check_prefix(self.url, prefix).rpartition("/")[0]
        with self._errors(f"list {prefix}"):
            for batch in obstore.list(self._store, prefix=folder or None, chunk_size=1000):
                for meta in batch:
                    name = meta["path"]
                    if name.startswith(prefix) and name not in but and is_name(name):
                        yield ListedObject(name, meta["size"], meta["last_modified"].timestamp())

    def delete(self, name: str) -> None:
        import obstore

        with self._errors(f"delete {check_name(self.url, name)}"):
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError:
                return

    def _prove(self) -> None:
        preconditions.prove(self.url, self._create, lambda name, data, _version: self._replace(name, data, _OTHER))

    def _create(self, name: str, data: bytes | BinaryIO) -> bool:
        return self._put(name, data, "create")

    def _replace(self, name: str, data: bytes, version: str) -> bool:
        try:
            mode = json.loads(version)
        except ValueError:
            mode = None
        if not isinstance(mode, dict):
            hint = "Take the version that `get` returned"
            raise StoreError(self.url, f"put {name}", f"{version!r} is not a version of this store", hint)
        return self._put(name, data, mode)

    def _put(self, name: str, data: bytes | BinaryIO, mode: Any) -> bool:
        import obstore

        with self._errors(f"put {check_name(self.url, name)}"):
            store = self._store
            if not isinstance(data, bytes):
                store = self._open_for(data.seek(0, os.SEEK_END))
                data.seek(0)
            try:
                # In several parts, a precondition could not be given.
                obstore.put(store, name, data, mode=mode, use_multipart=False)
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                return self._is_own(name, data)
            except FileNotFoundError:
                if mode == "create":
                    raise  # there is no such bucket
                return False
            return True

    def _is_own(self, name: str, data: bytes | BinaryIO) -> bool:
        """Returns whether an object has these bytes: an earlier try may have stored them, if its answer was lost."""
        if not isinstance(data, bytes):
            return False
        import obstore

        try:
            result = obstore.get(self._store, name)
        except FileNotFoundError:
            return False
        return bool(result.meta["size"] == len(data)) and bytes(result.bytes()) == data

    @contextmanager
    def _errors(self, operation: str) -> Iterator[str]:
        """Raises StoreError in the place of what obstore raises; yields the operation."""
        global _used_by_pid
        if _used_by_pid not in (0, os.getpid()):
            reason = "the process that forked this one has used such a store, and its threads do not exist here"
            # As an error of this process, and not the store's: others on this machine go on to ask it.
            raise StoreError(self.url, OPENING, reason, "Fork before the first use, or start a new process (spawn)")
        _used_by_pid = os.getpid()
        import obstore

        try:
            yield operation
        except (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError) as error:
            raise StoreError(self.url, operation, _reason(error), CREDENTIALS) from None
        except FileNotFoundError as error:
            raise StoreError(self.url, operation, _reason(error), "Check the bucket's name, or publish it") from None
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            reason = _reason(error)
            fitting = (hint for part, hint in HINTS.items() if part in reason)
            hint = next(fitting, "Check the URL, its options and the network")
            raise StoreError(self.url, operation, reason, hint) from None

    def _late_error(self, operation: str, done: int, size: int) -> StoreError:
        seconds = SECONDS + size / BYTES_PER_SECOND
        reason = f"it sent only {done} of {size} bytes in the {seconds:.0f} s that are allowed"
        return StoreError(self.url, operation, reason, "Check the network")

    def _size_error(self, operation: str, actual: int, expected: str) -> StoreError:
        reason = f"it has {actual} bytes, and {expected} were expected"
        return StoreError(self.url, operation, reason, "Check the URL, or publish it again")


_OTHER = json.dumps({"e_tag": '"another-version"', "version": "1"})


def _version(meta: Mapping[str, Any]) -> str:
    """Returns the identity of a version: S3 and Azure compare ETags, Google compares generations."""
    return json.dumps({key: meta[key] for key in ("e_tag", "version") if meta[key] is not None})


def _write(file: BinaryIO, chunk: Any, url: str, operation: str) -> None:
    try:
        file.write(chunk)
    except OSError as error:
        reason = f"the received data cannot be written ({error.strerror})"
        raise StoreError(url, operation, reason, "Free some space") from error


def _reason(error: BaseException) -> str:
    """Returns the first line of a message, with the cause: the other lines repeat it in the form of a debugger."""
    first, _, others = str(error).strip().partition("\n")
    text, cause = first.partition("<?xml")[0][:MAX_REASON_CHARACTERS].rstrip(" .:"), CAUSE.search(others)
    if cause:
        text += f": {' '.join(filter(None, cause.groups()))[:MAX_REASON_CHARACTERS]}"
    return printable(text).rstrip(" .:") or type(error).__name__


def _not_installed(parts: StoreUrl) -> StoreError:
    hint = "Install it with: pip install 'opforge[s3]'"
    return StoreError(parts.text, OPENING, "it needs the package 'obstore', which is not installed", hint)
