"""The stores of the contract tests, each with its real server, which is started once for a module."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest
from support.remote import servers

from opforge.remote.stores import open_store
from opforge.remote.stores.protocol import ObjectStore

SERVERS = {
    "http.server": servers.http_server,
    "nginx": servers.nginx,
    "apache": servers.apache,
    "s3": servers.moto,
    "azure": servers.azurite,
}
CLOUD = ("s3", "azure")
WRITABLE = ("folder", "apache", *CLOUD)


class Backend(NamedTuple):
    """A store, and how the test puts objects into those that it cannot publish to. `url` has the options."""

    kind: str
    store: ObjectStore
    root: str
    url: str

    @property
    def is_cloud(self) -> bool:
        """Whether it is a bucket, which obstore reads and writes."""
        return self.kind in CLOUD

    def fill(self, name: str, data: bytes) -> None:
        """Stores an object, by the store if that can be published to."""
        if self.kind in WRITABLE:
            assert self.store.put_if_absent(name, data)
        else:
            path = os.path.join(self.root, name)
            folder = os.path.dirname(path)
            os.makedirs(folder, exist_ok=True)
            while folder != self.root:
                os.chmod(folder, 0o777)  # the server may have another user id, and must be able to write
                folder = os.path.dirname(folder)
            with open(path, "wb") as file:
                file.write(data)


def backend_of(kind, folder):
    """Yields the store of a kind, as a fixture does."""
    if kind == "folder":
        yield Backend(kind, open_store(folder.as_uri()), str(folder), folder.as_uri())
    else:
        with servers.without_proxies(), SERVERS[kind]() as server:
            yield Backend(kind, open_store(server.url), server.root, server.url)


@pytest.fixture(scope="module", params=["folder", *SERVERS])
def backend(request, tmp_path_factory):
    """Each store."""
    yield from backend_of(request.param, tmp_path_factory.mktemp("folder"))


@pytest.fixture(scope="module", params=WRITABLE)
def writable(request, tmp_path_factory):
    """Each store that can be published to."""
    yield from backend_of(request.param, tmp_path_factory.mktemp("folder"))
