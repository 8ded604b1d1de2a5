"""A folder that is held by its descriptor: what it is taken for, what is reached through it, what is removed."""

from __future__ import annotations

import os
import subprocess
import tempfile

import pytest
from support.owners import ME, STRANGER, as_root

from opforge.cache import current_store, held
from opforge.foundation import file_owners
from opforge.jits import private_folder


@pytest.fixture(autouse=True)
def nothing_is_held(monkeypatch):
    """Forgets what a test holds. Its descriptors are closed by the tests that open them."""
    monkeypatch.setattr(file_owners, "held", {})


@pytest.fixture
def folder(tmp_path):
    """A new private folder in one that everybody may write."""
    tmp_path.chmod(0o777)
    path = tmp_path / "new"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def root(folder):
    path = held.hold(str(folder))
    yield path
    if file_owners.is_held(path):
        os.close(held.handles(path + "/x")[0])


def test_it_is_trusted_whatever_its_parent_is_and_reached_under_another_name(folder, root):
    assert file_owners.folder_problem(str(folder), ME) is not None
    assert file_owners.folder_problem(root, ME) is None and file_owners.folder_problem(f"{root}/v2/entries", ME) is None
    folder.rename(folder.parent / "moved")
    folder.mkdir()
    current_store.prepare(root, ME)
    assert sorted(os.listdir(folder.parent / "moved")) == ["CACHEDIR.TAG", "v2"] and not os.listdir(folder)


def test_what_is_in_it_is_judged(folder, root):
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    assert file_owners.folder_problem(f"{root}/open", ME)[0] == f"{root}/open can be written by everybody"
    (folder / "link").symlink_to("..")
    assert "leads out of the folder that is held" in file_owners.folder_problem(f"{root}/link/x", ME)[0]
    (folder / "far").symlink_to(folder.parent)
    assert file_owners.folder_problem(f"{root}/far", ME)[0] == f"{folder.parent} can be written by everybody"


def test_another_process_reaches_it_only_with_the_descriptor(folder, root):
    (folder / "file").write_text("here")
    command = ["cat", f"{root}/file"]
    handles = held.handles(f"{root}/file")
    assert subprocess.run(command, pass_fds=handles, capture_output=True, check=True).stdout == b"here"
    assert subprocess.run(command, capture_output=True, check=False).returncode
    assert held.handles(str(folder)) == () == held.handles(f"{root}0/file")


def test_a_folder_that_was_put_in_its_place_is_refused(folder):
    (folder / "planted").touch()
    with pytest.raises(PermissionError, match="Another user has put a folder in its place"):
        held.hold(str(folder))
    (folder / "planted").unlink()
    folder.chmod(0o755)
    with pytest.raises(PermissionError):
        held.hold(str(folder))
    (folder.parent / "link").symlink_to(folder)
    with pytest.raises(OSError):
        held.hold(str(folder.parent / "link"))
    assert not file_owners.held


@as_root
def test_a_folder_of_another_user_is_refused(folder):
    os.chown(folder, STRANGER, STRANGER)
    with pytest.raises(PermissionError):
        held.hold(str(folder))


def test_a_descriptor_that_was_closed_and_is_another_folders_now_is_an_error(folder, root, tmp_path):
    (handle,) = held.handles(root + "/x")
    os.close(handle)
    assert "was closed" in file_owners.folder_problem(f"{root}/v2", ME)[0]
    other = os.open(tmp_path, os.O_RDONLY)
    if other != handle:
        os.dup2(other, handle)
        os.close(other)
    try:
        with pytest.raises(current_store.CacheDirError, match=r"the descriptor of .* was closed"):
            current_store.prepare(root, ME)
        (tmp_path / "thesis").touch()
        held.empty(root)
        assert (tmp_path / "thesis").exists()
    finally:
        os.close(handle)


def test_it_is_emptied_through_the_descriptor(folder, root):
    current_store.prepare(root, ME)
    folder.rename(folder.parent / "moved")
    folder.mkdir()
    (folder / "thesis").touch()
    held.empty(root)
    assert not os.listdir(folder.parent / "moved") and (folder / "thesis").exists()


def test_a_temporary_folder_is_held_where_others_may_rename_it_and_let_go_at_the_end(folder, monkeypatch):
    """A program's library and what torch opens of it lie in such folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    monkeypatch.setattr(private_folder, "_made", {})
    with current_store.temporary("opforge-") as root:
        (name,) = {*os.listdir(folder.parent)} - {"new"}
        os.rename(folder.parent / name, folder.parent / "moved")
        folder.rename(folder.parent / name)
        (folder.parent / name / "thesis").touch()
        with open(f"{root}/program", "x"):
            assert os.listdir(folder.parent / "moved") == ["program"]
    assert not os.listdir(folder.parent / "moved") and os.listdir(folder.parent / name) == ["thesis"]
    assert not file_owners.held and not os.path.exists(f"{root}/program")
    assert os.path.dirname(private_folder.temporary()) == file_owners.HELD
    private_folder._remove()
    assert {*os.listdir(folder.parent)} == {"moved", name}
    held.let_go(*file_owners.held)
