"""Stores and ops for the cache's tests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.store.fake_op import FakeOp
from support.store.fake_store import FakeStore


@pytest.fixture
def fake_store(tmp_path):
    """An empty store, to which `add` publishes entries."""
    return FakeStore(tmp_path / "store", tmp_path / "src")


@pytest.fixture
def fake_op(tmp_path):
    """An op with one source and an empty store."""
    return FakeOp(tmp_path)


@pytest.fixture
def in_thread():
    """Calls functions in other threads; returns futures."""
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit
