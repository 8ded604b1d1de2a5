"""Look-ups in a store: by the plan, and by the description in layers. Entries are written by hand."""

from __future__ import annotations

import os
import shutil

from support.store.fake_op import DESCRIPTION, PLAN

from opforge.cache import admit, store
from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.cache.store import Fit
from opforge.fast_path.library import Entry


def test_a_miss_in_an_empty_store_has_its_reason(fake_op):
    assert fake_op.get() is None
    assert fake_op.reasons() == ["nothing was built from this plan yet"]


def test_an_entry_that_was_built_is_found(fake_op):
    built = fake_op.build()
    entry = fake_op.get()
    assert built.origin == "built" and entry.origin == "cache"
    assert entry.library == built.library and os.path.isfile(entry.library)
    assert entry.record["op"] == "a" and entry.record["plan"] == PLAN and entry.build()["components"] == {}
    assert fake_op.reasons() == []


def test_an_edit_is_a_miss_that_names_the_file_and_undoing_it_is_a_hit(fake_op):
    first = fake_op.build()
    fake_op.edit("int b;")
    assert fake_op.get() is None
    assert fake_op.reasons() == [f"{fake_op.folder}/src/a.cpp has changed"]
    second = fake_op.build()
    assert second.key != first.key
    fake_op.edit("int a;")
    assert fake_op.get().key == first.key
    assert fake_op.builds == 2


def test_a_source_that_is_gone_is_a_miss_that_names_it(fake_op):
    fake_op.build()
    os.unlink(fake_op.folder / "src" / "a.cpp")
    assert fake_op.get() is None
    assert fake_op.reasons() == [f"{fake_op.folder}/src/a.cpp no longer exists"]


def test_a_moved_source_tree_is_a_hit(fake_op):
    fake_op.build()
    os.rename(fake_op.folder / "src", fake_op.folder / "moved")
    fake_op.root_paths = {"own": str(fake_op.folder / "moved")}
    assert fake_op.get() is not None
    assert len(fake_op.pointers()) == 1


def test_an_edit_that_changes_no_stamp_is_noticed(fake_op):
    class ConstantStamps(Disk):
        """Every file has one old stamp that never changes."""

        def stamp(self, path):
            return None if super().stamp(path) is None else Stamp(6, 1, 1, 1)

    fake_op.store.disk = ConstantStamps()
    fake_op.build()
    fake_op.edit("int b;")
    assert fake_op.get() is None


def test_the_pointers_of_a_plan_are_bounded(fake_op):
    for number in range(admit.KEPT_POINTERS + 4):
        fake_op.edit(f"int a{number};")
        fake_op.build()
    assert len(fake_op.pointers()) == admit.KEPT_POINTERS
    assert fake_op.get() is not None


def test_of_many_versions_only_the_one_that_fits_is_compared_in_full(fake_op, monkeypatch):
    for number in range(4):
        fake_op.edit(f"int a{number};")
        fake_op.build()
    read, build = [], Entry.build
    monkeypatch.setattr(Entry, "build", lambda entry: read.append(entry.key) or build(entry))
    fake_op.edit("int a1;")
    assert read == [] and [fake_op.get().key] == read


def test_an_entry_that_was_removed_is_a_miss_and_built_again(fake_op):
    built = fake_op.build()
    shutil.rmtree(built.folder)
    assert fake_op.get() is None
    assert fake_op.reasons()
    assert fake_op.build().origin == "built"
    assert fake_op.get() is not None


# -- layers ------------------------------------------------------------------------------------------------------------


def test_a_layers_entry_is_found_by_its_description(fake_op, tmp_path):
    built = fake_op.build()
    entry = fake_op.match(fake_op.as_layer(tmp_path / "mine").layers)
    assert (entry.library, entry.origin, fake_op.rejected) == (built.library, str(fake_op.folder / "store"), ())


def test_a_layers_entry_that_is_not_used_has_its_reason(fake_op, tmp_path):
    built = fake_op.build()
    (layer,) = fake_op.as_layer(tmp_path / "mine").layers
    paths, disk = fake_op.root_paths, fake_op.store.disk
    unfit = (built.folder, "it needs torch 9")
    assert layer.find(DESCRIPTION, lambda _record: Fit("it needs torch 9"), paths, disk) == (None, (unfit,))
    none = (str(fake_op.folder / "store"), "holds no entry for this description")
    assert layer.find("another", lambda _record: Fit(), paths, disk) == (None, (none,))
    place = fake_op.folder / "store" / "v2" / "descriptions" / "closed"
    place.touch()  # as a folder that this user may not read: the entry may be there
    unread = (str(fake_op.folder / "store"), f"{place} cannot be read (Not a directory)")
    assert layer.find("closed", lambda _record: Fit(), paths, disk) == (None, (unread,))


def test_of_several_entries_the_one_with_the_highest_rank_is_used(fake_op, tmp_path):
    fake_op.build()
    fake_op.edit("int b;")
    second = fake_op.build()
    fake_op.edit("int a;")
    (layer,) = fake_op.as_layer(tmp_path / "mine").layers

    def fit(record):
        return Fit(rank=2 if record["key"] == second.record["key"] else 1)

    match, rejected = layer.find(DESCRIPTION, fit, fake_op.root_paths, fake_op.store.disk)
    assert match.entry.key != second.key
    assert [entry.where for entry in rejected] == [second.folder], "the better one was built from another source"


def test_the_users_own_store_is_searched_by_description_too(fake_op):
    built = fake_op.build()
    entry = fake_op.match([fake_op.store.own])
    assert (entry.key, entry.origin) == (built.key, "cache")


def test_the_op_s_own_files_may_not_differ_from_those_a_layers_entry_was_built_from(fake_op, tmp_path):
    built = fake_op.build()
    fake_op.edit("int another;")
    assert fake_op.match(fake_op.as_layer(tmp_path / "mine").layers) is None
    assert [tuple(entry) for entry in fake_op.rejected] == [(built.folder, f"{fake_op.folder}/src/a.cpp has changed")]


def test_a_missing_layer_is_reported(fake_op, tmp_path):
    user_store = store.Store(str(tmp_path / "mine"), fake_op.store.owners, (str(tmp_path / "typo"),))
    assert fake_op.match(user_store.layers) is None
    assert [*fake_op.rejected] == [store.Rejected(str(tmp_path / "typo"), "there is no such folder")]
