"""The bytecode that an installation has made: Python runs it unchecked, so what has become of it is noticed."""

from __future__ import annotations

import json
import os
import py_compile
import re
import shutil
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source

import pytest
import torch
from support import child_processes
from support.text_files import write

import opforge
from opforge.errors import KernelIncompatibleError
from opforge.packages.form import version
from opforge.packages.installed import releases
from opforge.packages.load import get_kernel as loading
from opforge.packages.load import tree
from opforge.packages.registry import verify_installed


@pytest.fixture
def bytecode(registry):
    """Installs acme/plain; returns the path of the bytecode of its `__init__.py`."""
    registry.publish()
    (part,) = registry.install().variants
    return os.path.join(part.folder, cache_from_source("__init__.py"))


def replace(path, content):
    os.chmod(path, 0o644)
    with open(path, "wb") as file:
        file.write(content)


def loaded():
    loading.reset()
    tree._modules.clear()
    return opforge.get_kernel("acme/plain", 1)


def cut(path, _scratch):
    """Leaves it as a power cut does."""
    with open(path, "rb") as file:
        content = file.read()
    replace(path, content[: len(content) // 2])


def of_another(path, scratch):
    write(scratch, "other.py", "VALUE = 2\n")
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(scratch / "other.py"), str(scratch / "other.pyc"), invalidation_mode=mode)
    replace(path, (scratch / "other.pyc").read_bytes())


def gone(path, _scratch):
    os.unlink(path)


def linked(path, scratch):
    """Puts a link into its place: the content is right, and may change without a stamp of the link."""
    os.rename(path, scratch / "elsewhere.pyc")
    os.symlink(scratch / "elsewhere.pyc", path)


@pytest.mark.parametrize("change", [cut, of_another, gone, linked])
def test_what_was_changed_is_not_used_and_is_made_again(registry, bytecode, change, tmp_path):
    change(bytecode, tmp_path)
    assert loaded().VALUE == 1
    (release,) = releases.matching(registry.root, "acme/plain", version.ANY)
    (problem,) = verify_installed.problems(release, deep=False)
    assert "File hash mismatch for __pycache__/__init__." in problem
    assert verify_installed.problems(registry.install(), deep=True) == []
    assert loaded().VALUE == 1 and type(loaded().__loader__) is SourceFileLoader


def test_the_bytecode_of_a_copied_environment_is_used(registry, bytecode, monkeypatch):
    copy = registry.scratch / "copy"
    shutil.copytree(registry.root.path, copy)
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", str(copy))
    assert loaded().VALUE == 1 and type(loaded().__loader__) is SourceFileLoader
    assert loaded().__file__.startswith(str(copy))


def test_what_another_python_adds_changes_nothing(registry, bytecode):
    write(os.path.dirname(bytecode), "__init__.cpython-399.pyc", "")
    (release,) = releases.matching(registry.root, "acme/plain", version.ANY)
    assert verify_installed.problems(release, deep=True) == []
    assert type(loaded().__loader__) is SourceFileLoader


def test_what_an_older_opforge_has_installed_is_loaded(registry, bytecode):
    path = registry.root.release("acme/plain", "1")
    with open(path) as file:
        value = json.load(file)
    for part in value["variants"]:
        del part["bytecode"]
    write(os.path.dirname(path), os.path.basename(path), json.dumps(value))
    (release,) = releases.matching(registry.root, "acme/plain", version.ANY)
    assert loaded().VALUE == 1 and verify_installed.problems(release, deep=True) == []


LOAD = """
import torch, opforge
print(opforge.get_kernel("acme/plain", 1).VALUE)
"""


def test_bytecode_of_another_level_of_optimization_is_not_used(registry, bytecode, tmp_path):
    """`python -OO` reads other files than those that the installation has made."""
    write(tmp_path, "other.py", "VALUE = 2\n")
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "other.py"), str(tmp_path / "other.pyc"), invalidation_mode=mode)
    planted = bytecode.replace(".pyc", ".opt-2.pyc")
    shutil.copyfile(tmp_path / "other.pyc", planted)
    # A stand-in: Python would compile all of torch at this level.
    write(
        tmp_path / "site", "torch.py", f'__version__ = "{torch.__version__}"\nclass version: cuda = hip = xpu = None\n'
    )
    path = os.pathsep.join([str(tmp_path / "site"), child_processes.environment()["PYTHONPATH"]])
    names = {"OPFORGE_KERNEL_PATH": registry.root.path, "PYTHONPATH": path}
    for level in ("2", "", "2"):  # the last one remembers it
        assert child_processes.run_python(LOAD, env={**names, "PYTHONOPTIMIZE": level}).strip() == "1"
        time.sleep(1.1)
    (release,) = releases.matching(registry.root, "acme/plain", version.ANY)
    (problem,) = verify_installed.problems(release, deep=True)
    assert problem.endswith(f"bytecode that no installation has made: __pycache__/{os.path.basename(planted)}")


@pytest.mark.parametrize("name", ["helper.pyc", "helper/__init__.pyc"])
def test_bytecode_of_a_module_that_the_package_lacks_is_a_change(registry, tmp_path, name):
    """Python imports such a file as a module of its own, and no digest covers it."""
    registry.publish(text="try:\n    from .helper import VALUE\nexcept ImportError:\n    VALUE = 1\n")
    (part,) = registry.install().variants
    assert loaded().VALUE == 1
    write(tmp_path, "other.py", "VALUE = 2\n")
    planted = os.path.join(part.folder, name)
    os.chmod(part.folder, 0o755)
    py_compile.compile(str(tmp_path / "other.py"), planted)
    with pytest.raises(KernelIncompatibleError, match=rf"Unknown file: {re.escape(name)}\): install it again"):
        loaded()
    for deep in (False, True):
        (release,) = releases.matching(registry.root, "acme/plain", version.ANY)
        (problem,) = verify_installed.problems(release, deep)
        assert problem.endswith(f"Unknown file: {name}")
    registry.install()
    assert loaded().VALUE == 1 and not os.path.exists(planted)


def test_a_checkout_runs_no_bytecode_in_a_folder_without_sources(tmp_path, monkeypatch):
    text = "try:\n    from .helper.inner import VALUE\nexcept ImportError:\n    VALUE = 1\n"
    write(tmp_path / "tree", "__init__.py", text)
    write(tmp_path, "other.py", "VALUE = 2\n")
    py_compile.compile(str(tmp_path / "other.py"), str(tmp_path / "tree/helper/inner.pyc"))
    assert tree.import_tree(str(tmp_path / "tree"), "tree_of_sources", bytecode=False).VALUE == 1
    monkeypatch.delitem(sys.modules, "tree_of_sources")


def test_a_source_without_bytecode_of_the_installation_runs_no_other(registry, bytecode, tmp_path):
    path = registry.root.release("acme/plain", "1")
    with open(path) as file:
        value = json.load(file)
    for part in value["variants"]:
        part["bytecode"] = {}
    write(os.path.dirname(path), os.path.basename(path), json.dumps(value))
    of_another(bytecode, tmp_path)
    assert loaded().VALUE == 1
