"""Folders of the checkout."""

from __future__ import annotations

import os

SUPPORT = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(SUPPORT)
CHECKOUT = os.path.dirname(TESTS)
