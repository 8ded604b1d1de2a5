"""Layers: folders of entries for other users, filled by many processes at once, used only if they can be trusted."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading

import pytest
from support.store import own_names
from support.store.fake_store import ME

from opforge.cache import layer
from opforge.cache.current_store import current_store
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.cache.records.entry import read_record, with_record_key
from opforge.cache.store import Fit, Source
from opforge.errors import CacheDirError

DESCRIPTION = key_of(["description", "relu"])


def new_entry(fake_store, op, size=1000):
    return fake_store.store.own.read(fake_store.add(op, size=size))


def modes(folder):
    """Returns the mode of each file and folder below `folder`."""
    paths = [os.path.join(parent, name) for parent, folders, files in os.walk(folder) for name in (*folders, *files)]
    return {os.path.relpath(path, folder): stat.S_IMODE(os.lstat(path).st_mode) for path in paths}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_every_user_may_read_a_layer_and_only_its_owner_may_write_it(fake_store, tmp_path, umask):
    entry, folder = new_entry(fake_store, "relu"), tmp_path / "new" / "layer"
    old = os.umask(umask)
    try:
        added = layer.add(str(folder), entry, DESCRIPTION, ME)
    finally:
        os.umask(old)
    by_name = modes(folder)
    assert {mode for name, mode in by_name.items() if os.path.isdir(folder / name)} == {0o755}
    assert {mode for name, mode in by_name.items() if name.endswith(".so")} == {0o555}
    assert by_name[f"v2/entries/{entry.key}/record.json"] == 0o644
    assert "CACHEDIR.TAG" not in by_name, "backups and images are made of layers, and would leave a tagged folder out"
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o755
    assert stat.S_IMODE(os.stat(folder.parent).st_mode) == 0o755 & ~umask, "a group could swap the layer"
    assert added.library.startswith(str(folder))
    source = Source(Layout(str(folder)), ME)
    match = source.find(DESCRIPTION, lambda _record: Fit(), fake_store.root_paths, fake_store.store.disk)[0]
    assert match.entry.key == entry.key


def test_an_old_temporary_folder_is_removed_and_a_new_one_is_not(fake_store, tmp_path):
    entries = tmp_path / "layer" / "v2" / "entries"
    old, new = (f"{own_names.ENTRY}.{number}.0a0a0a0a.tmp" for number in (1, 2))
    foreign = "thesis.1.0a0a0a0a.tmp"
    for name in (old, new, foreign):
        (entries / name).mkdir(parents=True)
        (entries / name / "half.so").write_text("half")
    for name in (old, foreign):
        os.utime(entries / name, (1, 1))
    entry = new_entry(fake_store, "relu")
    layer.add(str(tmp_path / "layer"), entry, DESCRIPTION, ME)
    assert sorted(child.name for child in entries.iterdir()) == sorted([entry.key, new, foreign])


def test_nobody_else_can_open_a_file_of_a_layer_before_it_is_complete(fake_store, tmp_path, monkeypatch):
    """Under umask 002 a member of the group could keep a descriptor for writing from before the modes are set."""
    entry, seen = new_entry(fake_store, "relu"), []
    copy = shutil.copyfileobj

    def watch(original, target, *rest):
        copy(original, target, *rest)
        folder = (
            os.path.dirname(target.name)
            if isinstance(target.name, str)
            else os.path.dirname(os.readlink(f"/proc/self/fd/{target.fileno()}"))
        )
        seen.append((stat.S_IMODE(os.stat(folder).st_mode), stat.S_IMODE(os.fstat(target.fileno()).st_mode)))

    monkeypatch.setattr(shutil, "copyfileobj", watch)
    before = os.umask(0o002)
    try:
        layer.add(str(tmp_path / "layer"), entry, DESCRIPTION, ME)
    finally:
        os.umask(before)
    assert len(seen) == 2 and set(seen) == {(0o700, 0o600)}


def test_a_library_that_changes_while_it_is_copied_is_not_added(fake_store, tmp_path, monkeypatch):
    entry = new_entry(fake_store, "relu")

    def spoil(original, target, *_rest):
        target.write(original.read()[:-1] + b"?")

    monkeypatch.setattr(shutil, "copyfileobj", spoil)
    with pytest.raises(CacheDirError, match=r"it cannot be copied: .*Build the op again"):
        layer.add(str(tmp_path / "layer"), entry, DESCRIPTION, ME)
    assert list((tmp_path / "layer" / "v2" / "entries").iterdir()) == []


def test_an_entry_that_the_layer_has_is_left_alone(fake_store, tmp_path):
    entry = new_entry(fake_store, "relu")
    first = layer.add(str(tmp_path / "layer"), entry, DESCRIPTION, ME)
    before = os.stat(first.library)
    layer.add(str(tmp_path / "layer"), entry, DESCRIPTION, ME)
    assert os.stat(first.library) == before


def test_a_record_says_how_long_its_build_took_except_where_the_same_bytes_are_wanted(
    fake_store, tmp_path, monkeypatch
):
    entry = new_entry(fake_store, "relu")
    path = os.path.join(entry.folder, "record.json")

    def record_in_layer(name, seconds):
        record = with_record_key({**entry.record, "seconds": seconds})
        os.chmod(path, 0o600)
        with open(path, "w") as file:
            json.dump(record, file)
        added = layer.add(str(tmp_path / name), entry, DESCRIPTION, ME)
        assert read_record(added.folder) is not None
        with open(os.path.join(added.folder, "record.json"), "rb") as file:
            return file.read()

    assert json.loads(record_in_layer("plain", 3.5))["seconds"] == 3.5
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first, second = record_in_layer("first", 3.5), record_in_layer("second", 9.25)
    assert first == second
    assert json.loads(first)["seconds"] == 0.0


def test_many_threads_fill_one_layer_at_once(fake_store, tmp_path):
    entries = [new_entry(fake_store, f"op{number}", size=200_000) for number in range(6)]
    folder, errors = str(tmp_path / "layer"), []
    barrier = threading.Barrier(8)

    def fill(start):
        barrier.wait()
        for number in range(len(entries)):
            entry = entries[(number + start) % len(entries)]
            try:
                layer.add(folder, entry, key_of(["description", entry.record["op"]]), ME)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=fill, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    layout, keys = Layout(folder), sorted(entry.key for entry in entries)
    assert sorted(os.listdir(layout.path("entries"))) == keys, "no temporary folder is left"
    for entry in entries:
        assert sorted(os.listdir(layout.entry(entry.key))) == sorted(["record.json", entry.record["file"]])


def test_a_layer_that_cannot_be_written_is_an_error(fake_store, tmp_path):
    entry = new_entry(fake_store, "relu")
    (tmp_path / "layer").write_text("a file")
    with pytest.raises(CacheDirError, match=r"layer cannot be used: .*layer is not a folder\. Choose another folder"):
        layer.add(str(tmp_path / "layer"), entry, DESCRIPTION, ME)


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_layer_that_others_may_write_is_refused_with_the_fix(fake_store, tmp_path, monkeypatch, mode):
    folder = tmp_path / "layer"
    layer.add(str(folder), new_entry(fake_store, "relu"), DESCRIPTION, ME)
    os.chmod(folder, mode)
    if os.geteuid() == 0:
        os.chown(folder, -1, 12345)  # not the private group of this user
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(folder))
    with pytest.raises(CacheDirError, match=f"{folder} can be written by .*Run: chmod go-w {folder}"):
        current_store()
