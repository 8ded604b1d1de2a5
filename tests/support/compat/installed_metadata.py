"""The metadata that an installed opforge has: the entry points of this checkout's pyproject.toml."""

from __future__ import annotations

import os
from pathlib import Path

from support import text_files
from support.paths import CHECKOUT


def with_entry_points(folder: Path) -> str:
    """Returns a folder for PYTHONPATH whose metadata has opforge's entry points for setuptools and for torch."""
    from setuptools.config.pyprojecttoml import load_file

    groups = load_file(os.path.join(CHECKOUT, "pyproject.toml"))["project"]["entry-points"]
    metadata = folder / "site" / "opforge_here-1.dist-info"
    metadata.mkdir(parents=True)
    text_files.write(metadata, "METADATA", "Metadata-Version: 2.1\nName: opforge-here\nVersion: 1\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {import_path}" for name, import_path in points.items())]
    text_files.write(metadata, "entry_points.txt", "\n".join([*lines, ""]))
    return str(metadata.parent)
