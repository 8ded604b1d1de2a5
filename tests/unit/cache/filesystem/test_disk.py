"""The real disk: it reports what the fake disk of other tests reports."""

from __future__ import annotations

import os

from support import text_files

from opforge.cache.filesystem.disk import ABSENT, Disk


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
