"""Tickets: when stamps vouch for an input, when it is hashed, and when the answer is no."""

from __future__ import annotations

import json

import pytest
from support import text_files
from support.fake_disk import SECOND, FakeDisk
from support.text_files import sha256

from opforge.cache.records import stat_record
from opforge.cache.records.inputs import Dependency, Inputs, RootedPath

ROOTS = {"own": "/p", "torch": "/site/torch", "system": "/"}
BINARY = {"file": "x.so", "size": 1, "sha256": "00"}


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


def ticket_of(disk):
    return json.loads(json.dumps(stat_record.make("result", INPUTS, BINARY, ROOTS, disk)))


def by_stamps(ticket, disk, roots=ROOTS):
    return stat_record.holds_by_stamps(ticket, roots, disk)


def by_content(ticket, disk, roots=ROOTS, trust=True):
    return stat_record.holds_by_content(ticket, INPUTS, roots, disk, {}, trust)


def test_an_untouched_tree_holds_by_stamps_and_nothing_is_hashed(disk):
    ticket = ticket_of(disk)
    assert by_stamps(ticket, disk)
    assert by_content(ticket, disk) == (True, "")
    assert disk.hashed == []


def test_a_young_file_is_hashed_until_it_is_of_age(disk):
    disk.write("/p/a.cpp", "int a;")
    ticket = ticket_of(disk)
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk).holds
    assert disk.hashed == ["/p/a.cpp"]
    disk.now += stat_record.RACY_NS + 1
    assert not by_stamps(ticket, disk), "the ticket's own time counts: that is when the stamp was taken"
    assert by_stamps(ticket_of(disk), disk)


def test_a_file_replaced_within_one_tick_is_seen(disk):
    disk.write("/p/a.cpp", "int a;")
    ticket = ticket_of(disk)
    stamp = disk.stamps["/p/a.cpp"]
    disk.write("/p/a.cpp", "int b;")
    disk.stamps["/p/a.cpp"] = stamp
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk) == (False, "/p/a.cpp has changed")


def test_a_file_from_the_future_is_hashed_each_time(disk):
    disk.write("/p/a.cpp", "int a;", at=disk.now + 3600 * SECOND)
    ticket = ticket_of(disk)
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk).holds
    assert disk.hashed == ["/p/a.cpp"]


def test_a_clock_that_runs_backwards_makes_files_young_not_trusted(disk):
    disk.now -= 3600 * SECOND
    ticket = ticket_of(disk)
    assert not by_stamps(ticket, disk)
    disk.files["/p/a.cpp"] = b"int b;"
    assert by_content(ticket, disk) == (False, "/p/a.cpp has changed")


def test_an_edit_under_an_old_mtime_is_seen_by_its_ctime(disk):
    ticket = ticket_of(disk)
    old = disk.stamps["/p/inc/a.h"]
    disk.write("/p/inc/a.h", "int H;", at=disk.now, mtime_ns=old.mtime_ns)
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk) == (False, "/p/inc/a.h has changed")


def test_a_young_ctime_makes_a_file_young(disk):
    disk.stamps["/p/a.cpp"] = disk.stamps["/p/a.cpp"]._replace(ctime_ns=disk.now)
    ticket = ticket_of(disk)
    assert not by_stamps(ticket, disk)
    disk.files["/p/a.cpp"] = b"int b;"
    assert not by_content(ticket, disk).holds


def test_a_file_swapped_for_one_with_the_same_times_is_seen_by_its_inode(disk):
    ticket = ticket_of(disk)
    disk.files["/p/a.cpp"] = b"int b;"
    disk.stamps["/p/a.cpp"] = disk.stamps["/p/a.cpp"]._replace(inode=999)
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk) == (False, "/p/a.cpp has changed")


def test_a_touched_file_holds_by_content_and_its_renewed_ticket_by_stamps(disk):
    ticket = ticket_of(disk)
    disk.write("/p/a.cpp", "int a;")
    disk.now += 10 * SECOND
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk).holds
    assert disk.hashed == ["/p/a.cpp"]
    assert by_stamps(ticket_of(disk), disk)


def test_a_file_that_is_gone_is_named(disk):
    ticket = ticket_of(disk)
    disk.remove("/p/inc/a.h")
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk) == (False, "/p/inc/a.h is gone")


def test_another_file_in_a_searched_folder_changes_nothing(disk):
    ticket = ticket_of(disk)
    disk.write("/p/inc/unrelated.h", "")
    disk.now += 10 * SECOND
    assert not by_stamps(ticket, disk), "the folder's stamp asks for a closer look"
    assert by_content(ticket, disk).holds
    assert disk.hashed == []
    assert by_stamps(ticket_of(disk), disk), "once renewed, it holds by stamps again"


def test_a_header_that_shadows_another_is_a_miss(disk):
    ticket = ticket_of(disk)
    disk.write("/p/a.h", "int shadow;")
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk) == (False, "/p/a.h has appeared, and may shadow a header")


def test_a_header_that_answers_has_include_is_a_miss(disk):
    ticket = ticket_of(disk)
    disk.write("/p/inc/gone.h", "")
    assert by_content(ticket, disk) == (False, "/p/inc/gone.h has appeared, and may shadow a header")


def test_a_name_that_appears_within_the_folders_tick_is_seen(disk):
    disk.touch_folder("/p")
    ticket = ticket_of(disk)
    stamp = disk.stamps["/p"]
    disk.write("/p/a.h", "int shadow;")
    disk.stamps["/p"] = stamp
    assert not by_stamps(ticket, disk)
    assert not by_content(ticket, disk).holds


def test_a_seals_new_stamp_with_the_same_contents_holds(disk):
    ticket = ticket_of(disk)
    disk.write("/site/torch-1.dist-info/RECORD", "record")
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk).holds
    assert disk.hashed == ["/site/torch/include/t.h"]


def test_an_upgrade_in_place_with_another_header_is_a_miss(disk):
    ticket = ticket_of(disk)
    disk.write("/site/torch-1.dist-info/RECORD", "record 2")
    disk.write("/site/torch/include/t.h", "int T;")
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk) == (False, "/site/torch/include/t.h has changed")


def test_a_seal_that_is_gone_vouches_for_nothing(disk):
    ticket = ticket_of(disk)
    disk.remove("/site/torch-1.dist-info/RECORD")
    disk.files["/site/torch/include/t.h"] = b"int T;"
    assert not by_stamps(ticket, disk)
    assert by_content(ticket, disk) == (False, "/site/torch/include/t.h has changed")


def test_a_seal_that_was_never_there_does_not_start_to_vouch(disk):
    disk.remove("/site/torch-1.dist-info/RECORD")
    ticket = ticket_of(disk)
    disk.files["/site/torch/include/t.h"] = b"int T;"
    assert not by_stamps(ticket, disk)
    assert not by_content(ticket, disk).holds


def test_going_back_to_earlier_content_holds_again(disk):
    ticket = ticket_of(disk)
    disk.write("/p/a.cpp", "int b;")
    assert not by_content(ticket, disk).holds
    disk.write("/p/a.cpp", "int a;")
    assert by_content(ticket, disk).holds


def test_a_root_that_is_not_here_is_a_reason(disk):
    ticket = ticket_of(disk)
    roots = {"own": "/p", "system": "/"}
    assert not by_stamps(ticket, disk, roots)
    assert by_content(ticket, disk, roots) == (False, "there is no root 'torch' here")


def test_paranoia_hashes_every_file_and_looks_for_every_name(disk):
    ticket = ticket_of(disk)
    assert by_content(ticket, disk, trust=False).holds
    assert sorted(disk.hashed) == ["/p/a.cpp", "/p/inc/a.h", "/site/torch/include/t.h"]
    disk.files["/site/torch/include/t.h"] = b"int T;"
    assert not by_content(ticket, disk, trust=False).holds


def test_a_moved_tree_holds_by_content(disk):
    ticket = ticket_of(disk)
    for path in ["/p/a.cpp", "/p/inc/a.h"]:
        disk.write("/q" + path.removeprefix("/p"), disk.files[path].decode())
    roots = {**ROOTS, "own": "/q"}
    assert not by_stamps(ticket, disk, roots)
    assert by_content(ticket, disk, roots, trust=False).holds


def test_a_stamp_from_before_the_hashing_is_kept_over_a_later_one(disk):
    before = disk.stamp("/p/a.cpp")
    disk.write("/p/a.cpp", "int b;")
    disk.now += 10 * SECOND
    ticket = stat_record.make("result", INPUTS, BINARY, ROOTS, disk, {("own", "a.cpp"): before})
    assert not by_stamps(ticket, disk), "the file has changed since it was hashed"


def test_one_look_up_hashes_a_file_once_for_all_tickets(disk):
    digests: dict[str, str | None] = {}
    for _ticket in range(3):
        assert stat_record.holds_by_content(ticket_of(disk), INPUTS, ROOTS, disk, digests, False).holds
    assert len(disk.hashed) == 3


def test_the_real_disk_answers_as_the_fake_one_does(tmp_path):
    from opforge.cache.filesystem.disk import Disk

    real = Disk()
    path = str(tmp_path / "a")
    assert real.stamp(path) is None and real.digest(path) is None and not real.exists(path)
    text_files.write(tmp_path, "a", "int a;")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert real.stamp(path).size == 6
    assert real.digest(path) == sha256("int a;")
    assert real.digest(str(tmp_path)) is None
    assert real.exists(str(tmp_path / "dangling")) and real.stamp(str(tmp_path / "dangling")) is None
    assert real.stamp("with\0nul") is None
