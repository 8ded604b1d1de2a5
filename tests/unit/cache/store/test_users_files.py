"""Files in a store's folder that opforge did not make: whatever is swept, collected or cleared, they stay."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from support import text_files
from support.owners import ME
from support.store import own_names

from opforge.cache import areas, current_store, ownership, staging
from opforge.cache.layout import TAG_NAME, VERSION, Layout
from opforge.cache.maintenance import gc, limits, listing, unneeded, verify
from opforge.cache.records import size_log
from opforge.errors import CacheDirError

DAY = 24 * 3600.0
FOREIGN = ("notes", "2026", "old", "report.json", "a.log", "x.tmp", "x.o", "0" * 31, "KEY.json")
AREAS = sorted(areas.AREAS)


def contents(root):
    """Returns the files below a folder, with what is in them."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_text() for path in paths}


@pytest.fixture
def data(tmp_path):
    """A folder of the user's, with a `v2` that has the names of a store's folders, and even of what is in them."""
    root = tmp_path / "data"
    for area in AREAS:
        folder = root / VERSION / area
        folder.mkdir(parents=True)
        for name in (*FOREIGN, own_names.EXAMPLES.get(area, "x")):
            text_files.write(folder, name, "the user's")
    for name in ("bytes", "swept", "summaries"):
        text_files.write(root / VERSION, name, "the user's")
    for parent, folders, names in os.walk(root):
        for name in (*folders, *names):
            os.utime(os.path.join(parent, name), (1, 1))
    return root


def test_a_folder_with_a_v2_of_the_users_is_no_store(data):
    before = contents(data)
    with pytest.raises(CacheDirError) as error:
        current_store.prepare(str(data), ME)
    assert str(error.value) == (
        f"The cache folder {data} cannot be used: it holds other files, such as v2, and no store of opforge. Set"
        f" OPFORGE_CACHE_DIR to an empty folder or a new one, such as {data}/opforge. If it was a store once, remove"
        " its v2"
    )
    assert contents(data) == before


def test_a_layer_in_a_stores_place_is_not_to_be_removed(tmp_path):
    text_files.write(tmp_path, f"{VERSION}/entries/x/record.json", "{}")
    with pytest.raises(CacheDirError, match=r"/opforge\. If it is a layer, name it in OPFORGE_CACHE_LAYERS$"):
        current_store.prepare(str(tmp_path), ME)


@pytest.mark.parametrize("choose", [lambda layout: gc.over_limit(layout, time.time(), 0, 0.0), gc.everything])
def test_nothing_is_chosen_to_be_removed_in_what_is_no_store(data, choose):
    with pytest.raises(CacheDirError, match=r"it has a folder v2, but no CACHEDIR\.TAG of opforge's\. Nothing was rem"):
        choose(Layout(str(data)))


def test_nothing_is_removed_from_what_is_no_store(data, monkeypatch):
    layout, before = Layout(str(data)), contents(data)
    assert staging.sweep(layout) == 0
    assert limits.enforce_settings(layout) == 0 and limits.enforce(layout, 0, 0.0) == 0
    assert not staging.quarantine(layout, own_names.ENTRY, "damaged")
    assert all(not entry.quarantined for entry in verify.verify(layout, ME))
    with pytest.raises(CacheDirError):
        gc.remove(layout, [gc.Eviction("log", layout.path("logs", own_names.EXAMPLES["logs"]), 1, "old")])
    size_log.append(layout, 1)
    assert listing.entries(layout) == []
    assert contents(data) == before


def test_the_tag_of_another_program_makes_no_store(data):
    text_files.write(data, TAG_NAME, "Signature: 8a477f597d28d172789f06886806bc55\n# This is another program's.\n")
    with pytest.raises(CacheDirError, match=r"it holds other files, such as CACHEDIR\.TAG"):
        current_store.prepare(str(data), ME)


def test_foreign_names_in_a_store_stay(data, monkeypatch):
    """A store was made first, and the user has put files into its folders since."""
    root = data.with_name("store")
    current_store.prepare(str(root), ME)
    shutil.copytree(data, root, dirs_exist_ok=True)
    text_files.write(root / VERSION, "thesis/x.1.0123abcd.tmp", "named as opforge's own temporary files are")
    layout = Layout(str(root))
    for parent, folders, names in os.walk(root):
        for name in (*folders, *names):
            os.utime(os.path.join(parent, name), (1, 1))
    later = time.time() + 400 * DAY
    gc.remove(layout, gc.over_limit(layout, later, 0, 0.0))
    gc.remove(layout, gc.everything(layout, None, True))
    staging.sweep(layout)
    # A pin of any name is the user's own wish, and a tuning result is removed by its name alone.
    kept = {os.path.join(VERSION, area, name) for area in AREAS for name in FOREIGN}
    assert {*kept, f"{VERSION}/thesis/x.1.0123abcd.tmp"} <= set(contents(root))
    for area in unneeded.MAX_AGE_SECONDS:
        assert not os.path.lexists(layout.path(area, own_names.EXAMPLES[area])), f"what is opforge's goes: {area}"


@pytest.mark.parametrize("area", AREAS)
def test_each_area_has_names_of_its_own(area):
    layout = Layout("/store")
    assert ownership.is_own(layout, layout.path(area, own_names.EXAMPLES[area]))
    assert not ownership.is_own(layout, layout.path(area, "report 2026"))
    assert not ownership.is_own(layout, layout.path(area, own_names.EXAMPLES[area], "a", "b"))


@pytest.mark.parametrize("area", [name for name in AREAS if areas.AREAS[name].inner])
def test_a_file_that_somebody_put_into_a_folder_of_opforges_is_not_opforges(area):
    layout = Layout("/store")
    assert not ownership.is_own(layout, layout.path(area, own_names.EXAMPLES[area], "report 2026"))


@pytest.mark.parametrize("path", ["/store/thesis", "/store/v2/notes", "/elsewhere/v2/logs/x.log", "/store/v2/../a"])
def test_other_paths_are_not_opforges(path):
    assert not ownership.is_own(Layout("/store"), path)


def test_an_eviction_of_a_foreign_path_is_refused(fake_store, tmp_path):
    text_files.write(tmp_path, "thesis", "text")
    with pytest.raises(CacheDirError, match=r"thesis is not of opforge's making\. Remove it yourself"):
        gc.remove(fake_store.layout, [gc.Eviction("log", str(tmp_path / "thesis"), 4, "old")])
    assert (tmp_path / "thesis").exists()


def test_a_store_that_a_clean_up_has_emptied_is_a_store_again(tmp_path):
    current_store.prepare(str(tmp_path), ME)
    for parent, _folders, names in os.walk(tmp_path):
        for name in names:
            os.unlink(os.path.join(parent, name))
    current_store.prepare(str(tmp_path), ME)
    assert ownership.has_tag(str(tmp_path))


def test_a_process_that_was_killed_while_it_wrote_the_tag_leaves_a_new_store(tmp_path):
    text_files.write(tmp_path, f"{TAG_NAME}.123.0a0a0a0a.tmp", "Signa")
    current_store.prepare(str(tmp_path), ME)
    assert ownership.has_tag(str(tmp_path))
