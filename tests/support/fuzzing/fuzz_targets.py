"""Imports the fuzz targets, which are scripts and no package."""

from __future__ import annotations

from support import scripts


def load(name):
    """Returns a module of tests/fuzz."""
    return scripts.load(f"tests/fuzz/{name}.py")
