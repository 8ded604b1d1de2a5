"""The tests neither use nor fill the developer's own store, and ignore his settings. (conftest.py arranges that.)"""

from __future__ import annotations

import os

import pytest

from opforge.cache.current_store import current_store


def surroundings():
    """Returns the current store, and the names of opforge's settings in the environment."""
    return str(current_store().layout), {name for name in os.environ if name.startswith("OPFORGE_")}


@pytest.fixture(scope="module")
def surroundings_of_module():
    """The same for a fixture of a module, which is set up before the store of the first test."""
    store, settings = surroundings()
    return store, settings - {"OPFORGE_CACHE_LAYERS"}


def test_a_fixture_of_a_module_has_the_sessions_store_and_no_settings(surroundings_of_module, shared_store):
    assert surroundings_of_module == (str(shared_store), {"OPFORGE_CACHE_DIR"})


def test_a_test_has_its_own_store_and_no_settings(own_store):
    assert surroundings() == (str(own_store), {"OPFORGE_CACHE_DIR"})


def test_shared_builds_are_in_the_sessions_store(builds_are_shared, shared_store):
    assert surroundings() == (str(shared_store), {"OPFORGE_CACHE_DIR"})
