"""Reads topics from a registry with TUF metadata: `tuf.ngclient` verifies them, and our store fetches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opforge.errors import ExtraNotInstalledError, OpforgeError, SignatureError, StoreBehindError, StoreError
from opforge.remote import topics
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.topics import Listing

from . import FOLDER, MAX_BYTES, TIMESTAMP, file_of, roots, target_path
from .roots import Root

if TYPE_CHECKING:
    from tuf.ngclient import TargetFile, Updater

PUT_BACK = "Ask the registry's owner to put that file back, from a mirror or a backup"
BASE = "store:///"
"""Begins the addresses that tuf asks for; what follows is the name of an object below FOLDER."""


class Reader:
    """The state of a registry, as its newest timestamp has it."""

    def __init__(self, store: ObjectStore, root: Root) -> None:
        self.root, self._store = root, store
        self._updater: Updater | None = None

    def listing(self, kind: str, topic: str) -> Listing | None:
        """Returns a topic that names its statements; None if there is none. Raises what `content` raises."""
        data = self.content(target_path(kind, topic))
        return None if data is None else listing_of(self._store, data, kind, topic)

    def content(self, path: str) -> bytes | None:
        """Returns the bytes of a target; None if there is none.

        Raises SignatureError, StoreBehindError, StoreError, TrustFileError if what is known of it cannot be kept.
        """
        url = self._store.url
        try:
            with roots.held(self.root):
                target = self._target(path)
        except OSError as error:
            if isinstance(error, OpforgeError):
                raise
            raise roots.unwritable(self.root.folder, error) from error
        except (ValueError, _exceptions().RepositoryError) as error:
            raise _error(url, error) from error
        except _exceptions().DownloadError as error:
            raise _download_error(url, error) from error
        return None if target is None else read_target(self._store, target)

    def _target(self, path: str) -> TargetFile | None:
        if self._updater is None:
            try:
                self._updater = self._refreshed()
            except _exceptions().UnsignedMetadataError:
                # Its keys may have been replaced after the root was read. Nothing that is refused twice is used.
                self._updater = self._refreshed()
        return self._updater.get_targetinfo(path)

    def _refreshed(self) -> Updater:
        from tuf.ngclient import Updater
        from tuf.ngclient.fetcher import FetcherInterface

        store = self._store

        class Fetcher(FetcherInterface):
            def _fetch(self, url: str) -> Iterator[bytes]:
                stored = store.get(f"{FOLDER}/{url.removeprefix(BASE)}", MAX_BYTES)
                if stored is None:
                    raise _exceptions().DownloadHTTPError(f"{FOLDER}/{url.removeprefix(BASE)} is missing", 404)
                return iter((stored.data,))

        updater = Updater(self.root.folder, BASE, fetcher=Fetcher(), bootstrap=self.root.data)
        updater.refresh()
        return updater


def read_target(store: ObjectStore, target: TargetFile) -> bytes:
    """Returns the bytes of a target of verified metadata. Raises SignatureError, StoreError."""
    where = file_of(target.path, target.hashes.get("sha256", ""))
    stored = store.get(where, MAX_BYTES)
    if stored is None:
        reason = f"it is missing, and the registry's keys have signed that it is there, as the target {target.path!r}"
        raise SignatureError(f"{store.url}/{where}", reason, PUT_BACK)
    try:
        target.verify_length_and_hashes(stored.data)
    except _exceptions().RepositoryError as error:
        raise _error(f"{store.url}/{where}", error) from error
    return stored.data


def listing_of(store: ObjectStore, data: bytes, kind: str, topic: str) -> Listing:
    """Returns the topic in the bytes of a target. Raises SignatureError."""
    try:
        return topics.read_listing(data, kind, topic)
    except ValueError as error:
        advice = "Report it to the registry's owner: its key has signed it"
        raise SignatureError(f"{store.url}: {kind} {topic}", str(error), advice) from error


def reader(store: ObjectStore, root: Root) -> Reader:
    """Returns what reads a registry of which this root is trusted. Raises ExtraNotInstalledError."""
    require()
    return Reader(store, root)


def require() -> None:
    """Raises ExtraNotInstalledError if python-tuf is not installed."""
    try:
        import tuf.ngclient  # noqa: F401
    except ImportError as error:
        raise ExtraNotInstalledError("A registry with TUF metadata", "tuf", "tuf") from error


def _exceptions() -> Any:
    from tuf.api import exceptions

    return exceptions


def _error(what: str, error: Exception) -> SignatureError:
    reason = f"its TUF metadata is refused: {str(error).rstrip('.')}"
    if isinstance(error, _exceptions().ExpiredMetadataError):
        advice = "Somebody may be holding back what is newer. If not, its owner renews it: opforge tuf refresh"
        return StoreBehindError(what, reason, advice)
    advice = "Somebody serves other or older metadata than the registry's owner signed: report it to the owner"
    is_behind = isinstance(error, _exceptions().BadVersionNumberError)
    return (StoreBehindError if is_behind else SignatureError)(what, reason, advice)


def _download_error(url: str, error: Exception) -> Exception:
    if isinstance(error.__cause__, StoreError):
        return error.__cause__
    reason = f"its TUF metadata is refused: {str(error).rstrip('.')}"
    never = f". If it was never there, {url} is not a registry with TUF metadata: check the URL"
    return SignatureError(url, reason, PUT_BACK + (never if TIMESTAMP in reason else ""))
