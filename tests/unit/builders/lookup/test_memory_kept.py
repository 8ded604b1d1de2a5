"""When a look-up is remembered, and when the next one uses it."""

from __future__ import annotations

import json
import os
import time

import pytest
from support import fake_disk, text_files
from support.compilers import fake_compiler

from opforge.builders.lookup.finder import find
from opforge.builders.toolchains import find_toolchain
from opforge.builders.toolchains.discovery import probe
from opforge.cache.filesystem.disk import Disk
from opforge.cache.store import Store
from opforge.warm import machine_folder


def test_a_second_look_up_makes_no_plan_and_runs_no_compiler(op, monkeypatch):
    monkeypatch.setattr(probe, "try_run", lambda *_arguments, **_options: pytest.fail("a compiler was run"))
    assert op.find() == (op.entry_key, False)
    assert len(op.memory_paths()) == 1


def test_a_paranoid_look_up_neither_remembers_nor_recalls(op, monkeypatch):
    op.forget()
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    assert op.find() == (op.entry_key, True)
    assert op.memory_paths() == []


def test_a_memory_is_for_the_spec_that_a_builder_returns(op):
    plain = op.cls

    class WithVersion(plain):
        def spec(self):
            return super().spec()._replace(version="2")

    WithVersion.__module__ = plain.__module__
    op.cls = WithVersion
    assert op.find() == (None, True), "the published entry is of another version"
    op.cls = plain
    assert op.find() == (op.entry_key, False)


def test_nothing_is_remembered_for_a_toolchain_of_the_caller(op):
    op.forget()
    spec = op.cls().spec()
    assert find(spec, op.store(), find_toolchain=find_toolchain).entry.key == op.entry_key
    assert op.memory_paths() == []


def test_nothing_is_remembered_if_a_folder_on_path_is_racy(op, monkeypatch):
    """A compiler that is replaced within one tick of a coarse clock keeps its stamp, and so does its folder."""
    op.forget()
    os.utime(op.early)
    monkeypatch.setattr(fake_disk.LaterDisk, "now_ns", Disk.now_ns)
    op.find()
    assert op.memory_paths() == []


def test_nothing_is_remembered_if_an_input_is_racy(op):
    op.forget()
    soon = time.time() + 3600
    os.utime(op.source_folder / "value.h", (soon, soon))
    assert op.find() == (op.entry_key, True)
    assert op.memory_paths() == []


def test_a_change_between_the_plan_and_the_end_of_the_look_up_makes_the_next_look_up_plan_again(op, monkeypatch):
    op.forget()
    real = Store.get

    def get(*arguments):
        fake_compiler.create(op.early, version="13.1")
        text_files.write(op.folder, "mine/include", "")
        return real(*arguments)

    monkeypatch.setattr(Store, "get", get)
    op.find()
    monkeypatch.setattr(Store, "get", real)
    assert op.find() == (None, True)


def test_a_memory_that_cannot_be_written_is_no_error(op):
    op.forget()
    text_files.write(op.folder, "caches", "a file in the folder's place")
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, True)


def test_without_a_cache_folder_the_runtime_folder_is_used(op, monkeypatch, tmp_path):
    op.forget()
    text_files.write(op.folder, "caches", "a file in the folder's place")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, False)


def test_a_memory_in_a_folder_that_others_can_write_is_not_used(op):
    (path,) = op.memory_paths()
    path.parent.chmod(0o777)
    assert op.find() == (op.entry_key, True)


def test_the_memory_is_bounded(op, monkeypatch):
    monkeypatch.setattr(machine_folder, "MAX_LOOKUPS", 4)
    for number in range(12):
        monkeypatch.setenv("LANG", str(number))
        op.find()
    assert 2 <= len(op.memory_paths()) <= 4
    assert op.find() == (op.entry_key, False), "the newest are kept"


def test_a_hit_notes_the_use_of_an_entry_once_an_hour(op):
    (memory_path,) = op.memory_paths()
    pointer = json.loads(memory_path.read_text())["value"]["pointer"]
    os.utime(pointer, (1, 1))
    op.find()
    assert os.stat(pointer).st_mtime > 1
