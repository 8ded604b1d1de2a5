"""These tests need an accelerator; without it they are skipped, with what is missing."""

from __future__ import annotations

import os

import pytest

LAYERS = os.environ.get("OPFORGE_CACHE_LAYERS")


@pytest.fixture(autouse=True)
def brought_along(own_store, monkeypatch):
    """Ops that were built elsewhere: the one setting of the machine's that these tests keep."""
    if LAYERS:
        monkeypatch.setenv("OPFORGE_CACHE_LAYERS", LAYERS)


def pytest_collection_modifyitems(items):
    for item in items:
        if "/device/" in item.path.as_posix():
            item.add_marker(pytest.mark.device)
