"""What is on this machine: compilers with their versions and problems, and the cache."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
from support import text_files

from opforge.report import machine


def test_a_missing_host_compiler_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    host = machine.compilers()[0]
    assert host["name"] == "host" and host["problem"].startswith("No C++ compiler was found. Looked for:")


def triton_row():
    (row,) = [row for row in machine.compilers() if row["name"] == "triton"]
    return row


@pytest.fixture
def fake_host_compiler(monkeypatch):
    """A host compiler without a program, and Triton's toolchain alone: no compiler runs here."""
    from opforge.builders.toolchains import triton

    identity = (("search", "fake"), ("version", "g++ 12"))
    monkeypatch.setattr(machine, "TOOLCHAINS", {"triton": machine.TOOLCHAINS["triton"]})
    monkeypatch.setattr(triton, "HostToolchain", lambda layout, disk: SimpleNamespace(identity=lambda: identity))


def test_triton_has_its_own_version_and_path_and_not_the_host_compilers(tmp_path, monkeypatch, fake_host_compiler):
    from opforge.builders.toolchains import triton

    package = tmp_path / "triton"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "3.99.1"\n')
    monkeypatch.setattr(triton, "find", lambda: str(tmp_path))
    assert triton_row() == {"name": "triton", "path": str(package), "version": "3.99.1", "problem": "", "missing": ""}


def test_a_triton_that_is_not_installed_says_how_to_install_it_and_is_no_problem(monkeypatch, fake_host_compiler):
    from opforge.builders.toolchains import triton

    monkeypatch.setattr(triton, "package_folder", lambda name: None)
    row = triton_row()
    assert row["version"] == "not installed: pip install 'opforge[triton]'" and row["path"] == row["problem"] == ""


def test_a_missing_device_compiler_is_described_in_full_and_is_no_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "TOOLCHAINS", {"nvcc": machine.TOOLCHAINS["nvcc"]})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    os.chmod(text_files.write(tmp_path, "g++", "#!/bin/sh\n"), 0o700)
    (row,) = [row for row in machine.compilers() if row["name"] == "nvcc"]
    assert row["version"] == f"CUDA_HOME={tmp_path}/cuda, which has no bin/nvcc" and row["problem"] == ""
    assert f"CUDA_HOME={tmp_path}/cuda, which has no bin/nvcc" in row["missing"]


def test_the_versions_of_both_compilers_are_named():
    both = {"version": "g++ 12", "cuda version": "nvcc 13.0", "cuda ptxas sha256": "ab"}
    assert machine.compiler_versions(both) == "nvcc 13.0 with g++ 12"
    assert machine.compiler_versions({"version": "g++ 12", "triton version": "3.9"}) == "triton 3.9 with g++ 12"
    assert machine.compiler_versions({"version": "zig 0.17"}) == "zig 0.17" and machine.compiler_versions({}) == ""


def test_opencl_has_no_compiler_of_its_own(monkeypatch):
    toolchain = SimpleNamespace(argv=("g++",), root="opencl", identity=lambda: (("version", "g++ 12"),))
    module = SimpleNamespace(Toolchain=lambda layout, disk: toolchain)
    monkeypatch.setitem(sys.modules, "fake_toolchain", module)
    monkeypatch.setattr(machine, "TOOLCHAINS", {"opencl": "fake_toolchain:Toolchain"})
    row = machine.compilers()[0]
    assert row["version"] == "no compiler of its own: g++ 12 puts its source text into the library"


def test_a_cache_that_does_not_exist_yet_is_not_created(own_store):
    record = machine.cache()
    assert record["path"] == str(own_store) and record["chosen"] and not record["exists"] and record["problem"] == ""
    assert record["entries"] == 0 and not own_store.exists()


def test_a_cache_that_cannot_be_trusted_is_a_problem(own_store):
    own_store.mkdir()
    own_store.chmod(0o777)
    advice = f"Run: chmod go-w {own_store}; or set OPFORGE_TRUSTED_FOLDERS={own_store} if you trust everybody who may"
    assert machine.cache()["problem"] == f"{own_store} can be written by everybody. {advice} write there."
