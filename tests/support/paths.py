"""Folders of the checkout."""

from __future__ import annotations

import os

import opforge

SUPPORT = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(SUPPORT)
CHECKOUT = os.path.dirname(TESTS)
SOURCE_TREE = os.path.dirname(os.path.dirname(os.path.abspath(opforge.__file__)))
"""The folder from which opforge is imported: a path for PYTHONPATH."""
OF_A_USER = {
    "OPFORGE_CACHE_DIR": "store",
    "XDG_CACHE_HOME": "caches",
    "XDG_CONFIG_HOME": "config",
    "XDG_STATE_HOME": "state",
}
"""The variables of a user's folders, and the names of those folders below a test's own."""
