"""When stamps prove that inputs are unchanged, and what counts as a change of their contents."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
from support.fake_disk import SECOND, FakeDisk
from support.text_files import sha256

from opforge.cache.records import validity
from opforge.cache.records.inputs import Answer, Dependency, Inputs, RootedPath
from opforge.foundation.remembered_values import RACY_NS, FlatStamps

ROOT_PATHS = {"own": "/p", "torch": "/site/torch", "system": "/"}


@pytest.fixture
def disk():
    disk = FakeDisk()
    disk.touch_folder("/p")
    disk.touch_folder("/p/inc")
    disk.write("/p/a.cpp", "int a;")
    disk.write("/p/inc/a.h", "int h;")
    disk.write("/site/torch-1.dist-info/RECORD", "record")
    disk.write("/site/torch/include/t.h", "int t;")
    disk.now += 60 * SECOND
    disk.hashed.clear()
    return disk


INPUTS = Inputs(
    files=(
        Dependency("own", "a.cpp", sha256("int a;")),
        Dependency("own", "inc/a.h", sha256("int h;")),
        Dependency("torch", "include/t.h", sha256("int t;"), "torch"),
    ),
    names=("a.h", "gone.h"),
    searched=(RootedPath("own", ""), RootedPath("own", "inc")),
    present=(RootedPath("own", "inc/a.h"),),
    folders=(RootedPath("own", ""), RootedPath("own", "inc")),
    trusted_trees=(("torch", RootedPath("torch", "../torch-1.dist-info/RECORD")),),
)


class Record(NamedTuple):
    """Stamps as a look-up remembers them."""

    stamped: validity.Stamped
    at: int


def new_record(disk, stamps=()):
    """Returns the stamps of the inputs as they are now; those in `stamps` were taken before."""
    return Record(validity.Observation(ROOT_PATHS, disk, dict(stamps)).stamps(INPUTS.to_json()), disk.now)


def by_stamps(record, disk):
    """Returns whether the stamps are still those that were remembered, and could be remembered at all."""
    stamped = [*record.stamped.files, *record.stamped.others]
    stamps = [number for _path, stamp in stamped for number in stamp]
    can_be_remembered = record.stamped.is_complete and not FlatStamps.of(stamped).is_racy(record.at)
    return can_be_remembered and disk.flat_stamps(path for path, _stamp in stamped) == stamps


def by_content(disk, root_paths=ROOT_PATHS):
    """Returns why the contents are not what an entry was built from, or None."""
    return validity.Observation(root_paths, disk).problem(INPUTS.to_json())


def test_an_untouched_tree_holds_by_stamps_and_nothing_is_hashed(disk):
    record = new_record(disk)
    assert by_stamps(record, disk)
    assert disk.hashed == []
    assert by_content(disk) is None


def test_a_racy_file_is_hashed_until_its_stamp_is_taken_later(disk):
    disk.write("/p/a.cpp", "int a;")
    record = new_record(disk)
    assert not by_stamps(record, disk)
    assert by_content(disk) is None
    disk.now += RACY_NS + 1
    assert not by_stamps(record, disk), "the record's own time counts: the stamp was taken then"
    assert by_stamps(new_record(disk), disk)


def test_a_file_replaced_within_one_clock_tick_is_noticed(disk):
    disk.write("/p/a.cpp", "int a;")
    record = new_record(disk)
    stamp = disk.stamps["/p/a.cpp"]
    disk.write("/p/a.cpp", "int b;")
    disk.stamps["/p/a.cpp"] = stamp
    assert not by_stamps(record, disk)
    assert by_content(disk) == "/p/a.cpp has changed"


def test_a_file_from_the_future_is_hashed_each_time(disk):
    disk.write("/p/a.cpp", "int a;", at=disk.now + 3600 * SECOND)
    record = new_record(disk)
    assert not by_stamps(record, disk)
    assert by_content(disk) is None


def test_a_clock_that_runs_backwards_makes_files_racy(disk):
    disk.now -= 3600 * SECOND
    record = new_record(disk)
    assert not by_stamps(record, disk)
    disk.files["/p/a.cpp"] = b"int b;"
    assert by_content(disk) == "/p/a.cpp has changed"


def test_an_edit_that_keeps_the_mtime_is_noticed_by_the_ctime(disk):
    record = new_record(disk)
    old = disk.stamps["/p/inc/a.h"]
    disk.write("/p/inc/a.h", "int H;", at=disk.now, mtime_ns=old.mtime_ns)
    assert not by_stamps(record, disk)
    assert by_content(disk) == "/p/inc/a.h has changed"


def test_a_recent_ctime_makes_a_file_racy(disk):
    disk.stamps["/p/a.cpp"] = disk.stamps["/p/a.cpp"]._replace(ctime_ns=disk.now)
    record = new_record(disk)
    assert not by_stamps(record, disk)
    disk.files["/p/a.cpp"] = b"int b;"
    assert by_content(disk)


def test_a_file_replaced_by_one_with_the_same_times_is_noticed_by_the_inode(disk):
    record = new_record(disk)
    disk.files["/p/a.cpp"] = b"int b;"
    disk.stamps["/p/a.cpp"] = disk.stamps["/p/a.cpp"]._replace(inode=999)
    assert not by_stamps(record, disk)
    assert by_content(disk) == "/p/a.cpp has changed"


def test_a_touched_file_holds_by_content_and_the_renewed_record_by_stamps(disk):
    record = new_record(disk)
    disk.write("/p/a.cpp", "int a;")
    disk.now += 10 * SECOND
    assert not by_stamps(record, disk)
    assert by_content(disk) is None
    assert by_stamps(new_record(disk), disk)


def test_a_file_that_is_gone_is_named(disk):
    record = new_record(disk)
    disk.remove("/p/inc/a.h")
    assert not by_stamps(record, disk)
    assert by_content(disk) == "/p/inc/a.h no longer exists"


def test_an_unrelated_file_in_a_searched_folder_changes_nothing(disk):
    record = new_record(disk)
    disk.write("/p/inc/unrelated.h", "")
    disk.now += 10 * SECOND
    assert not by_stamps(record, disk), "the folder's stamp has changed"
    assert by_content(disk) is None
    assert by_stamps(new_record(disk), disk), "the renewed record holds by stamps"


def test_a_header_that_shadows_another_is_a_miss(disk):
    record = new_record(disk)
    disk.write("/p/a.h", "int shadow;")
    assert not by_stamps(record, disk)
    assert by_content(disk) == "/p/a.h has appeared, and may shadow a header"


def test_a_header_that_makes_a_has_include_true_is_a_miss(disk):
    disk.write("/p/inc/gone.h", "")
    assert by_content(disk) == "/p/inc/gone.h has appeared, and may shadow a header"


def test_a_name_that_appears_within_one_clock_tick_is_noticed(disk):
    disk.touch_folder("/p")
    record = new_record(disk)
    stamp = disk.stamps["/p"]
    disk.write("/p/a.h", "int shadow;")
    disk.stamps["/p"] = stamp
    assert not by_stamps(record, disk)
    assert by_content(disk)


def test_a_new_stamp_of_a_trusted_tree_with_the_same_contents_holds(disk):
    record = new_record(disk)
    disk.write("/site/torch-1.dist-info/RECORD", "record")
    assert not by_stamps(record, disk)
    assert by_content(disk) is None


def test_an_upgrade_in_place_with_another_header_is_a_miss(disk):
    record = new_record(disk)
    disk.write("/site/torch-1.dist-info/RECORD", "record 2")
    disk.write("/site/torch/include/t.h", "int T;")
    assert not by_stamps(record, disk)
    assert by_content(disk) == "/site/torch/include/t.h has changed"


def test_without_its_stamp_file_a_tree_is_not_trusted(disk):
    record = new_record(disk)
    disk.remove("/site/torch-1.dist-info/RECORD")
    disk.files["/site/torch/include/t.h"] = b"int T;"
    assert not by_stamps(record, disk)
    assert by_content(disk) == "/site/torch/include/t.h has changed"


def test_a_stamp_file_that_never_existed_makes_no_tree_trusted(disk):
    disk.remove("/site/torch-1.dist-info/RECORD")
    record = new_record(disk)
    disk.files["/site/torch/include/t.h"] = b"int T;"
    assert not by_stamps(record, disk)
    assert by_content(disk)


def test_a_return_to_the_earlier_content_holds_again(disk):
    disk.write("/p/a.cpp", "int b;")
    assert by_content(disk)
    disk.write("/p/a.cpp", "int a;")
    assert by_content(disk) is None


def test_a_missing_root_is_a_reason(disk):
    root_paths = {"own": "/p", "system": "/"}
    assert by_content(disk, root_paths) == "there is no root 'torch' here"


def test_by_content_every_file_is_hashed(disk):
    assert by_content(disk) is None
    assert sorted(disk.hashed) == ["/p/a.cpp", "/p/inc/a.h", "/site/torch/include/t.h"]
    disk.files["/site/torch/include/t.h"] = b"int T;"
    assert by_content(disk)


def test_a_moved_tree_holds_by_content(disk):
    for path in ["/p/a.cpp", "/p/inc/a.h"]:
        disk.write("/q" + path.removeprefix("/p"), disk.files[path].decode())
    root_paths = {**ROOT_PATHS, "own": "/q"}
    assert by_content(disk, root_paths) is None


def test_a_stamp_from_before_the_hashing_is_recorded_instead_of_a_later_one(disk):
    before = disk.stamp("/p/a.cpp")
    disk.write("/p/a.cpp", "int b;")
    disk.now += 10 * SECOND
    record = new_record(disk, {("own", "a.cpp"): before})
    assert not by_stamps(record, disk), "the file has changed since it was hashed"


def test_one_look_up_hashes_a_file_once_for_all_entries(disk):
    seen = validity.Observation(ROOT_PATHS, disk)
    assert [seen.problem(INPUTS.to_json()) for _number in range(3)] == [None] * 3
    assert len(disk.hashed) == 3


def test_a_file_is_stamped_before_it_is_hashed(disk, monkeypatch):
    """Otherwise an edit between the two would count as unchanged for ever."""
    seen, digest = validity.Observation(ROOT_PATHS, disk), disk.digest

    def edit_afterwards(path):
        text = digest(path)
        disk.write(path, "int edited;")
        return text

    monkeypatch.setattr(disk, "digest", edit_afterwards)
    assert seen.problem(INPUTS.to_json()) is None
    stamped = seen.stamps(INPUTS.to_json())
    disk.now += 60 * SECOND
    assert not by_stamps(Record(stamped, disk.now), disk)


def test_a_loaded_entry_watches_all_but_installed_packages():
    stamp = (1, 2, 3, 4)
    files = ("/p/a.cpp", "/usr/include/by_hand.h", "/venv/lib/python3/site-packages/pkg/csrc/a.h")
    others = ("//p/inc", "//usr/include", "/usr", "//usr/local/include", "/var/lib/dpkg/status")
    others = (*others, "/site-packages/../dist-packages/torch-1.dist-info/RECORD", "/usr/lib/python3/dist-packages/x")
    stamped = validity.Stamped(tuple((path, stamp) for path in files), tuple((path, stamp) for path in others))
    watched = ["/p/a.cpp", "/usr/include/by_hand.h", "//p/inc", "//usr/local/include", "/var/lib/dpkg/status"]
    assert stamped.watched.pairs() == [(path, stamp) for path in watched]


def test_another_value_of_a_variable_that_a_source_reads_and_another_day_are_a_change(disk, monkeypatch):
    monkeypatch.setenv("SCALE", "2")
    today = time.strftime("%Y-%m-%d")
    answers = (
        Answer("variable SCALE", (("", "2"),)),
        Answer("variable UNSET", (("", ""),)),
        Answer("day", (("", today),)),
    )
    observation = validity.Observation(ROOT_PATHS, disk)
    assert observation.problem(INPUTS._replace(answers=answers).to_json()) is None
    monkeypatch.setenv("SCALE", "3")
    assert observation.problem(INPUTS._replace(answers=answers).to_json()) == "the variable SCALE has changed"
    monkeypatch.delenv("SCALE")
    assert observation.problem(INPUTS._replace(answers=answers).to_json()) == "the variable SCALE has changed"
    yesterday = INPUTS._replace(answers=(Answer("day", (("", "2020-01-01"),)),))
    assert observation.problem(yesterday.to_json()) == "the day has changed, and a file has __DATE__"


def test_a_shared_library_that_appears_beside_or_before_the_archive_that_was_linked_is_a_change(disk):
    archive = Dependency("system", "l2/libfoo.a", sha256("archive"))
    disk.write("/l2/libfoo.a", "archive")
    disk.touch_folder("/l1")
    inputs = Inputs(
        files=(archive,), compiler_folders=(RootedPath("system", "l1"), RootedPath("system", "l2"))
    ).to_json()
    assert validity.Observation(ROOT_PATHS, disk).problem(inputs) is None
    for appeared in ("/l1/libfoo.a", "/l1/libfoo.so", "/l2/libfoo.so"):
        disk.write(appeared, "library")
        problem = validity.Observation(ROOT_PATHS, disk).problem(inputs)
        assert problem == f"{appeared} has appeared, and may shadow a header"
        disk.remove(appeared)
    disk.write("/l2/other.so", "library")
    assert validity.Observation(ROOT_PATHS, disk).problem(inputs) is None
