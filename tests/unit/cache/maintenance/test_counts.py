"""What is counted of look-ups: by each process in memory, in a file of the user when it ends, and added up there."""

from __future__ import annotations

import json
import os
import time

import pytest
from support import child_processes

from opforge.cache.maintenance import counts
from opforge.fast_path import lookup
from opforge.foundation import files, remembered_values, remembered_values_writer

STORE = "/some/store"
HITS = "from opforge.fast_path import lookup\nlookup.count('/some/store', cached=1, saved=2.5)\n"


def folder():
    return remembered_values.folders()[0]


def all_of(store=STORE):
    return counts.read(store).all


def lines():
    with open(os.path.join(folder(), "counts")) as file:
        return file.read().splitlines()


def write(name, *content):
    with open(os.path.join(folder(), name), "a") as file:
        file.write("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in content))


@pytest.fixture
def private():
    files.make_folder(folder())
    return folder()


def test_counting_writes_nothing_before_the_process_ends():
    child_processes.run_python(HITS + f"import os; assert not os.path.exists({folder()!r})")
    assert all_of().hits == 1 and all_of().amounts["saved"] == 2.5 and all_of("/other").hits == 0
    assert len(lines()) == 1


def test_each_of_64_processes_adds_one_line():
    children = """
import os, sys
begin, end = os.pipe()
children = []
for _ in range(64):
    child = os.fork()
    if not child:
        os.close(end)
        lookup.count('/some/store', cached=1, saved=0.5)
        os.read(begin, 1)
        sys.exit()
    children.append(child)
os.close(end)  # now they all end
assert not any(os.waitpid(child, 0)[1] for child in children)
"""
    child_processes.run_python(HITS + children)
    assert all_of().hits == 65 and len(lines()) == 65


def test_a_forked_child_writes_what_it_counts_and_not_what_its_parent_has():
    child_processes.run_python(HITS + "import os, sys\nif os.fork(): os.wait()\n" + HITS)
    assert all_of().hits == 3 and len(lines()) == 2


def test_what_a_killed_process_has_counted_is_lost_and_nothing_else():
    child_processes.run_python(HITS)
    child = child_processes.start_python(HITS + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    child.communicate()
    assert child.returncode == -9 and all_of().hits == 1


def test_where_nothing_can_be_written_the_process_ends_as_ever(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert child_processes.run_python(HITS) == "" and all_of().hits == 0
    assert not counts.zero(STORE)


def test_counts_in_a_link_or_a_folder_of_others_are_neither_written_nor_read(private, tmp_path):
    os.symlink(tmp_path / "elsewhere", os.path.join(private, "counts"))
    child_processes.run_python(HITS)
    assert not os.path.exists(tmp_path / "elsewhere")
    os.unlink(os.path.join(private, "counts"))
    write("counts", [time.time(), STORE, {"cached": 7}])
    os.chmod(private, 0o777)
    assert all_of().hits == 0


def test_days_are_added_up_and_old_ones_count_in_the_whole_alone(private):
    now = time.time()
    for days, hits in ((0, 1), (10, 20), (100, 300)):
        write("counts", [now - days * 86400, STORE, {"cached": hits, "missed": hits}])
    shown = counts.read(STORE)
    assert (shown.today.hits, shown.days.hits, shown.all.hits) == (1, 21, 321) and shown.all.rate == 0.5
    assert abs(shown.all.since - (now - 100 * 86400)) < 1 and shown.since_zero is None
    assert counts.read("/none").all.rate is None


def test_zero_begins_a_new_count_and_keeps_the_old_one(private):
    write("counts", [time.time(), STORE, {"cached": 5}], [time.time(), "/other", {"cached": 2}])
    assert counts.zero(STORE) and counts.read(STORE).since_zero.hits == 0
    write("counts", [time.time(), STORE, {"cached": 3}])
    shown = counts.read(STORE)
    assert shown.since_zero.hits == 3 and shown.all.hits == 8 and counts.read("/other").since_zero is None


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        [1, STORE],
        [1, STORE, {"cached": "x"}],
        ["x", STORE, {}],
        [1, STORE, {"cached": -1}],
        [1e99, STORE, {}],
    ],
)
def test_a_damaged_line_is_left_out(private, line):
    write("counts", line, [time.time(), STORE, {"cached": 1, "of_a_later_opforge": "x"}])
    assert all_of().hits == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', '{"format": 1, "stores": {"/some/store": {"all": 1}}}'])
def test_damaged_sums_count_as_none(private, text):
    write("counts.json", text)
    write("counts", [time.time(), STORE, {"cached": 1}])
    assert all_of().hits == 1
    assert counts.zero(STORE) and all_of().hits == 1


def test_a_long_file_is_set_aside_and_added_up_later(private, monkeypatch):
    monkeypatch.setattr(counts, "GRACE_SECONDS", -1.0), monkeypatch.setattr(counts, "MAX_COUNTS_BYTES", 400)
    for number in range(1, 4):  # each is added up when the next is set aside
        write("counts", *([time.time(), STORE, {"cached": 1, "saved": 0.5}] for _ in range(10)))
        counts.fold()
        assert not os.path.exists(os.path.join(private, "counts")) and all_of().hits == 10 * number
    assert len([name for name in os.listdir(private) if name[-1].isdecimal()]) == 1
    lookup.count(STORE, cached=1), remembered_values_writer.write_counts()
    counts.fold()
    assert len(lines()) == 1 and counts.read(STORE).today.hits == 31 and all_of().amounts["saved"] == 15


def test_a_file_that_nobody_adds_up_stays_bounded(private, monkeypatch):
    monkeypatch.setattr(remembered_values_writer, "MAX_COUNTS_BYTES", 20)
    for _ in range(20):
        lookup.count(STORE, cached=1), remembered_values_writer.write_counts()
    assert os.stat(os.path.join(private, "counts")).st_size < 16 * 20 + 100


def test_a_file_that_a_killed_process_has_added_up_is_not_added_twice(private, monkeypatch):
    monkeypatch.setattr(counts, "GRACE_SECONDS", -1.0), monkeypatch.setattr(counts, "MAX_COUNTS_BYTES", 0)
    write("counts.1", [time.time(), STORE, {"cached": 4}])
    write("counts", [time.time(), STORE, {"cached": 1}])
    with monkeypatch.context() as patch:
        patch.setattr(counts.os, "unlink", lambda path: (_ for _ in ()).throw(OSError("killed here")))
        counts.fold()
    assert os.path.exists(os.path.join(private, "counts.1")) and all_of().hits == 5
    write("counts", [time.time(), STORE, {}])
    counts.fold()
    assert not os.path.exists(os.path.join(private, "counts.1")) and all_of().hits == 5


def test_the_counts_of_a_store_that_was_not_used_for_longest_are_dropped(private, monkeypatch):
    monkeypatch.setattr(counts, "GRACE_SECONDS", -1.0), monkeypatch.setattr(counts, "MAX_STORES", 2)
    monkeypatch.setattr(counts, "MAX_COUNTS_BYTES", 0)
    write("counts.1", *([time.time() - number, f"/{number}", {"cached": 1}] for number in range(4)))
    write("counts", [time.time(), STORE, {}])
    counts.fold()
    assert [counts.read(f"/{number}").all.hits for number in range(4)] == [1, 1, 0, 0]


def test_the_counts_of_a_machine_that_is_gone_are_removed(private):
    remembered_values_writer.remember("x", remembered_values.FlatStamps(), {})
    other = os.path.join(os.path.dirname(private), "other")
    os.makedirs(os.path.join(other, "lookups"), mode=0o700)
    for name in ("counts", "counts.json", "counts.lock", "counts.17"):
        with open(os.path.join(other, name), "w"):
            pass
    os.utime(os.path.join(other, "lookups"), (1, 1))
    remembered_values_writer.remove_unused()
    assert not os.path.exists(other)
