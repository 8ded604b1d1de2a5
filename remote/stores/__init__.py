"""Stores of named bytes: a folder, an HTTP(S) server, S3 and its kin. `open_store` returns the store of a URL."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from opforge.errors import StoreError

from .urls import OPENING, did_you_mean, without_credentials

if TYPE_CHECKING:
    from .protocol import ObjectStore

STORES = {
    "file": "opforge.remote.stores.folder.store:open_url",
    "http": "opforge.remote.stores.web.store:open_url",
    "https": "opforge.remote.stores.web.store:open_url",
    "s3": "opforge.remote.stores.cloud:open_url",
    "gs": "opforge.remote.stores.cloud:open_url",
    "az": "opforge.remote.stores.cloud:open_url",
}
"""Scheme of a URL -> "module:function", which takes the URL and returns its store. They are imported on use."""


def open_store(url: str, offline: bool = False) -> ObjectStore:
    """Returns the store of a URL. Nothing is connected or read yet.

    Keep the store for as long as it is used: connections to a server are kept with it, one for each thread.

    Args:
        url: Such as "file:///shared/ops", "https://cache.example/ops?token_env=CACHE_TOKEN" or "s3://bucket/ops".
        offline: Refuses every store but a folder.

    Raises:
        StoreError: The URL is malformed, its scheme is unknown, or its store needs a package that is not installed.
    """
    scheme, separator, _rest = url.partition("://")
    text = without_credentials(url)
    if not separator:
        hint = f"Write file://{text}" if text.startswith("/") else "Expected SCHEME://..., such as file:///shared/ops"
        raise StoreError(text, OPENING, "it is not a URL", hint)
    factory = STORES.get(scheme.lower())
    if factory is None:
        hint = f"{did_you_mean(scheme, STORES)}Expected any of: {', '.join(STORES)}"
        raise StoreError(text, OPENING, f"the scheme {scheme!r} is unknown", hint)
    if offline and scheme.lower() != "file":
        raise StoreError(text, OPENING, "the network is forbidden", "Unset OPFORGE_OFFLINE, or use a file:// store")
    store: ObjectStore = resolve_name(factory)(url)
    return store
