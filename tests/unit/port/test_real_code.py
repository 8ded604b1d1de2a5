"""`opforge port` over the code of other projects: it converts, still compiles, and a second run does nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import warnings

import pytest

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.port.files import port_file, python_files

FOLDERS = ("distributed", "utils", "testing/_internal/distributed", "optim", "cuda", "xpu")
LARGEST = 8_000
"""Bytes. Larger files have the same constructs and take most of the time."""
VENDOR_WORDS = re.compile(r"cuda|xpu|nccl")


def sources(package, folders):
    root = os.path.dirname(importlib.util.find_spec(package).origin)
    for path in python_files([os.path.join(root, folder) for folder in folders]):
        if os.path.getsize(path) <= LARGEST:
            with open(path, encoding="utf-8") as file:
                if VENDOR_WORDS.search(file.read()):
                    yield path, os.path.relpath(path, root)


def ported_copies(tmp_path, package, folders):
    """Ports copies, checks what must hold for each, and returns the numbers (files, changes, left)."""
    files = changes = left = 0
    for path, name in sources(package, folders):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        result = port_file(str(copy), write=True)
        assert result.problem == ""
        if result.changes:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes and the like are in the authors' code
                compile(copy.read_text(encoding="utf-8"), name, "exec", dont_inherit=True)
            again = port_file(str(copy), write=False)
            assert again.text == again.before and again.changes == 0 and again.left == result.left, name
        else:
            assert result.text == result.before
        files, changes, left = files + 1, changes + result.changes, left + result.left
    return files, changes, left


@pytest.mark.test_all("ports a hundred files")
def test_torchs_sources_are_ported(tmp_path):
    files, changes, left = ported_copies(tmp_path, "torch", FOLDERS)
    assert files > 30 and changes > 30 and left > 30


@pytest.mark.test_all("needs accelerate")
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="pip install accelerate")
def test_accelerates_sources_are_ported(tmp_path):
    files, changes, left = ported_copies(tmp_path, "accelerate", [""])
    assert files > 10 and changes and left
