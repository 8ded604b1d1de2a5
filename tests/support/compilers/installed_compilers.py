"""The compilers that are installed on this machine, for tests that need a real one."""

from __future__ import annotations

import importlib
import os

import pytest

from opforge.builders import toolchains
from opforge.builders.toolchains import host, zig
from opforge.cache.current_store import current_store
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout

HOSTS = ("g++", "clang++", "zig")
DEVICES = {"nvcc": "cuda:sm_80+sm_90a+ptx", "hipcc": "hip:gfx90a"}
"""Device compilers, each with a target that it builds for."""
INSTALL = {
    "g++": "apt install g++",
    "clang++": "apt install clang",
    "zig": "pip install ziglang",
    "hipcc": "apt install hipcc",
}


def skip_if_missing(missing_compilers, name):
    """Skips the test if the compiler is not installed; `missing_compilers` maps each to why it is missing, or empty."""
    if missing_compilers[name]:
        pytest.skip(f"{name} is not installed: {missing_compilers[name]}")


def skip_if_zig_is_slow():
    """Skips the test if zig would have to build its libc++ first."""
    if not os.environ.get("TEST_ZIG") and not _zig_has_libcxx():
        pytest.skip("zig builds its libc++ first, which takes minutes: set TEST_ZIG=1 to wait for it")


def _zig_has_libcxx():
    """Returns whether zig has built the libc++ of this machine's processor before."""
    cache = os.environ.get("ZIG_GLOBAL_CACHE_DIR") or os.path.expanduser("~/.cache/zig")
    return any("libc++.a" in files for _folder, _folders, files in os.walk(cache))


def select(monkeypatch, missing_compilers, name):
    """Makes opforge use this compiler; skips the test if it is not installed."""
    skip_if_missing(missing_compilers, name)
    if name in ("g++", "clang++"):
        monkeypatch.setenv("CXX", name)


def toolchain_of(name):
    """Returns the toolchain of a compiler, or of a name in TOOLCHAINS."""
    if name in HOSTS:
        layout, disk = Layout(current_store().layout.root), Disk()
        return zig.ZigToolchain(layout, disk, os.uname().machine) if name == "zig" else host.HostToolchain(layout, disk)
    module, _, attribute = toolchains.TOOLCHAINS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(current_store().layout, Disk())
