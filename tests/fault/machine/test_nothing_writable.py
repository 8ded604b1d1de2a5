"""A store that cannot be written: with a memory it is hashed once; without one it is searched as a layer."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
from support import child_processes, sample_ops, text_files

from opforge.builders.load_op import find
from opforge.builders.lookup import finder
from opforge.builders.toolchains.discovery import probe
from opforge.cache.filesystem.disk import Disk
from opforge.errors import PrebuiltRequiredError

pytestmark = pytest.mark.compile
SOURCE = f'#include <cmath>\n#include "value.h"\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n'
LOAD = """
import os
from support import sample_ops
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
print(op.value(), op.origin)
"""


@pytest.fixture
def cls(tmp_path, mount_tmpfs, monkeypatch):
    """A builder whose entry is in a store on a disk that is now read-only. Nothing is remembered yet."""
    disk = mount_tmpfs("size=8m")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(disk / "store"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk / "caches"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = tmp_path / "op"
    cls = sample_ops.plain_op(folder, source=SOURCE)
    text_files.write(folder, "value.h", "#define VALUE 5\n")
    cls().build()
    shutil.rmtree(disk / "caches", ignore_errors=True)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    probe.reset()
    return cls


@pytest.fixture
def plans(monkeypatch):
    """A list that gets an item for each plan that is made."""
    plans, real = [], finder.make_plan
    monkeypatch.setattr(finder, "make_plan", lambda *arguments: plans.append(1) or real(*arguments))
    return plans


@pytest.fixture
def digests(monkeypatch):
    """A list that gets the path of each file that is hashed. The clock is 10 s ahead: new stamps are trusted."""
    paths, real = [], Disk.digest
    monkeypatch.setattr(Disk, "digest", lambda disk, path: paths.append(path) or real(disk, path))
    monkeypatch.setattr(Disk, "now_ns", lambda _disk: time.time_ns() + 10 * 10**9)
    return paths


def test_an_entry_is_found_without_a_compiler_and_without_reading_headers_of_the_system(cls, plans, digests, tmp_path):
    for _process in range(2):
        entry = find(cls().spec()).entry
        assert entry.origin == "cache" and not plans
    assert {os.path.dirname(path) for path in digests} == {str(tmp_path / "op")}, "the op's own files alone"
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {"FOLDER": str(tmp_path / "op"), "PATH": str(empty), "CXX": None}
    assert child_processes.run_python(LOAD, env=environment).split() == ["5", "cache"]


def test_a_changed_file_of_the_op_is_seen(cls, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    header = tmp_path / "op" / "value.h"
    old = header.stat()
    header.write_text("#define VALUE 6\n")
    os.utime(header, ns=(old.st_atime_ns, old.st_mtime_ns))
    with pytest.raises(PrebuiltRequiredError, match=r"value\.h has changed"):
        cls().load()
    header.write_text("#define VALUE 5\n")
    text_files.write(tmp_path / "op", "cmath", "#define VALUE 7\n")
    with pytest.raises(PrebuiltRequiredError, match="cmath has appeared, and may shadow a header"):
        cls().load()


def test_other_flags_of_the_user_are_seen(cls, plans, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-DOTHER")
    entry, rejected = find(cls().spec())
    assert entry is None and plans
    assert any("CXXFLAGS='-DOTHER' is set here" in skipped.reason for skipped in rejected)


def test_paranoid_and_ignoring_what_is_prebuilt_compare_every_input(cls, plans, digests, monkeypatch):
    for name, value in (("OPFORGE_PARANOID", "1"), ("OPFORGE_PREBUILT", "ignore")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            digests.clear(), plans.clear()
            assert find(cls().spec()).entry.origin == "cache"
            assert plans and any(path.endswith("/cmath") for path in digests)


def test_where_something_can_be_remembered_a_read_only_store_is_hashed_once(cls, plans, digests, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert find(cls().spec()).entry.origin == "cache"
    assert plans and any(path.endswith("/cmath") for path in digests)
    digests.clear(), plans.clear()
    probe.reset()
    assert find(cls().spec()).entry.origin == "cache"
    assert not plans and not digests


def test_a_store_that_was_copied_is_hashed_once(cls, plans, digests, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    shutil.copytree(os.environ["OPFORGE_CACHE_DIR"], tmp_path / "copy")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "copy"))
    for is_first in (True, False):
        digests.clear(), plans.clear()
        probe.reset()
        assert find(cls().spec()).entry.origin == "cache"
        assert bool(plans) == bool(digests) == is_first
