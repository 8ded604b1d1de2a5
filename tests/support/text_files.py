"""Text files and scripts that tests write, and what is in a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any


def write(folder: Any, name: str, text: str) -> str:
    """Writes a file, in folders that are made if they are missing, and returns its path."""
    path = os.path.join(str(folder), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    return path


def write_script(folder: Any, name: str = "g++", body: str = "exit 0") -> str:
    """Writes an executable shell script, such as a stand-in for a compiler, and returns its path."""
    path = write(folder, name, f"#!/bin/sh\n{body}\n")
    os.chmod(path, 0o755)
    return path


def sha256(content: str) -> str:
    """Returns the digest of a text, in hex."""
    return hashlib.sha256(content.encode()).hexdigest()


def tree(root: Any) -> Mapping[str, list[str]]:
    """Returns every folder below `root`, by its relative path, with the names of its files."""
    return {os.path.relpath(folder, root): sorted(files) for folder, _folders, files in os.walk(root)}
