"""Where a token is sent: only to a server that reads it alone."""

from __future__ import annotations

import pytest

from opforge.remote.stores.web.address import address_of
from opforge.remote.stores.web.connection import Connection
from opforge.remote.stores.web.credentials import CredentialsError
from opforge.remote.stores.web.timing import Timing


@pytest.mark.parametrize(
    ("scheme", "host", "proxy", "is_sent"),
    [
        ("https", "cache.example.com", "", True),
        ("https", "cache.example.com", "http://proxy.example.com:3128", True),
        ("http", "cache.example.com", "", False),
        ("http", "127.0.0.1", "", True),
        ("http", "127.0.0.1", "http://proxy.example.com:3128", False),
    ],
)
def test_a_token_is_sent_only_where_nobody_else_can_read_it(monkeypatch, scheme, host, proxy, is_sent):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("CACHE_TOKEN", "secret")
    if proxy:
        monkeypatch.setenv(f"{scheme}_proxy", proxy)
    address = address_of(scheme, host, None)
    if is_sent:
        secret = Connection(address, "CACHE_TOKEN", Timing()).authorization
        assert secret is not None and secret.reveal() == "Bearer secret"
    else:
        with pytest.raises(CredentialsError, match=r"a token would be sent to http://.* without encryption"):
            Connection(address, "CACHE_TOKEN", Timing())
