"""Files of a store: written whole by one rename, readable by their user alone."""

from __future__ import annotations

import os
import stat
import threading
import time

import pytest

from opforge.foundation import files


def test_a_file_is_written_whole_and_private_and_nothing_else_is_left(tmp_path):
    path = str(tmp_path / "a")
    files.write_file(path, b"one")
    files.write_file(path, b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["a"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = str(tmp_path / "a")
    files.write_file(path, b"one")

    def fail(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        files.write_file(path, b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]


def test_a_rename_that_is_done_and_reported_as_failed_is_a_write(tmp_path, monkeypatch):
    """NFS sends a request again if its answer was lost: the second one finds no file to rename."""
    path, replace, asked = str(tmp_path / "a"), os.replace, []

    def replace_twice(*paths):
        asked.append(paths)
        replace(*paths)
        replace(*paths)

    monkeypatch.setattr(os, "replace", replace_twice)
    files.write_file(path, b"one")
    monkeypatch.setattr(os, "replace", lambda source, _target: os.unlink(source) or replace(source, path))  # swept
    with pytest.raises(FileNotFoundError):
        files.write_file(path, b"two")
    assert (tmp_path / "a").read_bytes() == b"one" and os.listdir(tmp_path) == ["a"] and len(asked) == 1


def test_many_writers_of_one_file_leave_one_whole_file(tmp_path):
    path = str(tmp_path / "a")
    contents = [bytes([number]) * 5000 for number in range(8)]
    threads = [threading.Thread(target=lambda c=c: [files.write_file(path, c) for _ in range(20)]) for c in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a").read_bytes() in contents
    assert os.listdir(tmp_path) == ["a"]


def test_the_time_in_a_folder_is_that_of_its_files(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert files.now_in(str(tmp_path)) == pytest.approx((tmp_path / "file").stat().st_mtime, abs=60)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["open", "unlink"])
def test_in_a_folder_that_cannot_be_written_the_time_is_this_machines(tmp_path, monkeypatch, call):
    def refuse(*_arguments):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, call, refuse)
    assert files.now_in(str(tmp_path)) == pytest.approx(time.time(), abs=60)


def test_a_time_is_renewed_at_most_once_in_an_interval(tmp_path):
    path = str(tmp_path)
    assert not files.renew(path, 60)
    for age in (3600, -3600):  # a time in the future was set by a wrong clock
        os.utime(path, (1, time.time() - age))
        assert files.renew(path, 60) and not files.renew(path, 60)
        assert os.stat(path).st_mtime == pytest.approx(time.time(), abs=60)
    assert not files.renew(path + "/gone", 60)
