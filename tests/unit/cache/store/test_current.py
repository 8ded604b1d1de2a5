"""Nothing that is the machine's is heard or filled by a test, nor by a fixture that outlives one."""

from __future__ import annotations

import os

import pytest

from opforge.cache.current import current_store


def heard():
    """The store in use, and the settings that are set."""
    return str(current_store().layout), {name for name in os.environ if name.startswith("OPFORGE_")}


@pytest.fixture(scope="module")
def outliving():
    """What a fixture of a module hears: it is made before the store of the first test."""
    store, settings = heard()
    return store, settings - {"OPFORGE_CACHE_LAYERS"}


def test_a_fixture_that_outlives_a_test_has_the_sessions_store_and_no_setting(outliving, shared_store):
    assert outliving == (str(shared_store), {"OPFORGE_CACHE_DIR"})


def test_a_test_has_a_store_of_its_own_and_no_setting(own_store):
    assert heard() == (str(own_store), {"OPFORGE_CACHE_DIR"})


def test_what_is_built_for_several_tests_is_put_into_the_sessions_store(builds_are_shared, shared_store):
    assert heard() == (str(shared_store), {"OPFORGE_CACHE_DIR"})
