"""These tests run a real compiler; without one they are skipped, with the package's name."""

from __future__ import annotations

import shutil

import pytest
from support.compilers import stable_header as stable_header_of

from opforge.builders.run import object_reuse


def pytest_collection_modifyitems(items):
    for item in items:
        if "/compile/" in item.path.as_posix():
            item.add_marker(pytest.mark.compile)


@pytest.fixture(autouse=True)
def needs_a_compiler():
    if shutil.which("g++") is None:
        pytest.skip("needs g++ (apt install g++)")


@pytest.fixture(autouse=True)
def no_header_of_edits(monkeypatch):
    """A test edits a source once: a precompiled header for further edits would take longer than it saves."""
    monkeypatch.setattr(object_reuse, "EDITING", 0)


@pytest.fixture(scope="session")
def stable_header(shared_store):
    """The launcher of a compiler with a precompiled header of torch's stable ABI, which one of the workers makes."""
    return stable_header_of.launcher(shared_store.parent / "stable-header")


@pytest.fixture
def precompiled(stable_header, monkeypatch):
    """For tests of what a source on the stable ABI does when it is loaded: it compiles in a fourth of the time."""
    monkeypatch.setenv("CXXFLAGS", "-O0")
    monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", stable_header)


@pytest.fixture
def interpreted(monkeypatch):
    """The Triton ops are loaded again, and launched by Triton's interpreter."""
    import torch
    from support.gpu import triton_interpreter

    with triton_interpreter.interpreted(monkeypatch):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="session")
def cuda_driver(tmp_path_factory):
    """The folder of the fake driver of GPUs: processes with another one are forked from another server."""
    from support.gpu import triton_parts

    return triton_parts.fake_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def folder(tmp_path):
    """Where a test's op is to lie; nothing is there yet."""
    return tmp_path / "op"
