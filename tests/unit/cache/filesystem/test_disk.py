"""The real disk: it reports what the fake disk of other tests reports."""

from __future__ import annotations

import os
import pathlib
import types

import pytest
from support import text_files

from opforge.cache.filesystem.disk import Disk
from opforge.foundation import images, remembered_values
from opforge.foundation.remembered_values import ABSENT


def test_the_real_disk_behaves_as_the_fake_one(tmp_path):
    real = Disk()
    path = str(tmp_path / "a")
    assert real.stamp(path) is None and real.digest(path) is None and not real.exists(path)
    text_files.write(tmp_path, "a", "int a;")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert real.stamp(path).size == 6
    assert real.digest(path) == text_files.sha256("int a;")
    os.mkfifo(tmp_path / "pipe")  # would wait for a writer for ever
    assert real.digest(str(tmp_path)) is None and real.digest(str(tmp_path / "pipe")) is None
    assert real.exists(str(tmp_path / "dangling")) and real.stamp(str(tmp_path / "dangling")) is None
    assert real.stamp("with\0nul") is None


def test_flat_stamps_are_the_stamps_one_after_the_other(tmp_path):
    path = text_files.write(tmp_path, "a", "int a;")
    missing = os.path.join(tmp_path, "missing")
    assert Disk().flat_stamps([path, missing, "with\0nul"]) == [*Disk().stamp(path), *ABSENT, *ABSENT]


OVERLAY, FUSE, EXT4, LUSTRE, BTRFS, EROFS = 0x794C7630, 0x65735546, 0xEF53, 0x0BD00BD0, 0x9123683E, 0xE0F5E1E2


@pytest.fixture
def file_on(tmp_path, monkeypatch):
    """Returns a file of a made-up file system: with these times, device, type, and number of the mount."""
    path = text_files.write(tmp_path, "a", "int a;")

    def make(changed, modified, major, is_read_only, kind, mount=b""):
        times = {"st_mtime_ns": modified, "st_ctime_ns": changed, "st_atime_ns": modified}
        status = os.stat_result((0o100644, 7, os.makedev(major, 1), 1, 0, 0, 6, 0, 0, 0), times)
        flags = types.SimpleNamespace(f_flag=os.ST_RDONLY * is_read_only)
        monkeypatch.setattr(os, "stat", lambda *_path, **_options: status)
        monkeypatch.setattr(os, "statvfs", lambda _path: flags)
        monkeypatch.setattr(images, "file_system_type", lambda _path: kind)
        monkeypatch.setattr(remembered_values, "_system", [b"boot"])
        monkeypatch.setattr(remembered_values, "_mounts", {})
        monkeypatch.setattr(remembered_values, "mount_id", lambda _path, _follows: mount)
        return path

    return make


@pytest.mark.parametrize(
    ("changed", "modified", "major", "is_read_only", "kind", "is_image"),
    [
        (5_000_000_001, 5_000_000_000, 7, True, 0x73717368, False),
        (5_000_000_000, 5_000_000_000, 7, True, 0x73717368, True),
        (5_000_000_000, 5_000_000_000, 7, False, EXT4, True),
        (5_000_000_000, 5_000_000_000, 0, False, BTRFS, True),
        (5_000_000_001, 5_000_000_001, 7, False, EXT4, False),
        (5_000_000_001, 5_000_000_001, 7, True, EXT4, False),
        (5_000_000_001, 5_000_000_001, 7, True, EROFS, True),
        (5_000_000_001, 5_000_000_001, 0, True, EROFS, True),
        (5_000_000_000, 5_000_000_000, 0, True, LUSTRE, True),
        (5_000_000_000, 5_000_000_000, 0, False, OVERLAY, True),
        (5_000_000_001, 5_000_000_001, 0, False, OVERLAY, False),
        (5_000_000_000, 5_000_000_000, 0, False, FUSE, True),
        (5_000_000_000, 5_000_000_000, 0, False, LUSTRE, False),
    ],
)
def test_stamps_in_images_hold_a_number_from_the_content(
    file_on, changed, modified, major, is_read_only, kind, is_image
):
    """A time of change at a whole second is an image's, unless it is that of a network's file system (Lustre).

    erofs shows one time as all three. Here the system does not number its mounts.
    """
    path = file_on(changed, modified, major, is_read_only, kind)
    first = Disk().stamp(path)
    pathlib.Path(path).write_text("int b;")
    second = Disk().stamp(path)
    assert (first != second) is is_image
    assert [first.inode, second.inode] == [7, 7] or is_image
    assert Disk().flat_stamps([path]) == [*second]


@pytest.mark.parametrize(("major", "kind"), [(7, EXT4), (0, BTRFS)])
def test_on_a_disk_that_is_written_to_the_mount_is_in_the_stamp_of_a_file_that_may_be_an_images(
    file_on, monkeypatch, major, kind
):
    stamps, reads = [], []
    monkeypatch.setattr(images, "content", lambda *place: reads.append(place) or 1)
    for mount in (b"one", b"one", b"two"):
        path = file_on(5_000_000_000, 5_000_000_000, major, False, kind, mount)
        stamps.append(Disk().stamp(path))
        assert Disk().flat_stamps([path, path]) == [*stamps[-1]] * 2
    assert stamps[0] == stamps[1] != stamps[2] and reads == []


def test_a_mount_has_an_id_of_its_own(tmp_path):
    mount = remembered_values.mount_id(str(tmp_path))
    if not mount:
        pytest.skip("a mount has an id of its own from Linux 6.8 on")
    (tmp_path / "link").symlink_to("/proc/meminfo")
    assert mount == remembered_values.mount_id(str(tmp_path)) != remembered_values.mount_id("/proc/meminfo")
    assert remembered_values.mount_id(str(tmp_path / "link")) == remembered_values.mount_id("/proc/meminfo")
    assert remembered_values.mount_id(str(tmp_path / "link"), follows=False) == mount
    assert remembered_values.mount_id(str(tmp_path / "missing")) == b""


def test_without_statx_a_file_that_may_be_an_images_is_known_by_its_content(file_on, monkeypatch):
    path = file_on(5_000_000_000, 5_000_000_000, 7, False, EXT4, b"one")

    def missing(*_arguments):
        raise OSError("statx")

    by_mount = Disk().stamp(path)
    monkeypatch.setattr(remembered_values, "mount_id", missing)
    stamp = Disk().stamp(path)
    assert stamp != by_mount
    pathlib.Path(path).write_text("int b;")
    assert stamp != Disk().stamp(path)


def test_the_type_of_a_file_system_is_read(tmp_path):
    assert images.file_system_type("/proc") == 0x9FA0
    assert images.file_system_type(str(tmp_path / "missing")) == 0
