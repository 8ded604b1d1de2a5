"""Pinned entries, which no limit evicts."""

from __future__ import annotations

import time

from opforge.cache import admit
from opforge.cache.areas import DAY
from opforge.cache.maintenance import gc
from opforge.cache.records import pins


def collect(fake_store, days=1.0):
    """Removes what is over a limit of no bytes at all."""
    return gc.remove(fake_store.layout, gc.over_limit(fake_store.layout, time.time() + days * DAY, max_size=0))


def test_what_the_user_pins_has_no_end(fake_store):
    key = fake_store.add()
    pins.pin(fake_store.layout, key)
    collect(fake_store, days=4000)
    assert fake_store.entry_keys() == pins.pinned(fake_store.layout) == {key}
    pins.unpin(fake_store.layout, key)
    pins.unpin(fake_store.layout, key)
    collect(fake_store)
    assert fake_store.entry_keys() == set()


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
