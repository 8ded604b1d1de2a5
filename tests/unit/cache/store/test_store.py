"""Look-ups in a store: by the plan, and by the description in layers. Entries are written by hand."""

from __future__ import annotations

import os
import shutil

from opforge.cache import store
from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.cache.keys import root_paths_digest


def test_a_miss_in_an_empty_store_has_its_reason(fake_op):
    assert fake_op.get() is None
    assert fake_op.reasons() == ["nothing was built from this plan yet"]


def test_an_entry_that_was_built_is_found(fake_op):
    built = fake_op.build()
    entry = fake_op.get()
    assert built.origin == "built" and entry.origin == "cache"
    assert entry.library == built.library and os.path.isfile(entry.library)
    assert entry.manifest()["op"] == "a" and entry.manifest()["plan"] == "plan"
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


def test_a_moved_source_tree_is_a_hit_and_gets_its_own_stat_record(fake_op):
    fake_op.build()
    os.rename(fake_op.folder / "src", fake_op.folder / "moved")
    fake_op.root_paths = {"own": str(fake_op.folder / "moved")}
    assert fake_op.get() is not None
    assert len(fake_op.stat_records()) == 2
    assert any(path.endswith(root_paths_digest(fake_op.root_paths) + ".json") for path in fake_op.stat_records())


def test_a_paranoid_look_up_notices_an_edit_that_changed_no_stamp(fake_op):
    class ConstantStamps(Disk):
        """Every file has one old stamp that never changes."""

        def stamp(self, path):
            return None if super().stamp(path) is None else Stamp(6, 1, 1, 1)

    fake_op.store.disk = ConstantStamps()
    fake_op.build()
    fake_op.edit("int b;")
    assert fake_op.get() is not None
    assert fake_op.get(paranoid=True) is None


def test_the_stat_records_of_a_plan_are_bounded(fake_op):
    for number in range(store.KEPT_STAT_RECORDS + 4):
        fake_op.edit(f"int a{number};")
        fake_op.build()
    assert len(fake_op.stat_records()) == store.KEPT_STAT_RECORDS
    assert fake_op.get() is not None


def test_an_entry_that_was_removed_is_a_miss_and_built_again(fake_op):
    built = fake_op.build()
    shutil.rmtree(built.folder)
    assert fake_op.get() is None
    assert fake_op.reasons()
    assert fake_op.build().origin == "built"
    assert fake_op.get() is not None


# -- layers ------------------------------------------------------------------------------------------------------------


def test_a_layers_entry_is_found_by_its_description(fake_op, tmp_path):
    built, rejected = fake_op.build(), []
    entry = fake_op.match(fake_op.as_layer(tmp_path / "mine"), rejected)
    assert (entry.library, entry.origin, rejected) == (built.library, str(fake_op.folder / "store"), [])


def test_a_layers_entry_that_is_not_used_has_its_reason(fake_op, tmp_path):
    built, rejected = fake_op.build(), []
    user_store = fake_op.as_layer(tmp_path / "mine")
    paths = fake_op.root_paths
    assert user_store.match("description", lambda _binary: "it needs torch 9", paths, (), rejected) is None
    assert user_store.match("another", lambda _binary: None, paths, (), rejected) is None
    assert [tuple(entry) for entry in rejected] == [
        (built.folder, "it needs torch 9"),
        (str(fake_op.folder / "store"), "holds no entry for this description"),
    ]


def test_the_users_own_store_is_matched_only_on_request(fake_op):
    fake_op.build()
    assert fake_op.match() is None
    assert fake_op.match(own=True) is not None


def test_only_files_below_trusted_roots_may_differ_from_those_a_layers_entry_was_built_from(fake_op, tmp_path):
    built, rejected = fake_op.build(), []
    fake_op.edit("int another;")
    user_store = fake_op.as_layer(tmp_path / "mine")
    assert fake_op.match(user_store, rejected) is None
    assert [tuple(entry) for entry in rejected] == [(built.folder, f"{fake_op.folder}/src/a.cpp has changed")]
    assert fake_op.match(user_store, rejected, trusted_roots=("own",)).library == built.library


def test_a_missing_layer_is_reported(fake_op, tmp_path):
    user_store = store.Store(str(tmp_path / "mine"), fake_op.store.owners, (str(tmp_path / "typo"),))
    rejected = []
    assert fake_op.match(user_store, rejected) is None
    assert rejected == [store.Rejected(str(tmp_path / "typo"), "there is no such folder")]
