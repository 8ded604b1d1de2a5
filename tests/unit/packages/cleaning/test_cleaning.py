"""`remote gc` at a store of packages: it stops at a release that cannot be read, and keeps what is being published."""

from __future__ import annotations

import hashlib
import os
import time

import pytest
from support.remote import turns

from opforge.errors import StoreError
from opforge.packages.registry import mirror, publish, release
from opforge.remote import maintenance, removals
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store


@pytest.fixture
def other(tmp_path):
    (tmp_path / "other").mkdir()
    return open_store(f"file://{tmp_path}/other")


@pytest.mark.parametrize(
    "damage", [b"garbage", b"", lambda data: data[:-300], lambda data: data.replace(b"sha", b"shb")]
)
def test_a_release_that_cannot_be_read_stops_the_cleaning(registry, damage):
    registry.publish()
    (name,) = [name for name in registry.files() if name.startswith("v1/releases/")]
    path = os.path.join(registry.path, name)
    with open(path, "rb") as file:
        data = file.read().partition(b"\n")[0]
    with open(path, "wb") as file:
        file.write(damage if isinstance(damage, bytes) else damage(data))
    with pytest.raises(StoreError) as caught:
        list(maintenance.collect(registry.store, os.stat(path).st_mtime + 10 * 86400))
    assert f"the release {name} cannot be read" in str(caught.value)
    assert "Run this with the newest opforge that publishes there" in str(caught.value)
    assert any(name.startswith("v1/blobs/") for name in registry.files())


def test_a_release_of_a_newer_format_stops_the_cleaning(registry):
    text = b'{"format":2,"variants":[{"blob":"elsewhere"}]}'
    digest = hashlib.sha256(text).hexdigest()
    registry.store.put_if_absent(release.file_name(digest), text + b"\n[]\n")
    with pytest.raises(StoreError, match="its format is 2, and this opforge reads 1"):
        list(maintenance.unused(registry.store, 0.0))


def test_in_any_order_of_their_requests_a_release_and_its_copy_have_their_blobs(registry, other, monkeypatch):
    """The blob was there already, old, and named by nothing: `remote gc` is about to remove it."""
    monkeypatch.setattr(removals, "PAUSE_SECONDS", 0.0)
    registry.publish()
    folder = registry.packed()
    (blob,) = [name for name in registry.files() if name.startswith("v1/blobs/")]
    for store, path in ((other, other.path), (registry.store, registry.path)):
        list(mirror.copy(registry.store, other))
        for seed in range(20):
            for listed in [*store.list("v1/releases/"), *store.list("v1/packages/"), *store.list(removals.PREFIX)]:
                store.delete(listed.name)
            os.utime(os.path.join(path, blob), (0, 0))
            actions = [lambda turned: list(maintenance.collect(turned, time.time()))]
            if store is other:
                actions.append(lambda turned: list(mirror.copy(registry.store, turned)))
            else:
                actions.append(lambda turned: publish.publish(turned, folder, keys.signer()))
            turns.run(lambda store=store: open_store(store.url), seed, *actions)
            assert os.path.exists(os.path.join(path, blob)), seed
