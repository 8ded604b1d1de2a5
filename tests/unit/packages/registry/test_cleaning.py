"""`opforge gc URL` at a store of packages: it stops at what cannot be read, and keeps what is being published."""

from __future__ import annotations

import hashlib
import os
import time

import pytest
from support.remote import turns

from opforge.errors import StoreError
from opforge.packages.registry import publish
from opforge.remote import contents, gc, mirror, removals, statements
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
    (name,) = [name for name in registry.files() if name.startswith("v1/statements/")]
    path = os.path.join(registry.path, name)
    with open(path, "rb") as file:
        data = file.read().partition(b"\n")[0]
    with open(path, "wb") as file:
        file.write(damage if isinstance(damage, bytes) else damage(data))
    with pytest.raises(StoreError) as caught:
        list(gc.collect(registry.store, os.stat(path).st_mtime + 10 * 86400))
    assert f"{name}: its bytes are not those that its topic names" in str(caught.value)
    assert f"Correct or remove {name} first" in str(caught.value)
    assert any(name.startswith("v1/blobs/") for name in registry.files())


def test_a_release_of_a_newer_format_stops_the_cleaning(registry):
    text = b'{"statement":2,"trees":[{"blob":"elsewhere"}]}'
    digest = hashlib.sha256(text).hexdigest()
    registry.store.put_if_absent(statements.name_of(digest), text + b"\n[]\n")
    with pytest.raises(StoreError, match="'statement' is 2, and this opforge reads 1: update opforge"):
        list(gc.unused(registry.store, 0.0))


def test_in_any_order_of_their_requests_a_release_and_its_copy_have_their_blobs(registry, other, monkeypatch):
    """The blob was there already, old, and named by nothing: `gc` is about to remove it."""
    monkeypatch.setattr(removals, "PAUSE_SECONDS", 0.0)
    registry.publish()
    folder = registry.packed()
    (blob,) = [name for name in registry.files() if name.startswith("v1/blobs/")]
    for store, path in ((other, other.path), (registry.store, registry.path)):
        list(mirror.copy(registry.store, other))
        for seed in range(30):
            gone = "v1/statements/" if seed % 2 else "v1/topics/"  # in every other turn the statement is there, too
            for listed in [*store.list(gone), *store.list("v1/topics/"), *store.list(removals.PREFIX)]:
                store.delete(listed.name)
            for listed in [*store.list("v1/blobs/"), *store.list("v1/statements/")]:
                os.utime(os.path.join(path, listed.name), (0, 0))
            actions = [lambda turned: list(gc.collect(turned, time.time()))]
            if store is other:
                actions.append(lambda turned: list(mirror.copy(registry.store, turned)))
            else:
                actions.append(lambda turned: publish.publish(turned, folder, keys.signer()))
            turns.run(lambda store=store: open_store(store.url), seed, *actions)
            assert os.path.exists(os.path.join(path, blob)), seed
            assert not [item.problem for item in contents.items(store) if item.problem], seed


def test_what_a_list_names_is_kept_whatever_the_index_beside_it_says(registry):
    registry.publish(number="1")
    registry.store.delete("v1/topics/package/acme/plain.json")
    assert not [*gc.collect(registry.store, time.time() + 90_000)]
    registry.publish(number="1")
    assert str(registry.install().version) == "1"


def test_a_damaged_list_stops_the_cleaning(registry):
    registry.publish(number="1")
    registry.replace("v1/withdrawals/ci.json", b"{}")
    registry.store.delete("v1/topics/package/acme/plain.json")
    with pytest.raises(StoreError, match=r"ci\.json: .* Correct or remove v1/withdrawals/ci\.json first"):
        list(gc.unused(registry.store, time.time() + 90_000))
