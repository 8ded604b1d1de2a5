"""A store with entries, an archive of two of them, and an empty store to import into."""

from __future__ import annotations

import pytest
from support.store.fake_store import ME

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.transfer import archive


@pytest.fixture
def packed(fake_store, tmp_path):
    """The path of an archive of two entries, and their keys in the order in which the archive holds them."""
    keys = sorted([fake_store.add("relu"), fake_store.add("adam")])
    path = str(tmp_path / "ops.tar")
    archive.export(fake_store.layout, keys, path)
    return path, keys


@pytest.fixture
def empty_store(tmp_path):
    """The layout of an empty store."""
    layout = Layout(str(tmp_path / "empty"))
    current.prepare(layout.root, ME)
    return layout
