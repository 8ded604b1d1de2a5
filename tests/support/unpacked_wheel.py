"""A wheel that is installed by unpacking it."""

from __future__ import annotations

import os
import zipfile
from typing import Any

from support import child_processes


def load(wheel: Any, folder: Any, code: str) -> str:
    """Unpacks a wheel into a folder, and returns what `code` prints in a process that has no compiler and no store."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        assert archive.testzip() is None
    for parent, _folders, names in os.walk(folder):
        for name in names:
            os.chmod(os.path.join(parent, name), 0o644)
    path = os.pathsep.join([str(folder), child_processes.environment()["PYTHONPATH"]])
    empty = os.path.join(folder, "empty")
    os.mkdir(empty)
    env = {"PYTHONPATH": path, "PATH": empty, "CXX": None, "OPFORGE_CACHE_DIR": os.path.join(empty, "store")}
    return child_processes.run_with_torch(code, env, cwd=empty)
