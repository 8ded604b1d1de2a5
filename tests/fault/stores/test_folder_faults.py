"""Folders as stores: links, other users, full disks, modes."""

from __future__ import annotations

import errno
import io
import os
import stat
import time

import pytest
from support import child_processes, other_user, owners

from opforge.errors import StoreError
from opforge.remote.stores import open_store
from opforge.remote.stores.folder import tree
from opforge.remote.stores.folder.store import FolderStore


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def store(root):
    return FolderStore(root.as_uri(), str(root), void_seconds=0.5)


def files(root):
    """Returns all files below a folder, also those that are no objects."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_folder_that_is_missing_is_not_made(tmp_path):
    store = open_store((tmp_path / "not-mounted").as_uri())
    for operation in (
        lambda: store.get("x", 1),
        lambda: store.put_if_absent("v1/x", b""),
        lambda: list(store.list("")),
    ):
        with pytest.raises(StoreError, match=r"the folder does not exist\. Check the URL, and that the file system is"):
            operation()
    assert not (tmp_path / "not-mounted").exists()


@pytest.mark.parametrize("place", ["v1/x", "v1", "."])
def test_no_link_is_followed_below_the_root(place, root, store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"outside")
    if place == ".":  # the folder itself may be a link
        link = tmp_path / "link"
        link.symlink_to(root)
        assert open_store(link.as_uri()).put_if_absent("v1/x", b"inside")
        return
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).symlink_to(outside / "x" if place == "v1/x" else outside)
    for operation in (
        lambda: store.get("v1/x", 100),
        lambda: store.download("v1/x", io.BytesIO(), 7),
        lambda: store.put_if_unchanged("v1/x", b"new", "7-0"),
    ):
        with pytest.raises(StoreError, match="link"):
            operation()
    if place == "v1":
        with pytest.raises(StoreError, match="link"):
            store.put_if_absent("v1/y", b"new")
    assert list(store.list("")) == []
    assert files(outside) == ["x"] and (outside / "x").read_bytes() == b"outside"


def test_the_folder_for_incoming_files_may_be_no_link(root, store, tmp_path):
    (root / tree.INCOMING).symlink_to(tmp_path)
    with pytest.raises(StoreError, match="link"):
        store.put_if_absent("x", b"new")


def test_a_pipe_a_folder_or_a_device_in_an_objects_place_is_an_error(root, store):
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(StoreError, match="it is not a regular file"):
            store.get(name, 100)
        assert not store.put_if_absent(name, b"x")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(("mode", "file_mode"), [(0o2775, 0o644), (0o755, 0o644), (0o700, 0o600), (0o1777, 0o644)])
def test_modes_are_those_of_the_root_whatever_the_umask(mode, file_mode, umask, root, store):
    root.chmod(mode)
    before = os.umask(umask)
    try:
        assert store.put_if_absent("v1/topics/op/x", b"1")
        stored = store.get("v1/topics/op/x", 10)
        assert store.put_if_unchanged("v1/topics/op/x", b"2", stored.version)
    finally:
        os.umask(before)
    assert {
        stat.S_IMODE((root / name).stat().st_mode) for name in ("v1", "v1/topics", "v1/topics/op", tree.INCOMING)
    } == {mode}
    assert stat.S_IMODE((root / "v1/topics/op/x").stat().st_mode) == file_mode


@pytest.mark.parametrize("reads", ["get", "download", "replace"])
def test_an_object_that_was_replaced_before_it_was_read_is_read_anew(root, store, reads, monkeypatch):
    """A client of NFS remembers which file has a name, and opens the one that another client has replaced."""
    store.put_if_absent("v1/x", b"old")
    version, opened, open_it = store.get("v1/x", 100).version, [], os.open

    def stale_open(path, *arguments, **options):
        handle = open_it(path, *arguments, **options)
        if path == "x" and not opened:
            opened.append(path)
            (root / "new").write_bytes(b"new")
            os.rename(root / "new", root / "v1/x")
        return handle

    monkeypatch.setattr(os, "open", stale_open)
    if reads == "get":
        assert store.get("v1/x", 100).data == b"new"
    elif reads == "download":
        file = io.BytesIO()
        store.download("v1/x", file, 3)
        assert file.getvalue() == b"new"
    else:
        assert not store.put_if_unchanged("v1/x", b"lost", version)
        assert (root / "v1/x").read_bytes() == b"new"
    assert opened


def test_a_file_handle_that_a_server_does_not_know_any_more_is_opened_again(store, monkeypatch):
    store.put_if_absent("v1/x", b"data")
    open_it, failures = os.open, [errno.ESTALE, errno.ESTALE]

    def open_stale(path, *arguments, **options):
        if path == "x" and failures:
            raise OSError(failures.pop(), "Stale file handle")
        return open_it(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_stale)
    assert store.get("v1/x", 100).data == b"data" and not failures
    failures += [errno.ESTALE] * 9
    with pytest.raises(StoreError, match="get v1/x failed: stale file handle"):
        store.get("v1/x", 100)


def test_nothing_is_left_beside_the_objects(root, store):
    store.put_if_absent("v1/x", b"1")
    store.put_if_absent("v1/x", io.BytesIO(b"2"))
    store.put_if_unchanged("v1/x", b"3", store.get("v1/x", 9).version)
    store.put_if_unchanged("v1/x", b"4", "1-0")
    assert files(root) == ["v1/x"]
    store.delete("v1/x")
    assert files(root) == []


def test_what_killed_writers_left_is_removed_after_a_day(root, store):
    store.put_if_absent("v1/x", b"1")
    old, new = (root / tree.INCOMING / name for name in (f"1.{0:016x}", f"1.{1:016x}"))
    for path in (old, new):
        path.write_bytes(b"part")
    past = time.time() - tree.ABANDONED_SECONDS - 60
    os.utime(old, (past, past))
    store.put_if_absent("v1/y", b"1")
    assert new.exists() and not old.exists()
    assert {entry.name for entry in store.list("")} == {"v1/x", "v1/y"}


def test_a_listing_ends(root, store, monkeypatch):
    for number in range(5):
        store.put_if_absent(f"v1/{number}", b"")
    store.put_if_absent("/".join("v" * 20), b"deep")
    assert len(list(store.list(""))) == 5, "what is deeper than any name of opforge's is not read"
    monkeypatch.setattr("opforge.remote.stores.folder.store.MAX_LISTED", 4)
    with pytest.raises(StoreError, match="there are more than 4 objects"):
        list(store.list("v1/"))


def limited(root, code):
    """Runs code with `store`, in a process that may write files of at most 8192 bytes."""
    head = """
import os, resource
from opforge.remote.stores import open_store
from opforge.errors import StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
store = open_store(os.environ["STORE"])
"""
    return child_processes.run_python(head + code, env={"STORE": root.as_uri()})


def test_a_full_disk_is_an_error_and_leaves_nothing(root):
    code = """
assert store.put_if_absent("v1/x", b"small")
version = store.get("v1/x", 100).version
for put in (store.put_if_absent, lambda _name, data: store.put_if_unchanged("v1/x", data, version)):
    try:
        put("v1/y", b"x" * 10000)
    except StoreError as error:
        print(error)
"""
    output = limited(root, code)
    assert output.count("failed: the file is larger than this process may write") == 2
    assert files(root) == ["v1/x"] and (root / "v1/x").read_bytes() == b"small"


def as_nobody(action):
    """Returns what `action` returns, or the text of its StoreError, in a forked child with another user id."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(other_user.NOBODY)
            os.setuid(other_user.NOBODY)
            try:
                result = repr(action())
            except StoreError as error:
                result = str(error)
            os.write(writer, result.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        result = file.read().decode()
    os.waitpid(child, 0)
    return result


@owners.as_root
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_folder_of_another_user_is_read_and_a_refusal_is_an_error():
    with other_user.shared_folder(0o755) as path:
        store = FolderStore(f"file://{path}", path, void_seconds=0.5)
        store.put_if_absent("v1/x", b"of root")
        version = store.get("v1/x", 100).version
        as_nobody(lambda: None)
        assert as_nobody(lambda: store.get("v1/x", 100).data) == "b'of root'"
        for action in (
            lambda: store.put_if_absent("v1/y", b"new"),
            lambda: store.put_if_unchanged("v1/x", b"new", version),
            lambda: store.delete("v1/x"),
        ):
            assert "failed: permission denied. Ask the folder's owner for access" in as_nobody(action)
        os.chmod(f"{path}/v1/x", 0o600)
        assert "get v1/x failed: permission denied" in as_nobody(lambda: store.get("v1/x", 100))
        os.chmod(path, 0o700)
        assert "the folder cannot be opened (permission denied)" in as_nobody(lambda: store.get("v1/x", 100))
        assert store.get("v1/x", 100).data == b"of root"


@owners.as_root
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_two_users_publish_to_one_folder():
    with other_user.shared_folder(0o777) as path:
        store = FolderStore(f"file://{path}", path, void_seconds=0.5)
        assert store.put_if_absent("v1/x", b"1")

        def replace():
            return store.put_if_unchanged("v1/x", b"2", store.get("v1/x", 9).version)

        assert as_nobody(replace) == "True" and replace() is True
        assert as_nobody(lambda: store.put_if_absent("v1/deeper/y", b"3")) == "True"


@owners.as_root
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_sticky_bit_is_named_where_it_keeps_another_publisher_out():
    with other_user.shared_folder(0o1777) as path:
        store = FolderStore(f"file://{path}", path, void_seconds=0.5)
        assert store.put_if_absent("v1/x", b"1")
        version = store.get("v1/x", 9).version
        assert "no folder has the sticky bit: chmod -R -t" in as_nobody(
            lambda: store.put_if_unchanged("v1/x", b"2", version)
        )
