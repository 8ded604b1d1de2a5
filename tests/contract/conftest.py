"""Fixtures of the contract tests: each accelerator in turn, and the compilers of this machine."""

from __future__ import annotations

import shutil

import pytest
from support.compilers.installed_compilers import INSTALL
from support.devices import every_accelerator

from opforge.builders.toolchains import nvcc, triton, zig
from opforge.errors import ToolchainNotFoundError


@pytest.fixture(params=every_accelerator.ALL)
def accelerator(request, monkeypatch, tmp_path):
    """Each accelerator, without the launcher's variables."""
    for variable in ("LOCAL_RANK", "LOCAL_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    return every_accelerator.make(request.param, monkeypatch, tmp_path)


@pytest.fixture(scope="session")
def missing_compilers():
    """The compilers of this machine: name -> why it is missing, empty if it is installed."""
    problems = {name: "" if shutil.which(name) else INSTALL[name] for name in ("g++", "clang++", "hipcc")}
    for name, find in (("zig", zig.find), ("nvcc", nvcc.find), ("triton", triton.find)):
        try:
            find()
            problems[name] = ""
        except ToolchainNotFoundError as error:
            problems[name] = str(error)
    return problems
