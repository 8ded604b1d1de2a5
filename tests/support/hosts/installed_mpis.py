"""The MPIs on which the launcher's tests run, if they are installed."""

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
"""By dialect: a program that only this MPI has, and how to install it."""


def folder_of(dialect: str, tmp_path: Path) -> str:
    """Returns a folder with the mpirun of this MPI. Skips the test if it is not installed."""
    name, package = MPIS[dialect]
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"needs {package}")
    if os.path.isabs(name):
        return os.path.dirname(program)
    folder = tmp_path / "bin"  # Debian installs several MPIs side by side, under these names
    folder.mkdir()
    text_files.write_script(folder, "mpirun", f'exec {program} "$@"')
    return str(folder)
