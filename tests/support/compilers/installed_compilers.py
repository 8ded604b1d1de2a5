"""The toolchains of this machine, for tests that need a real one."""

from __future__ import annotations

import importlib
import os

import pytest

from opforge.builders import toolchains
from opforge.builders.toolchains import host, zig
from opforge.cache.current import current_store
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout

HOSTS = ("g++", "clang++", "zig")
DEVICES = {"nvcc": "cuda:sm_80+sm_90a+ptx", "hipcc": "hip:gfx90a"}
INSTALL = {
    "g++": "apt install g++",
    "clang++": "apt install clang",
    "zig": "pip install ziglang",
    "hipcc": "apt install hipcc",
}


def needs(missing_compilers, name):
    if missing_compilers[name]:
        pytest.skip(f"{name} is not here: {missing_compilers[name]}")


def made(name):
    if name in HOSTS:
        layout, disk = Layout(current_store().layout.root), Disk()
        return zig.ZigToolchain(layout, disk, os.uname().machine) if name == "zig" else host.HostToolchain(layout, disk)
    module, _, attribute = toolchains.TOOLCHAINS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(current_store().layout, Disk())


def use(monkeypatch, missing_compilers, name):
    needs(missing_compilers, name)
    if name in ("g++", "clang++"):
        monkeypatch.setenv("CXX", name)


def has_libcxx():
    """Whether zig has built the libc++ of this machine's processor before."""
    folder = os.environ.get("ZIG_GLOBAL_CACHE_DIR") or os.path.expanduser("~/.cache/zig")
    return any("libc++.a" in files for _at, _folders, files in os.walk(folder))
