"""A registry with TUF metadata, and keys for it."""

from __future__ import annotations

import os

import pytest

from opforge.remote.signatures import keys, signing
from opforge.remote.tuf import roots


class Keys:
    """Key pairs by name, made as they are asked for."""

    def public(self, name):
        return signing.public_of(keys.read(name)) if os.path.exists(keys.path_of(name)) else keys.create(name)

    def pairs(self, *names):
        return [(self.public(name), keys.signer(name)) for name in names]


@pytest.fixture
def key_pairs():
    return Keys()


@pytest.fixture
def tuf(registry, monkeypatch, key_pairs):
    """The registry, with TUF metadata in four bins, which this user trusts."""
    metadata = pytest.importorskip("opforge.remote.tuf.metadata", reason="needs pip install 'opforge[tuf]'")
    monkeypatch.setattr(metadata, "BITS", 2)
    data = metadata.begin(registry.store, key_pairs.pairs("root"), 1, key_pairs.pairs("ci"))
    roots.trust(registry.url, data)
    return registry
