"""Imports the fuzz targets, which are scripts and no package."""

from __future__ import annotations

import importlib.util
import os

from support.paths import TESTS


def load(name):
    """Returns a module of tests/fuzz."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(TESTS, "fuzz", f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
