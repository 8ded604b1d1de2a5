"""Flags of a setup.py: setuptools compiles in the project's folder, and opforge in a folder of its own."""

from __future__ import annotations

import os

import pytest
from support import text_files

from opforge.compat.cpp_extension.extension_builder import _from_here


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-Ii"], ["-I{0}/i"]),
        (["-I", "i"], ["-I", "{0}/i"]),
        (["-isystem", "i", "-iquotei"], ["-isystem", "{0}/i", "-iquote{0}/i"]),
        (["-include", "w.h"], ["-include", "{0}/w.h"]),
        (["-imacros", "./w.h"], ["-imacros", "{0}/w.h"]),
        (["@flags"], ["@{0}/flags"]),
        (["-Li"], ["-L{0}/i"]),
        (["-I/usr/include", "-O2", "-DX=i", "w.h"], ["-I/usr/include", "-O2", "-DX=i", "w.h"]),
        (["-include", "vector"], ["-include", "vector"]),
        (["-Inone"], ["-Inone"]),
    ],
)
def test_paths_are_relative_to_the_project(tmp_path, monkeypatch, flags, expected):
    for name in ("i/a.h", "w.h", "flags"):
        text_files.write(tmp_path, name, "")
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()
    assert _from_here(flags) == [flag.replace("{0}", here) for flag in expected]
