from __future__ import annotations

import pytest


@pytest.fixture(params=["op", "package", "note"])
def shop(request, tmp_path, monkeypatch):
    """A store of each kind, and clients. What a killed publisher holds is void after a second."""
    pytest.importorskip("cryptography")
    from support.remote import servers
    from support.remote.shops import SHOPS

    from opforge.remote.stores.folder.store import FolderStore

    begin = FolderStore.__init__
    monkeypatch.setattr(FolderStore, "__init__", lambda self, url, path: begin(self, url, path, 1.0))
    with servers.without_proxies():
        yield SHOPS[request.param](tmp_path, monkeypatch)
