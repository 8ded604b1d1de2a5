"""Stores that evict while others build and load: the limit is kept, and nobody is harmed."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from support import child_processes, gate, polling, sample_ops

from opforge.builders import loader
from opforge.cache.layout import Layout
from opforge.cache.maintenance import gc, pins
from opforge.cache.records import size_log
from opforge.errors import LoadError, SettingError

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
BUILD_MANY = """
import os
from opforge.cache.maintenance import gc as upkeep
upkeep.GRACE_SECONDS = float(os.environ["YOUNG"])
for number in range(int(os.environ["COUNT"])):
    value = int(os.environ["FIRST"]) + number
    op = sample_ops.plain_op(os.environ["FOLDER"] + str(value), name=f"plain{value}", value=value)().load()
    assert op.value() == value
print("well")
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "op"


def bytes_of(store):
    return size_log.count(Layout(str(store)))


def test_growth_stops_where_the_limit_says_under_concurrent_builds(folder, own_store, monkeypatch):
    sample_ops.plain_op(folder)().build()
    one = bytes_of(own_store)
    limit = 4 * one
    env = {"FOLDER": str(folder), "OPFORGE_CACHE_MAX_SIZE": str(limit), "YOUNG": "0.3", "COUNT": "5"}
    processes = [
        child_processes.start_python(BUILD_MANY, env={**env, "FIRST": str(10 * number)}) for number in range(1, 5)
    ]
    highest = 0
    while any(process.poll() is None for process in processes):
        highest = max(highest, bytes_of(own_store))
        time.sleep(0.05)
    for process in processes:
        out, err = process.communicate()
        assert out == "well\n", err
    # Without a limit, twenty ops would take twenty times one.
    assert highest < 16 * one, "what is young may be beyond the limit, and no more than that"
    time.sleep(0.4)
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", str(limit))
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.3)
    sample_ops.plain_op(folder, value=99)().build()
    assert bytes_of(own_store) <= limit
    assert os.listdir(own_store / "v1" / "staging") == []


def test_what_is_pinned_outlives_every_limit(folder, own_store, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    first = sample_ops.plain_op(folder, value=1)().build()
    pins.pin(Layout(str(own_store)), first.key)
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "1")
    for value in (2, 3):
        sample_ops.set_value(folder, value)
        sample_ops.builder_class(folder, "plain", abi="c")().build()
    assert os.listdir(own_store / "v1" / "entries") == [first.key]


def test_a_bad_limit_stops_a_build_before_it_begins_and_no_hit(folder, own_store, monkeypatch):
    cls = sample_ops.plain_op(folder, value=7001)
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "plenty")
    with pytest.raises(SettingError, match=r"OPFORGE_CACHE_MAX_SIZE='plenty' cannot be used: expected a number with B"):
        cls().build()
    assert not os.listdir(own_store / "v1" / "entries") and not os.listdir(own_store / "v1" / "staging")
    monkeypatch.delenv("OPFORGE_CACHE_MAX_SIZE")
    cls().build()
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "plenty")
    assert cls().build().origin == "cache"


def evict(own_store):
    layout = Layout(str(own_store))
    return gc.remove(layout, gc.over_limit(layout, time.time() + 3600, max_size=0))


def test_an_entry_evicted_between_look_up_and_load_is_built_again(folder, own_store, monkeypatch):
    cls = sample_ops.plain_op(folder, value=7002)
    cls().build()
    real, gone = loader.open_library, []

    def late(op, entry):
        if not gone:
            gone.extend(evict(own_store))
            assert not os.path.exists(entry.library)
        return real(op, entry)

    monkeypatch.setattr(loader, "open_library", late)
    builder = cls()
    op = builder.load()
    assert gone and (op.value(), op.origin) == (7002, "built")
    assert os.path.exists(op.path)


def test_an_entry_that_is_evicted_again_and_again_is_an_error_not_an_endless_loop(folder, own_store, monkeypatch):
    cls = sample_ops.plain_op(folder, value=7003)
    real, tries = loader.open_library, []

    def late(op, entry):
        tries.append(evict(own_store))
        return real(op, entry)

    monkeypatch.setattr(loader, "open_library", late)
    with pytest.raises(LoadError, match="could not be loaded"):
        cls().load()
    assert len(tries) == 2


def test_a_process_that_has_loaded_an_entry_goes_on_when_it_is_evicted(folder, own_store):
    cls = sample_ops.plain_op(folder, value=7004)
    builder = cls()
    op = builder.load()
    assert evict(own_store)
    assert op.value() == 7004 and builder.load() is op
    other = cls()
    again = other.build()
    assert again.origin == "built" and again.key == op.result
    assert other.load() is op, "one module a result"
    assert builder.load().value() == 7004


def test_a_removed_objects_folder_and_removed_answers_cost_work_and_nothing_else(folder, own_store):
    cls = sample_ops.plain_op(folder, value=7005)
    cls().build()
    for area in ("answers", "objects", "peaks", "toolchains", "descriptions"):
        shutil.rmtree(own_store / "v1" / area, ignore_errors=True)
    assert cls().build().origin == "cache"
    sample_ops.set_value(folder, 6)
    assert cls().load().value() == 6


# -- what is left of processes that were killed ------------------------------------------------------------------------


def test_a_folder_is_tried_under_a_name_that_a_sweep_finds(folder, own_store, monkeypatch):
    from opforge.cache import current, staging

    place = Layout(str(own_store))
    monkeypatch.setattr(os, "rmdir", lambda _path: None)  # as if it were killed just before
    current.prepare(str(own_store), frozenset({0, os.geteuid()}))
    monkeypatch.undo()
    (left,) = os.listdir(own_store / "v1" / "staging")
    assert staging.abandoned(place) == [], "its process lives"
    monkeypatch.setattr(staging, "_started", lambda _pid: "")
    assert staging.sweep(place) == 1, left


def test_files_that_a_killed_process_had_begun_are_swept_when_they_are_old(folder, own_store):
    entry = sample_ops.plain_op(folder)().build()
    v1 = own_store / "v1"
    plan = next((v1 / "plans").iterdir())
    drafts = [
        *(plan / f"{entry.key}-abc.json.77.0a0a0a0a.tmp", plan / "x.77.0a0a0a0a.tmp"),
        *(v1 / "toolchains" / "y.json.77.0a0a0a0a.tmp", v1 / "locks" / "z.owner.77.0a0a0a0a.tmp"),
        *(v1 / "peaks" / "p.77.0a0a0a0a.tmp", next((v1 / "objects").iterdir()) / "o.o.77.0a0a0a0a.tmp"),
        next((v1 / "descriptions").iterdir()) / f"{entry.key}.77.0a0a0a0a.tmp",
    ]
    layout = Layout(str(own_store))
    for path in drafts:
        path.write_text("half")
    gc.remove(layout, gc.over_limit(layout, time.time()))
    assert all(path.exists() for path in drafts), "somebody may be writing them"
    gone = gc.remove(layout, gc.over_limit(layout, time.time() + 7200))
    assert not [path for path in drafts if path.exists()]
    assert {one.kind for one in gone} == {"unfinished file"}
    assert sample_ops.builder_class(folder, "plain", abi="c")().build().origin == "cache"


# -- events ------------------------------------------------------------------------------------------------------------


def events(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_every_step_of_a_load_is_an_event_with_its_reasons(folder, own_store, tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("OPFORGE_LOG", str(log))
    cls = sample_ops.plain_op(folder, value=5)
    cls().load()
    told = events(log)
    assert [one["event"] for one in told] == ["miss", "build", "load"]
    miss, build, load = told
    assert miss["op"] == "plain" and miss["reasons"] == [f"{own_store}: nothing was built from this plan yet"]
    assert build["op"] == "plain" and build["seconds"] > 0 and len(build["plan"]) == len(build["result"]) == 32
    assert load["origin"] == "built" and load["path"].endswith(".so") and load["seconds"] >= 0
    log.unlink()
    sample_ops.set_value(folder, 6)
    cls().build()
    assert events(log)[0]["reasons"] == [f"{own_store}/v1/entries/{build['result']}: {folder}/value.h has changed"]
    log.unlink()
    entry = cls().build()
    (hit,) = events(log)
    assert (hit["event"], hit["op"], hit["origin"], hit["path"]) == ("hit", "plain", "cache", entry.folder)
    log.unlink()
    cls().build(force=True)
    assert events(log)[0]["reasons"] == ["it was asked for"]


def test_a_damaged_entry_is_an_event(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder)
    entry = cls().build()
    os.chmod(entry.library, 0o700)
    os.truncate(entry.library, 100)
    log = tmp_path / "log"
    monkeypatch.setenv("OPFORGE_LOG", str(log))
    cls().build()
    told = events(log)
    assert [one["event"] for one in told] == ["quarantine", "miss", "build"]
    assert told[0]["path"] == entry.folder and told[0]["reasons"][0].startswith("the library has 100 bytes instead of")


WAIT = """
import os
from opforge.cache.filesystem import lock
lock.FIRST_NOTICE = 0.2
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
print(op.value(), op.origin)
"""


def test_a_wait_is_an_event_and_its_notice_and_its_timeout_name_pid_and_host(folder, tmp_path):
    import re
    import socket

    sample_ops.plain_op(folder, source=gate.SOURCE, value=5)
    gate.close_gate(folder)
    env = {"FOLDER": str(folder), "OPFORGE_LOG": str(tmp_path / "log")}
    first = child_processes.start_python(WAIT, env=env)
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    waiter = child_processes.start_python(WAIT, env=env)
    code = WAIT.replace("op = sample_ops", "try: op = sample_ops").replace(
        "print(", "except Exception as e: print(e)\nelse: print("
    )
    said = child_processes.run_python(code, env={**env, "OPFORGE_LOCK_TIMEOUT": "0.3"}, timeout=30)
    owner = rf"process {first.pid} on {re.escape(socket.gethostname())}, which has been building since \d\d:\d\d:\d\d"
    advice = r"Raise OPFORGE_LOCK_TIMEOUT to wait longer, or end that process\."
    assert re.fullmatch(rf"plain: waited 0\.3 s for {owner}[^\n]*\. {advice}\n", said), said
    time.sleep(0.5)
    gate.open_gate(folder)
    out, err = waiter.communicate(timeout=30)
    assert out == "5 cache\n"
    assert re.search(rf"plain: waiting for {owner}", err), err
    assert first.communicate(timeout=30)[0] == "5 built\n"
    (wait,) = [one for one in events(tmp_path / "log") if one["event"] == "wait"]
    assert (wait["pid"], wait["op"]) == (waiter.pid, "plain") and wait["seconds"] > 0.2 and wait["lock"]


# -- the private folder that stands in for a refused one ---------------------------------------------------------------

FALLBACK = """
import os, sys
builder = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")()
op = builder.load()
place = op.path.partition("/v1/")[0]
print(place, flush=True)
pid = os.fork()
if pid == 0:
    assert op.value() == 5
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
again = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().build()
print(os.path.exists(op.path), op.value(), again.origin)
"""


def test_a_private_folder_goes_with_the_process_that_made_it_and_not_with_its_child(folder, tmp_path):
    sample_ops.plain_op(folder, value=5)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "tmp").mkdir()
    env = {"FOLDER": str(folder), "OPFORGE_CACHE_DIR": None, "XDG_CACHE_HOME": str(shared)}
    place, rest = child_processes.run_python(FALLBACK, env={**env, "TMPDIR": str(tmp_path / "tmp")}).splitlines()
    assert place.startswith(f"{tmp_path}/tmp/opforge-{os.geteuid()}-")
    assert rest == "True 5 cache", "the child's end took nothing away"
    assert os.listdir(tmp_path / "tmp") == []
    assert os.listdir(shared) == []
