"""The store: found, published, answered by a layer. Entries here are made by hand; nothing is compiled."""

from __future__ import annotations

import os
import shutil

import pytest
from support import text_files
from support.store.fake_store import World

from opforge.cache import publish, store
from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.cache.keys import root_paths_digest
from opforge.errors import CacheDirError


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_an_empty_store_says_that_nothing_was_built(world):
    assert world.get() is None
    assert world.reasons() == ["nothing was built from this plan yet"]


def test_what_was_built_is_found(world):
    built = world.build()
    found = world.get()
    assert built.origin == "built" and found.origin == "cache"
    assert found.library == built.library and os.path.isfile(found.library)
    assert found.manifest()["op"] == "a" and found.manifest()["plan"] == "plan"
    assert world.reasons() == []


def test_nothing_is_left_in_staging(world):
    world.build()
    assert world.staged() == []


def test_an_edit_is_a_miss_that_names_the_file_and_going_back_is_a_hit(world):
    first = world.build()
    text_files.write(world.folder / "src", "a.cpp", "int b;")
    assert world.get() is None
    assert world.reasons() == [f"{world.folder}/src/a.cpp has changed"]
    second = world.build()
    assert second.key != first.key
    text_files.write(world.folder / "src", "a.cpp", "int a;")
    assert world.get().key == first.key
    assert world.built == 2


def test_a_source_that_is_gone_is_a_reason(world):
    world.build()
    os.unlink(world.folder / "src" / "a.cpp")
    assert world.get() is None
    assert world.reasons() == [f"{world.folder}/src/a.cpp is gone"]


def test_a_moved_tree_is_a_hit_and_gets_a_ticket_of_its_own(world):
    world.build()
    os.rename(world.folder / "src", world.folder / "moved")
    world.roots = {"own": str(world.folder / "moved")}
    assert world.get() is not None
    assert len(world.tickets()) == 2
    assert any(path.endswith(root_paths_digest(world.roots) + ".json") for path in world.tickets())


def test_paranoia_sees_an_edit_that_left_every_stamp(world):
    class Blind(Disk):
        """Every stamp is an old one that never changes."""

        def stamp(self, path):
            return None if super().stamp(path) is None else layout_stamp

    layout_stamp = Stamp(6, 1, 1, 1)
    world.store.disk = Blind()
    world.build()
    text_files.write(world.folder / "src", "a.cpp", "int b;")
    assert world.get() is not None
    assert world.get(paranoid=True) is None


def test_tickets_of_a_place_are_bounded(world):
    for number in range(store.KEPT_STAT_RECORDS + 4):
        text_files.write(world.folder / "src", "a.cpp", f"int a{number};")
        world.build()
    assert len(world.tickets()) == store.KEPT_STAT_RECORDS
    assert world.get() is not None


def test_an_entry_that_was_removed_is_a_miss(world):
    built = world.build()
    shutil.rmtree(built.folder)
    assert world.get() is None
    assert world.reasons()
    assert world.build().origin == "built"
    assert world.get() is not None


def test_the_first_publisher_wins(world):
    first = world.build()
    inode = os.stat(first.library).st_ino
    second = world.build()
    assert second.origin == "cache" and second.key == first.key
    assert os.stat(second.library).st_ino == inode


def test_what_another_has_built_while_we_waited_is_taken(world):
    first = world.build()
    assert world.build(look_again=lambda: first) is first
    assert world.built == 1


def test_a_disk_that_returns_other_bytes_is_an_error_that_says_so(world, monkeypatch, warnings_of_the_cache):
    monkeypatch.setattr("opforge.cache.publish.integrity_problem", lambda *_arguments, **_options: "the digest differs")
    with pytest.raises(
        CacheDirError, match=r"reads back wrong \(the digest differs\). Check the disk, or set OPFORGE_CACHE"
    ):
        world.build()
    assert world.staged() == []
    assert warnings_of_the_cache()


def test_a_description_folder_that_is_evicted_meanwhile_is_made_again(world, monkeypatch):
    real, folders = publish.make_folder, []

    def evicted(path):
        real(path)
        if "descriptions" in path and not folders:
            folders.append(path)
            os.rmdir(path)

    monkeypatch.setattr(publish, "make_folder", evicted)
    entry = world.build()
    assert os.listdir(folders[0]) == [entry.key]


# -- layers ------------------------------------------------------------------------------------------------------------


def test_a_layer_answers_a_description(world, tmp_path):
    built = world.build()
    trace = []
    found = world.as_layer(tmp_path / "mine").match("description", lambda _binary: None, world.roots, (), trace)
    assert (found.library, found.origin, trace) == (built.library, str(world.folder / "store"), [])


def test_a_layers_no_has_its_reason(world, tmp_path):
    built = world.build()
    trace = []
    store = world.as_layer(tmp_path / "mine")
    assert store.match("description", lambda _binary: "it needs torch 9", world.roots, (), trace) is None
    assert store.match("another", lambda _binary: None, world.roots, (), trace) is None
    assert [tuple(one) for one in trace] == [
        (built.folder, "it needs torch 9"),
        (str(world.folder / "store"), "holds no entry for this description"),
    ]


def test_the_users_own_store_is_matched_only_on_demand(world):
    world.build()
    assert world.store.match("description", lambda _binary: None, world.roots, (), []) is None
    assert world.store.match("description", lambda _binary: None, world.roots, (), [], own=True) is not None


def test_a_layer_answers_for_the_files_it_was_built_from_and_for_others_below_the_roots_it_is_vouched_for(
    world, tmp_path
):
    built = world.build()
    text_files.write(world.folder / "src", "a.cpp", "int another;")
    store, trace = world.as_layer(tmp_path / "mine"), []
    assert store.match("description", lambda _binary: None, world.roots, (), trace) is None
    assert [tuple(one) for one in trace] == [(built.folder, f"{world.folder}/src/a.cpp has changed")]
    found = store.match("description", lambda _binary: None, world.roots, ("own",), trace)
    assert found.library == built.library


def test_a_layer_that_is_missing_is_called_so(world, tmp_path):
    trace = []
    mine = store.Store(str(tmp_path / "mine"), world.store.owners, (str(tmp_path / "typo"),))
    assert mine.match("description", lambda _binary: None, world.roots, (), trace) is None
    assert trace == [store.Rejected(str(tmp_path / "typo"), "there is no such folder")]
