from __future__ import annotations

import pytest


@pytest.fixture(params=["op", "package", "note"])
def shop(request, tmp_path, monkeypatch):
    """A store of each kind, and a client that has never seen it."""
    pytest.importorskip("cryptography")
    from support.remote import servers
    from support.remote.shops import SHOPS

    with servers.without_proxies():
        yield SHOPS[request.param](tmp_path, monkeypatch)
