"""When a look-up saves a memo, and when the next look-up uses it."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from support import fake_disk, text_files
from support.compilers import fake_compiler

from opforge.builders.lookup.finder import find
from opforge.builders.toolchains import find_toolchain, probe
from opforge.cache.filesystem.disk import Disk
from opforge.cache.store import Store


def test_a_second_look_up_makes_no_plan_and_runs_no_compiler(op, monkeypatch):
    monkeypatch.setattr(probe, "try_run", lambda *_arguments, **_options: pytest.fail("a compiler was run"))
    assert op.find() == (op.entry_key, False)
    assert len(op.memo_paths()) == 1


def test_a_paranoid_look_up_neither_uses_nor_saves_a_memo(op, monkeypatch):
    shutil.rmtree(op.folder / "store" / "v1" / "answers")
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    assert op.find() == (op.entry_key, True)
    assert op.memo_paths() == []


def test_a_memo_is_for_the_spec_that_a_builder_returns(op):
    plain = op.cls

    class WithVersion(plain):
        def spec(self):
            return super().spec()._replace(version="2")

    WithVersion.__module__ = plain.__module__
    op.cls = WithVersion
    assert op.find() == (None, True), "the published entry is of another version"
    op.cls = plain
    assert op.find() == (op.entry_key, False)


def test_no_memo_is_saved_for_a_toolchain_of_the_caller(op):
    shutil.rmtree(op.folder / "store" / "v1" / "answers")
    spec = op.cls().spec()
    assert find(spec, op.store(), find_toolchain=find_toolchain).entry.key == op.entry_key
    assert op.memo_paths() == []


def test_no_memo_is_saved_if_a_folder_on_path_is_racy(op, monkeypatch):
    """A compiler that is replaced within one tick of a coarse clock keeps its stamp, and so does its folder."""
    shutil.rmtree(op.folder / "store" / "v1" / "answers")
    os.utime(op.early)
    monkeypatch.setattr(fake_disk.LaterDisk, "now_ns", Disk.now_ns)
    op.find()
    assert op.memo_paths() == []


def test_no_memo_is_saved_if_an_input_is_racy(op):
    shutil.rmtree(op.folder / "store" / "v1" / "answers")
    soon = time.time() + 3600
    os.utime(op.source_folder / "value.h", (soon, soon))
    assert op.find() == (op.entry_key, True)
    assert op.memo_paths() == []


def test_a_change_between_the_plan_and_its_memo_makes_the_next_look_up_plan_again(op, monkeypatch):
    shutil.rmtree(op.folder / "store" / "v1" / "answers")
    real = Store.get

    def get(*arguments):
        fake_compiler.create(op.early, version="13.1")
        text_files.write(op.folder, "mine/include", "")
        return real(*arguments)

    monkeypatch.setattr(Store, "get", get)
    op.find()
    monkeypatch.setattr(Store, "get", real)
    assert op.find() == (None, True)


def test_a_memo_that_cannot_be_saved_is_no_error(op):
    shutil.rmtree(op.folder / "store" / "v1" / "answers")
    text_files.write(op.folder / "store" / "v1", "answers", "a file in the folder's place")
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, True)


def test_a_hit_updates_old_mtimes_of_the_memo_and_the_stat_record(op):
    (memo_path,) = op.memo_paths()
    record_path = json.loads(memo_path.read_text())["filed"]
    for path in (memo_path, record_path):
        os.utime(path, (1, 1))
    op.find()
    assert os.stat(record_path).st_mtime > 1 and os.stat(memo_path).st_mtime > 1
