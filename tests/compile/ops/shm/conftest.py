"""The op, built once: ranks only load it."""

from __future__ import annotations

import pytest

from opforge.ops.host_op import host_op


@pytest.fixture(autouse=True)
def built_once(builds_are_shared):
    """The processes that tests start find the op too."""
    host_op("ShareMemCommBuilder")
