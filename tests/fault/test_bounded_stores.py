"""Stores that evict while other processes build and load: the limit is kept, and every load succeeds."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from support import child_processes, sample_ops

from opforge.cache import current_store, staging
from opforge.cache.layout import Layout
from opforge.cache.maintenance import gc, unneeded
from opforge.cache.records import pins, size_log
from opforge.errors import LoadError, SettingError
from opforge.fast_path import library
from opforge.foundation import remembered_values
from opforge.foundation.remembered_values import RACY_NS

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
BUILD_MANY = """
import os
from support import sample_ops
from opforge.cache.maintenance import gc
gc.GRACE_SECONDS = float(os.environ["GRACE"])
for number in range(int(os.environ["COUNT"])):
    value = int(os.environ["FIRST"]) + number
    op = sample_ops.plain_op(os.environ["FOLDER"] + str(value), name=f"plain{value}", value=value)().load()
    assert op.value() == value
print("done")
"""


@pytest.fixture
def folder(tmp_path):
    """The folder of an op's source."""
    return tmp_path / "op"


@pytest.fixture
def layout(own_store):
    return Layout(str(own_store))


def evict_everything(layout):
    return gc.remove(layout, gc.over_limit(layout, time.time() + 3600, max_size=0))


def test_concurrent_builds_keep_the_size_limit(folder, layout, monkeypatch):
    sample_ops.plain_op(folder)().build()
    size_of_one = size_log.count(layout)
    limit = 3 * size_of_one
    env = {"FOLDER": str(folder), "OPFORGE_CACHE_MAX_SIZE": str(limit), "GRACE": "0.3", "COUNT": "4"}
    processes = [
        child_processes.start_python(BUILD_MANY, env={**env, "FIRST": str(10 * number)}) for number in range(1, 4)
    ]
    highest = 0
    while any(process.poll() is None for process in processes):
        highest = max(highest, size_log.count(layout))
        time.sleep(0.05)
    for process in processes:
        out, err = process.communicate()
        assert out == "done\n", err
    # Without a limit, twelve ops would take twelve times the size of one.
    assert highest < 10 * size_of_one, "only what was just published may be over the limit"
    time.sleep(0.4)
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", str(limit))
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.3)
    sample_ops.plain_op(folder, value=99)().build()
    assert size_log.count(layout) <= limit
    assert os.listdir(layout.path("staging")) == []


def test_a_pinned_entry_outlives_every_limit(folder, layout, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    pinned = sample_ops.plain_op(folder, value=1)().build()
    pins.pin(layout, pinned.key)
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "1")
    for value in (2, 3):
        sample_ops.set_value(folder, value)
        sample_ops.builder_class(folder, "plain", abi="c")().build()
    assert os.listdir(layout.path("entries")) == [pinned.key]


def test_a_limit_that_cannot_be_read_stops_a_build_before_it_begins_but_no_hit(folder, layout, monkeypatch):
    cls = sample_ops.plain_op(folder, value=7001)
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "plenty")
    with pytest.raises(SettingError, match=r"OPFORGE_CACHE_MAX_SIZE='plenty' cannot be used: expected a number with B"):
        cls().build()
    assert not os.listdir(layout.path("entries")) and not os.listdir(layout.path("staging"))
    monkeypatch.delenv("OPFORGE_CACHE_MAX_SIZE")
    cls().build()
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "plenty")
    assert cls().build().origin == "cache"


def test_an_entry_that_is_evicted_between_look_up_and_load_is_built_again(folder, layout, monkeypatch):
    cls = sample_ops.plain_op(folder, value=7002)
    cls().build()
    real, evictions = library.opened_file, []

    def evict_and_open(entry):
        if not evictions:
            evictions.extend(evict_everything(layout))
            assert not os.path.exists(entry.library)
        return real(entry)

    monkeypatch.setattr(library, "opened_file", evict_and_open)
    op = cls().load()
    assert evictions and (op.value(), op.origin) == (7002, "built")
    assert os.path.exists(op.path)


def test_an_entry_that_is_evicted_at_every_load_is_an_error(folder, layout, monkeypatch):
    cls = sample_ops.plain_op(folder, value=7003)
    real, loads = library.opened_file, []

    def evict_and_open(entry):
        loads.append(evict_everything(layout))
        return real(entry)

    monkeypatch.setattr(library, "opened_file", evict_and_open)
    with pytest.raises(LoadError, match="could not be loaded"):
        cls().load()
    assert len(loads) == 2


def test_a_process_that_has_loaded_an_entry_can_use_it_after_its_eviction(folder, layout):
    cls = sample_ops.plain_op(folder, value=7004)
    time.sleep(RACY_NS / 1e9 + 0.1)  # otherwise the second load looks the op up, and builds it
    builder = cls()
    op = builder.load()
    assert evict_everything(layout)
    assert op.value() == 7004 and builder.load() is op
    other = cls()
    again = other.build()
    assert again.origin == "built" and again.key == op.result
    assert other.load() is op, "one module for each entry"
    assert builder.load().value() == 7004


def test_without_its_objects_and_what_look_ups_remember_a_store_works_more_slowly(folder, layout):
    cls = sample_ops.plain_op(folder, value=7005)
    cls().build()
    cls().build()  # which is remembered
    folders = [*remembered_values.folders(), *map(layout.path, ("objects", "peaks", "toolchains", "descriptions"))]
    for folder_of_area in folders:
        shutil.rmtree(folder_of_area, ignore_errors=True)
    assert cls().build().origin == "cache"
    sample_ops.set_value(folder, 6)
    assert cls().load().value() == 6


# -- what killed processes leave ---------------------------------------------------------------------------------------


def test_a_process_that_is_killed_while_it_probes_the_store_leaves_a_folder_that_is_swept(layout, monkeypatch):
    monkeypatch.setattr(os, "rmdir", lambda _path: None)  # as if it were killed just before
    current_store.prepare(layout.root, frozenset({0, os.geteuid()}))
    assert len(os.listdir(layout.path("staging"))) == 1
    assert staging.abandoned(layout) == [], "its process lives"
    dead = child_processes.start_python("pass")
    dead.communicate()
    monkeypatch.setattr(os, "getpid", lambda: dead.pid)
    current_store.prepare(layout.root, frozenset({0, os.geteuid()}))
    monkeypatch.undo()
    assert staging.sweep(layout) == 1
    assert len(os.listdir(layout.path("staging"))) == 1


def test_temporary_files_of_a_killed_process_are_removed_once_they_are_old(folder, layout, own_store):
    entry = sample_ops.plain_op(folder)().build()
    store = own_store / "v2"
    plan = next((store / "plans").iterdir())
    temp_files = [
        *(plan / f"{entry.key}-abc.json.77.0a0a0a0a.tmp", plan / "x.77.0a0a0a0a.tmp"),
        *(store / "toolchains" / "y.json.77.0a0a0a0a.tmp", store / "locks" / "z.owner.77.0a0a0a0a.tmp"),
        *(store / "peaks" / "p.77.0a0a0a0a.tmp", next((store / "objects").iterdir()) / "o.o.77.0a0a0a0a.tmp"),
        next((store / "descriptions").iterdir()) / f"{entry.key}.77.0a0a0a0a.tmp",
    ]
    for path in temp_files:
        path.write_text("half")
    gc.remove(layout, gc.over_limit(layout, time.time()))
    assert all(path.exists() for path in temp_files), "another process may be writing them"
    removed = gc.remove(layout, gc.over_limit(layout, time.time() + 7200))
    assert not [path for path in temp_files if path.exists()]
    assert {eviction.kind for eviction in removed} == {"temporary file"}
    assert sample_ops.builder_class(folder, "plain", abi="c")().build().origin == "cache"


def test_nothing_that_opforge_did_not_make_is_swept(folder, layout, own_store, tmp_path):
    sample_ops.plain_op(folder)().build()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    files = [
        *(own_store / "thesis.tmp", own_store / "data.77.0a0a0a0a.tmp", own_store / "data" / "x.77.0a0a0a0a.tmp"),
        *(own_store / "v2" / "plans" / "notes.tmp", elsewhere / "x.77.0a0a0a0a.tmp", elsewhere / "deep" / "y"),
    ]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        os.utime(path, (1, 1))
    for area in ("objects", "quarantine", "sources"):
        shutil.rmtree(own_store / "v2" / area, ignore_errors=True)
        (own_store / "v2" / area).symlink_to(elsewhere)
    (own_store / "v2" / "logs" / "link").symlink_to(elsewhere)
    gc.remove(layout, gc.over_limit(layout, time.time() + 400 * unneeded.DAY, max_size=0))
    gc.remove(layout, gc.everything(layout))
    assert [path for path in files if not path.exists()] == []


# -- the private folder that replaces a refused one --------------------------------------------------------------------

FALLBACK = """
import os, sys
from support import sample_ops
builder = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")()
op = builder.load()
print(op.path.partition("/v2/")[0], flush=True)
pid = os.fork()
if pid == 0:
    assert op.value() == 5
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
again = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().build()
print(os.path.exists(op.path), op.value(), again.origin)
"""


def test_a_private_folder_is_removed_when_its_process_ends_and_not_when_a_child_does(folder, tmp_path):
    sample_ops.plain_op(folder, value=5)
    refused = tmp_path / "refused"
    refused.mkdir()
    refused.chmod(0o777)
    (tmp_path / "tmp").mkdir()
    env = {"FOLDER": str(folder), "OPFORGE_CACHE_DIR": None, "XDG_CACHE_HOME": str(refused)}
    private, after = child_processes.run_python(FALLBACK, env={**env, "TMPDIR": str(tmp_path / "tmp")}).splitlines()
    assert private.startswith(f"{tmp_path}/tmp/opforge-{os.geteuid()}-")
    assert after == "True 5 cache", "the folder is there after the child's end"
    assert os.listdir(tmp_path / "tmp") == []
    # What this user's processes count on this machine lies there too, in a folder that nobody else can write.
    assert not (refused / "opforge" / "v2").exists()
