"""A store with entries, an archive of two of them, and an empty store to import into."""

from __future__ import annotations

import pytest
from support.store.fake_store import ME, MadeUpStore

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.transfer import archive


@pytest.fixture
def made(tmp_path):
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


@pytest.fixture
def packed(made, tmp_path):
    """The path of an archive of two entries, and their results in the order in which they lie in it."""
    results = sorted([made.add("relu"), made.add("adam")])
    path = str(tmp_path / "ops.tar")
    archive.export(made.layout, results, path)
    return path, results


@pytest.fixture
def fresh(tmp_path):
    """An empty store."""
    place = Layout(str(tmp_path / "fresh"))
    current.prepare(place.root, ME)
    return place
