"""Reads topics from a registry with TUF metadata: `tuf.ngclient` verifies them, and our store fetches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opforge.errors import ExtraNotInstalledError, OpforgeError, SignatureError, StoreError
from opforge.remote import topics
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.topics import Listing

from . import FOLDER, MAX_BYTES, file_of, roots, target_path

if TYPE_CHECKING:
    from tuf.ngclient import TargetFile, Updater

BASE = "store:///"
"""Begins the addresses that tuf asks for; what follows is the name of an object below FOLDER."""


class Reader:
    """The state of a registry, as its newest timestamp has it."""

    def __init__(self, url: str, store: ObjectStore, root: bytes) -> None:
        self.url, self._store, self._root = url, store, root
        self._updater: Updater | None = None

    def listing(self, kind: str, topic: str) -> Listing | None:
        """Returns a topic that names its statements; None if there is none.

        Raises SignatureError, StoreError, TrustFileError if what is known of it cannot be kept.
        """
        try:
            with roots.held(self.url):
                target = self._target(target_path(kind, topic))
        except OSError as error:
            if isinstance(error, OpforgeError):
                raise
            raise roots.unwritable(self.url, error) from error
        except (ValueError, _exceptions().RepositoryError) as error:
            raise _error(self.url, error) from error
        except _exceptions().DownloadError as error:
            raise _download_error(self.url, error) from error
        return None if target is None else read_target(self._store, target, kind, topic)

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
                    raise _exceptions().DownloadHTTPError(f"there is no {url.removeprefix(BASE)}", 404)
                return iter((stored.data,))

        folder = roots.folder_of(self.url)
        updater = Updater(folder, BASE, fetcher=Fetcher(), bootstrap=self._root)
        updater.refresh()
        return updater


def read_target(store: ObjectStore, target: TargetFile, kind: str, topic: str) -> Listing:
    """Returns the topic that verified metadata names. Raises SignatureError, StoreError."""
    where = file_of(target_path(kind, topic), target.hashes.get("sha256", ""))
    stored = store.get(where, topics.MAX_LISTING_BYTES)
    if stored is None:
        raise SignatureError(f"{store.url}/{where}", "it is missing", "The registry is incomplete: ask its owner")
    try:
        target.verify_length_and_hashes(stored.data)
    except _exceptions().RepositoryError as error:
        raise _error(f"{store.url}/{where}", error) from error
    try:
        return topics.read_listing(stored.data, kind, topic)
    except ValueError as error:
        advice = "Report it to the registry's owner: its key has signed it"
        raise SignatureError(f"{store.url}/{where}", str(error), advice) from error


def reader(url: str, store: ObjectStore, root: bytes) -> Reader:
    """Returns what reads a registry of which this root is trusted. Raises ExtraNotInstalledError."""
    require()
    return Reader(url, store, root)


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
    if isinstance(error, _exceptions().ExpiredMetadataError):
        advice = "Somebody may be holding back what is newer. If not, its owner renews it: opforge tuf refresh"
    else:
        advice = "Somebody serves other or older metadata than the registry's owner signed: report it to the owner"
    return SignatureError(what, f"its TUF metadata is refused: {str(error).rstrip('.')}", advice)


def _download_error(url: str, error: Exception) -> Exception:
    if isinstance(error.__cause__, StoreError):
        return error.__cause__
    reason = f"its TUF metadata is refused: {str(error).rstrip('.')}"
    return SignatureError(url, reason, "The registry is incomplete, or it is none with TUF metadata: ask its owner")
