"""A checkout may hold bytecode, which no digest covers: Python must neither run nor write any there."""

from __future__ import annotations

import importlib.util
import os
import py_compile

import pytest
from support.kernels.projects import python_project
from support.text_files import write

import opforge
from opforge.packages.load import get_kernel as loading
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

INIT = """\
VALUE = "checked"
from .sub import VALUE as SUB
def later():
    from .part import VALUE
    from .sub.deep import VALUE as deep
    return VALUE, deep
def without_source():
    from . import only
    return only
"""
PATHS = ("__init__.py", "part.py", "sub/__init__.py", "sub/deep.py")
CHECKED = 'VALUE = "checked"\n'


@pytest.fixture
def variant(tmp_path, monkeypatch):
    """The folder of a packed variant in which each module has bytecode of another text."""
    folder = python_project(tmp_path / "checkout", "acme/plain", "1", INIT)
    python = os.path.join(folder, reading.read(folder).python)
    for path in PATHS[1:]:
        write(os.path.join(python, os.path.dirname(path)), os.path.basename(path), CHECKED)
    pack(reading.read(folder), folder, Options(tried=False))
    variant = os.path.join(folder, "build", "torch-universal")
    for path in (*PATHS, "only.py"):
        source = write(tmp_path / "other", path.replace("/", "_"), INIT.replace("checked", "other"))
        file = os.path.join(variant, path)
        cached = importlib.util.cache_from_source(file) if path != "only.py" else f"{file}c"
        py_compile.compile(source, cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    monkeypatch.setenv("OPFORGE_KERNELS", f"acme/plain={folder}")
    loading.reset()
    yield variant
    loading.reset()


def files(folder):
    return sorted(os.path.join(parent, name) for parent, _folders, names in os.walk(folder) for name in names)


def test_only_what_the_digests_cover_is_run(variant):
    before = files(variant)
    module = opforge.get_kernel("acme/plain")
    assert (module.VALUE, module.SUB, *module.later()) == ("checked",) * 4
    with pytest.raises(ImportError):
        module.without_source()
    importlib.invalidate_caches()
    assert files(variant) == before
