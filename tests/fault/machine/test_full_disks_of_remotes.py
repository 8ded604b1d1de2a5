"""A full disk while something is fetched: one warning, nothing in parts stays, and the load goes on."""

from __future__ import annotations

import logging
import os

import pytest
from support import sample_ops
from support.remote.nodes import Nodes, reasons

from opforge.builders import load_op
from opforge.builders.lookup import finder
from opforge.cache import current_store
from opforge.cache.maintenance import verify

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("pages", [0, 2, 5, 8, 12])
def test_no_part_of_a_fetched_entry_stays_on_a_full_disk(tmp_path, mount_tmpfs, monkeypatch, caplog, pages):
    nodes = Nodes(tmp_path / "nodes", monkeypatch)
    builder = sample_ops.plain_op(tmp_path / "op")()
    nodes.built(builder)
    disk = mount_tmpfs("size=256k")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(disk / "store"))
    current_store.reset()
    current_store.prepare(str(disk / "store"), {os.geteuid()})
    status = os.statvfs(disk)
    with open(disk / "filler", "wb") as file:
        file.write(bytes(max(0, status.f_bavail - pages) * status.f_bsize))
    store = current_store.current_store()
    look_up = finder.Finder(builder.spec(), store, asks=True)
    with caplog.at_level(logging.WARNING, "opforge"):
        entry = load_op.stored_entry(look_up)
    if entry is None:
        said = reasons(look_up.rejected)
        assert "No space left on device" in said or "cannot be written" in said
    else:
        assert entry.origin == nodes.url
    assert os.listdir(store.layout.path("staging")) == []
    assert not [checked for checked in verify.verify(store.layout, store.owners) if checked.problem]
    os.unlink(disk / "filler")
