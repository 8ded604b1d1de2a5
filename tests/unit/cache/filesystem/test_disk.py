"""The real disk: it reports what the fake disk of other tests reports."""

from __future__ import annotations

import os
import pathlib
import types

import pytest
from support import text_files

from opforge.cache.filesystem.disk import ABSENT, Disk
from opforge.file_systems import images


def test_the_real_disk_behaves_as_the_fake_one(tmp_path):
    real = Disk()
    path = str(tmp_path / "a")
    assert real.stamp(path) is None and real.digest(path) is None and not real.exists(path)
    text_files.write(tmp_path, "a", "int a;")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert real.stamp(path).size == 6
    assert real.digest(path) == text_files.sha256("int a;")
    assert real.digest(str(tmp_path)) is None
    assert real.exists(str(tmp_path / "dangling")) and real.stamp(str(tmp_path / "dangling")) is None
    assert real.stamp("with\0nul") is None


def test_flat_stamps_are_the_stamps_one_after_the_other(tmp_path):
    path = text_files.write(tmp_path, "a", "int a;")
    missing = os.path.join(tmp_path, "missing")
    assert Disk().flat_stamps([path, missing, "with\0nul"]) == [*Disk().stamp(path), *ABSENT, *ABSENT]


@pytest.mark.parametrize(
    ("changed", "major", "is_read_only", "kind", "is_image"),
    [
        (5_000_000_001, 7, True, 0x73717368, False),
        (5_000_000_000, 7, True, 0x73717368, True),
        (5_000_000_000, 7, False, 0x0000EF53, True),
        (5_000_000_000, 0, True, 0x0BD00BD0, True),
        (5_000_000_000, 0, False, 0x794C7630, True),
        (5_000_000_000, 0, False, 0x65735546, True),
        (5_000_000_000, 0, False, 0x0BD00BD0, False),
    ],
)
def test_stamps_in_images_hold_a_number_from_the_content(
    tmp_path, monkeypatch, changed, major, is_read_only, kind, is_image
):
    """A time of change at a whole second is an image's, unless it is that of a network's file system (Lustre)."""
    path = text_files.write(tmp_path, "a", "int a;")
    times = {"st_mtime_ns": 5_000_000_000, "st_ctime_ns": changed, "st_atime_ns": 0}
    status = os.stat_result((0o100644, 7, os.makedev(major, 1), 1, 0, 0, 6, 0, 0, 0), times)
    monkeypatch.setattr(os, "stat", lambda *_path, **_options: status)
    monkeypatch.setattr(os, "statvfs", lambda _path: types.SimpleNamespace(f_flag=os.ST_RDONLY * is_read_only))
    monkeypatch.setattr(images, "file_system_type", lambda _path: kind)
    first = Disk().stamp(path)
    pathlib.Path(path).write_text("int b;")
    second = Disk().stamp(path)
    assert (first != second) is is_image
    assert [first.inode, second.inode] == [7, 7] or is_image
    assert Disk().flat_stamps([path]) == [*second]


def test_the_type_of_a_file_system_is_read(tmp_path):
    assert images.file_system_type("/proc") == 0x9FA0
    assert images.file_system_type(str(tmp_path / "missing")) == 0
