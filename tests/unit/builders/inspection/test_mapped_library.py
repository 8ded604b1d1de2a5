"""A library may hold a model's weights: reading what it exports takes no memory for them."""

from __future__ import annotations

import _ctypes
import os
import shutil
import tracemalloc

import pytest

from opforge.builders.inspection import elf
from opforge.builders.inspection.reader import FileFormatError


def test_a_library_is_not_read_whole(tmp_path):
    path = shutil.copy(_ctypes.__file__, tmp_path / "large.so")
    os.truncate(path, 256 << 20)
    tracemalloc.start()
    try:
        exports = elf.of_library(elf.map_library(path))["exports"]
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "PyInit__ctypes" in exports and peak < 32 << 20


def test_an_empty_file_is_no_library(tmp_path):
    (tmp_path / "empty.so").touch()
    with pytest.raises(FileFormatError, match=r"empty\.so is empty, and no ELF file"):
        elf.map_library(str(tmp_path / "empty.so"))
