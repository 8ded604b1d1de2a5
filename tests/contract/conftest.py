"""Which compilers this machine has."""

from __future__ import annotations

import shutil

import pytest
from support.compilers.installed_compilers import INSTALL

from opforge.builders.toolchains import nvcc, triton, zig
from opforge.errors import ToolchainNotFoundError


@pytest.fixture(scope="session")
def places():
    """What is on this machine: name -> why it is not, empty where it is."""
    missing = {name: "" if shutil.which(name) else INSTALL[name] for name in ("g++", "clang++", "hipcc")}
    for name, find in (("zig", zig.find), ("nvcc", nvcc.find), ("triton", triton.find)):
        try:
            find()
            missing[name] = ""
        except ToolchainNotFoundError as error:
            missing[name] = str(error)
    return missing
