"""These tests need an accelerator; without it they are skipped, with what is missing."""

from __future__ import annotations


def pytest_collection_modifyitems(items):
    import pytest

    for item in items:
        if "/device/" in item.path.as_posix():
            item.add_marker(pytest.mark.device)
