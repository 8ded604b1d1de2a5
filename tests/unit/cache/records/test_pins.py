"""Roots: named lists of entries that no limit evicts, by the user or by a file that needs them."""

from __future__ import annotations

import os
import time

import pytest
from support import text_files

from opforge.cache import admit
from opforge.cache.areas import DAY
from opforge.cache.maintenance import gc, limits
from opforge.cache.records import pins


def collect(fake_store, days=1.0):
    """Removes what is over a limit of no bytes at all."""
    return gc.remove(fake_store.layout, gc.over_limit(fake_store.layout, time.time() + days * DAY, max_size=0))


def test_the_entries_of_a_root_stay_until_it_is_removed_or_replaced(fake_store, tmp_path):
    relu, adam, lion = (fake_store.add(op) for op in ("relu", "adam", "lion"))
    lock_file = tmp_path / "opforge.lock"
    lock_file.write_text("")
    pins.set_root(fake_store.layout, "project-1.lock", [relu, adam], owner=str(lock_file))
    assert pins.roots(fake_store.layout) == [("project-1.lock", {relu, adam}, str(lock_file))]
    collect(fake_store)
    assert fake_store.entry_keys() == {relu, adam} and lion not in fake_store.entry_keys()
    pins.set_root(fake_store.layout, "project-1.lock", [adam], owner=str(lock_file))
    collect(fake_store)
    assert fake_store.entry_keys() == {adam}
    pins.remove_root(fake_store.layout, "project-1.lock")
    pins.remove_root(fake_store.layout, "project-1.lock")
    collect(fake_store)
    assert fake_store.entry_keys() == set()


def test_an_entry_stays_while_any_root_names_it(fake_store):
    key = fake_store.add()
    pins.pin(fake_store.layout, key)
    pins.set_root(fake_store.layout, "package", [key, "an entry that is not here"])
    pins.unpin(fake_store.layout, key)
    collect(fake_store)
    assert fake_store.entry_keys() == {key}
    pins.remove_root(fake_store.layout, "package")
    collect(fake_store)
    assert fake_store.entry_keys() == set()


def test_a_root_ends_thirty_days_after_its_owner(fake_store, tmp_path):
    key, owner = fake_store.add(), tmp_path / "package"
    owner.mkdir()
    pins.set_root(fake_store.layout, "package", [key], owner=str(owner))
    path = fake_store.layout.path("pins", "package")
    year_ago = time.time() - 365 * DAY
    os.utime(path, (year_ago, year_ago))
    limits.enforce(fake_store.layout, None, None)  # the owner is seen
    owner.rmdir()
    collect(fake_store, days=29)
    assert fake_store.entry_keys() == {key} and os.path.exists(path), "a disk may not be mounted"
    assert [eviction.kind for eviction in collect(fake_store, days=31)] == ["pin"]
    assert not os.path.exists(path)
    collect(fake_store, days=31)
    assert fake_store.entry_keys() == set()


def test_what_the_user_pins_has_no_end(fake_store):
    key = fake_store.add()
    pins.pin(fake_store.layout, key)
    collect(fake_store, days=4000)
    assert fake_store.entry_keys() == pins.pinned(fake_store.layout) == {key}


def test_a_pinned_entry_stays_the_one_that_its_plan_finds(fake_op, monkeypatch):
    """A plan keeps the pointers that were used last. A pin is a reason too."""
    monkeypatch.setattr(admit, "KEPT_POINTERS", 2)
    pinned = fake_op.build()
    pins.pin(fake_op.store.layout, pinned.key)
    for number in range(4):
        fake_op.edit(f"int b{number};")
        fake_op.build()
    fake_op.edit("int a;")
    assert fake_op.get().key == pinned.key
    assert len(fake_op.pointers()) == 3


@pytest.mark.parametrize(
    "text", ["", "[]", '{"entries": 3, "owner": ""}', '{"entries": [1], "owner": ""}', "[" * 99_999]
)
def test_a_root_that_cannot_be_read_is_reported_and_the_others_hold(fake_store, warnings_of_the_cache, text):
    key = fake_store.add()
    pins.pin(fake_store.layout, key)
    text_files.write(fake_store.layout.path("pins"), "damaged", text)
    assert pins.pinned(fake_store.layout) == {key}
    assert warnings_of_the_cache() == [
        f"{fake_store.layout.path('pins', 'damaged')} cannot be read: the entries that it keeps are evicted as others"
        " are. Pin them again."
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "x" * 201, "a b", "y.77.0a0a0a0a.tmp"])
def test_a_name_that_no_file_can_have_is_refused(fake_store, name):
    with pytest.raises(ValueError, match="cannot name a root: expected at most 200 letters"):
        pins.set_root(fake_store.layout, name, [])


def test_an_owner_is_an_absolute_path(fake_store):
    with pytest.raises(ValueError, match=r"'opforge.lock' cannot own a root: expected an absolute path"):
        pins.set_root(fake_store.layout, "lock", [], owner="opforge.lock")
