"""The folders of a store: made private, written whole."""

from __future__ import annotations

import os
import stat
import threading

import pytest
from support import text_files

from opforge.cache import current
from opforge.cache.filesystem import files
from opforge.cache.layout import VERSION, Layout
from opforge.errors import CacheDirError

ME = frozenset({0, os.geteuid()})


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077], ids=lambda mask: f"umask {mask:03o}")
def umask(request):
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_store_is_private_and_trusted_again_whatever_the_umask(tmp_path, umask):
    tmp_path.chmod(0o700)
    root = str(tmp_path / "a" / "b" / "store")
    current.prepare(root, ME)
    assert {mode(at) for at, _folders, _files in os.walk(tmp_path / "a")} == {0o700}
    assert current.find_problem(root, ME) is None
    current.prepare(root, ME)


def test_a_store_is_tagged_for_backups_once(tmp_path):
    current.prepare(str(tmp_path), ME)
    tag = tmp_path / "CACHEDIR.TAG"
    assert tag.read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    inode = tag.stat().st_ino
    current.prepare(str(tmp_path), ME)
    assert tag.stat().st_ino == inode
    assert os.listdir(tmp_path / VERSION / "staging") == []


def test_the_layout_is_as_documented(tmp_path):
    place = Layout("/s")
    assert str(place) == "/s"
    assert place.plan("p") == "/s/v1/plans/p"
    assert place.entry("r") == "/s/v1/entries/r"
    assert place.description("d") == "/s/v1/descriptions/d"
    assert place.path("locks", "p") == "/s/v1/locks/p"


def test_a_file_in_a_folders_place_is_an_error_that_says_so(tmp_path):
    text_files.write(tmp_path, VERSION, "")
    with pytest.raises(CacheDirError, match=r"it cannot be written \(File exists\). Set OPFORGE_CACHE_DIR to a folder"):
        current.prepare(str(tmp_path), ME)


def test_a_file_is_written_whole_private_and_leaves_no_other(tmp_path):
    path = str(tmp_path / "a")
    files.write_file(path, b"one")
    files.write_file(path, b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert mode(path) == 0o600
    assert os.listdir(tmp_path) == ["a"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = str(tmp_path / "a")
    files.write_file(path, b"one")

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
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
