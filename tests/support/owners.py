"""Users and owners, for tests of who may own a folder that is trusted."""

from __future__ import annotations

import os

import pytest

ME = frozenset({0, os.geteuid()})
"""The user ids that a store's folders may belong to."""
STRANGER = 4242
"""A user id that owns nothing here."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners: run the tests as root")
