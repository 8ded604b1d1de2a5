"""Imports files of the checkout that are scripts and in no package."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

from support.paths import CHECKOUT


def load(path: str) -> ModuleType:
    """Returns a file of the checkout, such as .ci/matrix.py, as a new module. No module of its folder is importable."""
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(f"script_{name}", os.path.join(CHECKOUT, path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
