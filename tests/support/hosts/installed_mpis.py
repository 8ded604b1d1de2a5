"""The MPIs that the launcher's tests run on, where they are installed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from support import text_files

MPIS = {
    "openmpi": ("mpirun.openmpi", "apt install openmpi-bin"),
    "hydra": ("mpirun.mpich", "apt install mpich"),
    "intel": (os.path.join(sys.prefix, "bin", "mpiexec.hydra"), "pip install impi-rt"),
}
"""By dialect, the program that only this MPI has, and how to get it."""


def folder_of(dialect: str, tmp_path: Path) -> str:
    """A folder whose mpirun is this MPI's; skips the test where it is not installed."""
    name, package = MPIS[dialect]
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"needs {package}")
    if os.path.isabs(name):
        return os.path.dirname(program)
    folder = tmp_path / "bin"  # Debian's names, for where several are installed
    folder.mkdir()
    text_files.write_script(folder, "mpirun", f'exec {program} "$@"')
    return str(folder)
