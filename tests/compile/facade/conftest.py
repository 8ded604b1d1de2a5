"""The libraries of these tests share a precompiled header, which one of the workers makes."""

from __future__ import annotations

import pytest
from facade import compiling


@pytest.fixture(scope="session", autouse=True)
def kept_header(shared_store):
    """Has `compile_library` use a header of this session."""
    folder = shared_store.parent / "facade-header"
    folder.mkdir(exist_ok=True)
    compiling.kept[:] = [folder]
    yield
    compiling.kept.clear()
