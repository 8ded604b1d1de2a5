"""JITs that only have a folder: which files are laid out, which are kept, and what a failure costs."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import types

import pytest

import opforge
from opforge.cache import held
from opforge.cache.current_store import current_store
from opforge.cache.layout import Layout
from opforge.foundation import file_owners
from opforge.jits import adapter, page, private_folder
from opforge.jits.folder import FolderAdapter

MODULE = "opforge_folder_jit"


class Jit(FolderAdapter):
    """A JIT that writes where it is told."""

    name, module, package, versions, holds = "folder-jit", MODULE, "pytest", tuple("123456789"), "host"
    carries = r"code\.(?:o|cubin)"
    folder = ""

    def point(self, folder):
        self.folder = folder
        return lambda: None


@pytest.fixture
def jit(own_store, monkeypatch):
    one = Jit()
    monkeypatch.setitem(sys.modules, MODULE, types.ModuleType(MODULE))
    monkeypatch.setattr(adapter, "every", lambda: {"folder-jit": "folder-jit"})
    monkeypatch.setattr(adapter, "at", lambda path: one)
    return one


def scope():
    return opforge.warm("label", jits=["folder-jit"])


def write(jit, name, content=b"code"):
    path = os.path.join(jit.folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def test_the_compilers_of_a_jit_reach_its_folder_in_a_store_that_is_held_by_a_descriptor(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir(0o700)
    monkeypatch.setattr(file_owners, "held", {})
    store = types.SimpleNamespace(layout=Layout(held.hold(str(tmp_path / "own"))))
    monkeypatch.setattr(private_folder, "writable_store", lambda: store)
    assert subprocess.run(["/bin/ls", private_folder.new("key")], check=False).returncode == 0


def test_a_file_that_is_added_to_a_folder_that_was_found_is_kept(jit):
    with scope():
        write(jit, "module/code.o")
    with scope() as second:
        write(jit, "module/code.cubin")
    assert second.compiled == {"folder-jit": ("module/code.cubin",)}
    with scope() as third:
        assert sorted(os.listdir(os.path.join(jit.folder, "module"))) == ["code.cubin", "code.o"]
    assert third.hits == {"folder-jit": 2} and third.compiled == {"folder-jit": ()}


@pytest.mark.parametrize("is_absolute", [True, False])
def test_an_entry_whose_key_is_a_path_outside_is_set_aside(jit, tmp_path, caplog, is_absolute):
    """As a signer could write it."""
    key = str(tmp_path / "out" / "code.o") if is_absolute else "../../out/code.o"
    made = jit.open("label")
    made.put(key, "code", {"code.o": b"evil"})
    made.close()
    with caplog.at_level(logging.WARNING, "opforge"), scope():
        assert os.listdir(jit.folder) == []
        assert not (tmp_path / "out").exists()
        assert not os.path.exists(os.path.join(jit.folder, "../../out"))
    assert "does not stay inside the package" in caplog.text
    assert not page.folders(current_store().layout)


def test_a_jit_that_cannot_be_pointed_to_a_folder_costs_a_warning(jit, monkeypatch, caplog):
    def point(folder):
        raise AttributeError("the JIT has no such setting")

    monkeypatch.setattr(jit, "point", point)
    with caplog.at_level(logging.WARNING, "opforge"), scope() as begun:
        pass
    assert not jit.active and begun.compiled == {}
    assert "folder-jit/label: its compiled code is neither found nor kept: the JIT has no such setting" in caplog.text


def test_a_disk_that_is_full_costs_a_warning(jit, monkeypatch, caplog):
    def full(target, content, mode=0o600):
        raise OSError(28, "No space left on device", target)

    with scope():
        write(jit, "module/code.o")
    monkeypatch.setattr("opforge.jits.folder.write_file", full)
    with caplog.at_level(logging.WARNING, "opforge"), scope():
        pass
    assert "its compiled code is neither found nor kept: [Errno 28] No space left on device" in caplog.text


def test_a_folder_that_was_removed_meanwhile_is_no_error(jit):
    with scope() as begun:
        shutil.rmtree(jit.folder)
    assert begun.compiled == {"folder-jit": ()}


def test_a_setting_that_cannot_be_restored_costs_a_warning(jit, monkeypatch, caplog):
    def restore():
        raise AttributeError("the JIT is gone")

    monkeypatch.setattr(jit, "point", lambda folder: restore)
    with caplog.at_level(logging.WARNING, "opforge"), scope():
        pass
    assert "jit:folder-jit/label: not all that it compiled is kept: the JIT is gone" in caplog.text
