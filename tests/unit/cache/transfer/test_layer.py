"""Layers: folders of entries that others read, filled by many at once, and used only where they can be trusted."""

from __future__ import annotations

import os
import stat
import threading

import pytest
from support.store.fake_store import ME, MadeUpStore

from opforge.cache.current import current_store
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.cache.store import Store
from opforge.cache.transfer import layer
from opforge.errors import CacheDirError

DESCRIPTION = key_of(["description", "relu"])


@pytest.fixture
def made(tmp_path):
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


def entry_of(made, result):
    return made.store.read_entry(made.layout, result, "cache")


def modes(folder):
    return {
        os.path.relpath(os.path.join(at, name), folder): stat.S_IMODE(os.lstat(os.path.join(at, name)).st_mode)
        for at, folders, files in os.walk(folder)
        for name in (*folders, *files)
    }


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_everybody_may_read_a_layer_and_nobody_else_may_write_it(made, tmp_path, umask):
    entry = entry_of(made, made.add("relu"))
    old = os.umask(umask)
    try:
        added = layer.add(str(tmp_path / "new" / "layer"), entry, DESCRIPTION)
    finally:
        os.umask(old)
    found = modes(tmp_path / "new" / "layer")
    assert {mode for name, mode in found.items() if os.path.isdir(tmp_path / "new" / "layer" / name)} == {0o755}
    assert {mode for name, mode in found.items() if name.endswith(".so")} == {0o555}
    assert found["CACHEDIR.TAG"] == 0o644 and found[f"v1/entries/{entry.key}/manifest.json"] == 0o644
    assert stat.S_IMODE(os.stat(tmp_path / "new" / "layer").st_mode) == 0o755
    assert added.library.startswith(str(tmp_path / "new" / "layer"))
    mine = Store(str(tmp_path / "mine"), ME, (str(tmp_path / "new" / "layer"),))
    assert mine.match(DESCRIPTION, lambda _binary: None, made.roots, (), []).key == entry.key


def test_a_draft_of_one_who_was_killed_is_swept_and_a_fresh_one_is_not(made, tmp_path):
    entries = tmp_path / "layer" / "v1" / "entries"
    for name in ("old.1.ab.tmp", "fresh.2.cd.tmp"):
        (entries / name).mkdir(parents=True)
        (entries / name / "half.so").write_text("half")
    os.utime(entries / "old.1.ab.tmp", (1, 1))
    entry = entry_of(made, made.add("relu"))
    layer.add(str(tmp_path / "layer"), entry, DESCRIPTION)
    assert sorted(one.name for one in entries.iterdir()) == sorted([entry.key, "fresh.2.cd.tmp"])


def test_an_entry_that_the_layer_has_is_left_alone(made, tmp_path):
    entry = entry_of(made, made.add("relu"))
    first = layer.add(str(tmp_path / "layer"), entry, DESCRIPTION)
    before = os.stat(first.library)
    layer.add(str(tmp_path / "layer"), entry, DESCRIPTION)
    assert os.stat(first.library) == before


def test_many_fill_one_layer_at_once(made, tmp_path):
    entries = [entry_of(made, made.add(f"op{number}", size=200_000)) for number in range(6)]
    folder, problems = str(tmp_path / "layer"), []
    barrier = threading.Barrier(8)

    def fill(start):
        barrier.wait()
        for number in range(len(entries)):
            entry = entries[(number + start) % len(entries)]
            try:
                layer.add(folder, entry, key_of(["description", entry.binary["op"]]))
            except Exception as problem:
                problems.append(problem)

    threads = [threading.Thread(target=fill, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    place = Layout(folder)
    assert sorted(os.listdir(place.path("entries"))) == sorted(one.key for one in entries), "no draft is left"
    for entry in entries:
        assert sorted(os.listdir(place.entry(entry.key))) == sorted(os.listdir(entry.folder))


def test_a_layer_that_cannot_be_written_is_an_error_that_says_so(made, tmp_path):
    entry = entry_of(made, made.add("relu"))
    (tmp_path / "layer").write_text("a file")
    with pytest.raises(CacheDirError, match=r"layer cannot be used: it cannot be written \(.*Choose another folder"):
        layer.add(str(tmp_path / "layer"), entry, DESCRIPTION)


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_layer_that_others_may_write_is_refused_with_the_command_that_mends_it(made, tmp_path, monkeypatch, mode):
    folder = tmp_path / "layer"
    layer.add(str(folder), entry_of(made, made.add("relu")), DESCRIPTION)
    os.chmod(folder, mode)
    if os.geteuid() == 0:
        os.chown(folder, -1, 12345)  # the group is not the private one of this user
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(folder))
    with pytest.raises(CacheDirError, match=f"{folder} can be written by .*Run: chmod go-w {folder}"):
        current_store()
