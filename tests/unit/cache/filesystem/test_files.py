"""Files of a store: written whole by one rename, readable by their user alone."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from opforge.cache.filesystem import files


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
