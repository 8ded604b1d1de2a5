"""Links in a store that lead out of it: nothing is written, changed or removed where they lead."""

from __future__ import annotations

import os
import shutil

import pytest
from click.testing import CliRunner
from support import child_processes, sample_ops
from support.store.fake_store import ME

from opforge.cache import current_store, layer
from opforge.cache.filesystem import lock
from opforge.cache.layout import TAG, TAG_NAME, Layout
from opforge.cache.maintenance import limits
from opforge.cache.records import size_log
from opforge.cli import group
from opforge.errors import CacheDirError
from opforge.foundation import remembered_values, remembered_values_writer
from opforge.foundation.files import make_folder, open_to_append

TEXT = "years of work\n"


@pytest.fixture
def thesis(tmp_path):
    """A file beside the store, from 2001."""
    path = tmp_path / "thesis"
    path.write_text(TEXT)
    os.utime(path, (10**9, 10**9))
    return path


def unchanged(thesis):
    status = thesis.stat()
    return thesis.read_text() == TEXT and status.st_mtime == 10**9 and status.st_mode & 0o777 == 0o644


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["bytes", "summaries", "swept"])
def test_no_build_and_no_command_writes_through_a_link(thesis, tmp_path, own_store, monkeypatch, link, name):
    thesis.chmod(0o644)
    cls = sample_ops.plain_op(tmp_path / "op")
    cls().build()
    path = own_store / "v2" / name
    path.unlink(missing_ok=True)
    link(thesis, path)
    monkeypatch.setenv("OPFORGE_CACHE_MAX_AGE", "30d")
    sample_ops.set_value(tmp_path / "op", 2)
    cls().build()
    for words in (["ls"], ["cache", "stats"], ["gc"]):
        current_store.reset()  # as in another process
        assert CliRunner().invoke(group, words).exit_code == 0
    assert unchanged(thesis)
    assert not path.exists() or (path.stat().st_nlink == 1 and not path.is_symlink()), "a file of its own again"


def test_no_log_of_a_failed_build_is_written_through_a_link(thesis, tmp_path, own_store):
    thesis.chmod(0o644)
    cls = sample_ops.plain_op(tmp_path / "op", source="not C++\n")
    with pytest.raises(Exception, match=r"expected|does not name a type"):
        cls().build()
    (log,) = (own_store / "v2" / "logs").iterdir()
    log.unlink()
    log.symlink_to(thesis)
    with pytest.raises(Exception, match=r"expected|does not name a type"):
        cls().build()
    assert unchanged(thesis) and not log.is_symlink()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_the_time_of_what_a_pointer_leads_to_is_not_changed(thesis, tmp_path, own_store, link):
    thesis.chmod(0o644)
    cls = sample_ops.plain_op(tmp_path / "op")
    cls().build()
    (pointer,) = (own_store / "v2" / "plans").glob("*/*")
    pointer.unlink()
    link(thesis, pointer)
    if pointer.is_symlink():
        os.utime(pointer, (1, 1), follow_symlinks=False)
    assert cls().build().origin == "cache"
    assert unchanged(thesis)


@pytest.mark.parametrize("name", ["", "plans", "objects", "staging", "quarantine", "peaks"])
def test_a_store_with_a_linked_folder_is_refused(tmp_path, own_store, name):
    cls = sample_ops.plain_op(tmp_path / "op")
    cls().build()
    shutil.rmtree(own_store / "v2" / name, ignore_errors=True)
    (tmp_path / "elsewhere").mkdir()
    (own_store / "v2" / name).symlink_to(tmp_path / "elsewhere")
    sample_ops.set_value(tmp_path / "op", 2)
    current_store.reset()
    with pytest.raises(CacheDirError, match=r"is a symbolic link, and a store has none inside\. Run: rm "):
        cls().build()
    done = CliRunner().invoke(group, ["gc"])
    assert done.exit_code == 1 and "is a symbolic link" in done.stderr
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_layer_with_a_linked_folder_is_not_written_to(tmp_path):
    entry = sample_ops.plain_op(tmp_path / "op")().build()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer" / "v2").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheDirError, match="is a symbolic link"):
        layer.add(str(tmp_path / "layer"), entry, "description", ME)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_linked_folder_inside_an_area_is_not_written_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "unit").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError, match="Is a symbolic link"):
        make_folder(str(tmp_path / "unit"))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_no_look_up_is_remembered_through_a_link(tmp_path, monkeypatch, depth):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = remembered_values.folders()[0] + "/lookups"
    for _level in range(depth):
        folder = os.path.dirname(folder)
    os.makedirs(os.path.dirname(folder))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    os.symlink(tmp_path / "elsewhere", folder)
    assert remembered_values_writer.remember("name", remembered_values.FlatStamps(), {}) is False
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.timeout(30)
def test_a_pipe_in_place_of_a_file_that_is_appended_to_or_touched_blocks_nothing(tmp_path):
    layout = Layout(str(tmp_path))
    (tmp_path / TAG_NAME).write_text(TAG)
    make_folder(layout.path())
    for name in ("bytes", "swept"):
        os.mkfifo(layout.path(name))
    with pytest.raises(OSError, match="No such device"):
        open_to_append(layout.path("bytes"), os.O_CREAT)
    size_log.append(layout, 1)
    os.utime(layout.path("swept"), (1, 1))
    limits.enforce(layout, None, 60.0)
    assert os.path.isfile(layout.path("swept"))


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_in_whose_place_a_link_lies_is_a_new_file(thesis, tmp_path, link):
    thesis.chmod(0o644)
    path = tmp_path / "lock"
    link(thesis, path)
    with lock.acquire(str(path), "op", None):
        assert not path.is_symlink() and path.stat().st_nlink == 1
    assert unchanged(thesis)


@pytest.mark.parametrize("name", ["build.json", "record.json", "library"])
def test_terabytes_in_an_entry_are_neither_mirrored_nor_put_into_a_layer(tmp_path, name):
    entry = sample_ops.plain_op(tmp_path / "op")().build()
    path = entry.library if name == "library" else os.path.join(entry.folder, name)
    os.chmod(path, 0o600)
    os.truncate(path, 1 << 42)
    (tmp_path / "mirror").mkdir()
    done = child_processes.run_command("mirror", "cache:", f"file://{tmp_path}/mirror?unsigned=1")
    assert done.returncode == (0 if name == "build.json" else 1), done.stderr
    assert sum(path.stat().st_size for path in (tmp_path / "mirror").rglob("*")) < 200_000
    if name != "build.json":
        with pytest.raises(CacheDirError, match=r"it cannot be copied: its .* has more than .* bytes"):
            layer.add(str(tmp_path / "layer"), entry, "description", ME)


def test_a_pipe_in_an_entry_is_not_waited_for_when_it_is_put_into_a_layer(tmp_path):
    entry = sample_ops.plain_op(tmp_path / "op")().build()
    os.unlink(os.path.join(entry.folder, "record.json"))
    os.mkfifo(os.path.join(entry.folder, "record.json"))
    with pytest.raises(CacheDirError, match="it cannot be copied: it is not a regular file"):
        layer.add(str(tmp_path / "layer"), entry, "description", ME)
