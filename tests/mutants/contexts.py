"""A plugin of pytest that gives coverage the name of each test, so that it notes which tests reach which lines.

A process that a test starts gets the name by its environment: `context` in `__main__.py`'s settings of coverage.
"""

from __future__ import annotations

import coverage
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    """Names the test that begins, with its fixtures."""
    if (current := coverage.Coverage.current()) is not None:
        current.switch_context(nodeid)
