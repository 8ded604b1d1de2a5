"""Files of a fake machine: drivers' files in /dev, the kernel's in /proc and /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_files(root: Path, files: Mapping[str, str]) -> str:
    """Writes the files (path relative to the root -> text), makes their folders, and returns the root."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(root)
