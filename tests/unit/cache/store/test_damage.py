"""Damaged entries: reported, set aside and built again."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support import text_files
from support.store.fake_op import LIBRARY

from opforge.cache.keys import key_of
from opforge.cache.records import entry as entries
from opforge.errors import CacheDirError
from opforge.fast_path import library as warm_library
from opforge.foundation import file_owners
from opforge.foundation.files import read_json


def truncate(path):
    with open(path, "r+b") as file:
        file.truncate(7)


def zero(path):
    with open(path, "r+b") as file:
        file.write(bytes(len(LIBRARY)))


def flip_bit(path):
    with open(path, "r+b") as file:
        file.seek(11)
        byte = file.read(1)[0]
        file.seek(11)
        file.write(bytes([byte ^ 1]))


def reverse(path):
    with open(path, "wb") as file:
        file.write(LIBRARY[::-1])


def empty(path):
    os.truncate(path, 0)


def folder(path):
    os.unlink(path)
    os.mkdir(path)


def link(path):
    os.rename(path, path + ".real")
    os.symlink(path + ".real", path)


def pipe(path):
    os.unlink(path)
    os.mkfifo(path, 0o500)


def missing(path):
    os.unlink(path)


def group_writable(path):
    os.chmod(path, 0o570)


def others_writable(path):
    os.chmod(path, 0o507)


LIBRARY_DAMAGES = {
    truncate: "the library has 7 bytes instead of 200",
    zero: "the library's digest differs from its record's",
    flip_bit: "the library's digest differs from its record's",
    reverse: "the library's digest differs from its record's",
    empty: "the library has 0 bytes instead of 200",
    folder: "the library is not a regular file",
    link: "the library is a link",
    pipe: "the library is not a regular file",
    missing: "the library cannot be opened (No such file or directory)",
    group_writable: "the library can be written by others (mode 570)",
    others_writable: "the library can be written by others (mode 507)",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("damage", LIBRARY_DAMAGES, ids=lambda damage: damage.__name__)
def test_an_entry_with_a_damaged_library_is_reported_set_aside_and_built_again(
    fake_op, damage, warnings_of_the_cache, monkeypatch
):
    monkeypatch.setattr(file_owners, "is_private_group", lambda _gid: False)
    built = fake_op.build()
    os.chmod(built.library, 0o700)
    damage(built.library)
    assert fake_op.get() is None
    assert fake_op.reasons()[0] == LIBRARY_DAMAGES[damage]
    (warning,) = warnings_of_the_cache()
    assert f"The cache entry {built.folder} is damaged: {LIBRARY_DAMAGES[damage]}. It was set aside in " in warning
    assert len(os.listdir(fake_op.store.layout.path("quarantine"))) == 1
    assert fake_op.build().origin == "built"
    assert fake_op.get() is not None


@pytest.mark.parametrize("levels", range(3))
def test_an_entry_below_a_folder_that_others_may_write_is_not_used(fake_op, levels, monkeypatch):
    """They could put another entry in its place."""
    monkeypatch.setattr(file_owners, "is_private_group", lambda _gid: False)
    folder = fake_op.build().folder
    for _ in range(levels):
        folder = os.path.dirname(folder)
    os.chmod(folder, 0o720)
    assert fake_op.get() is None
    whose = folder if levels else "its folder"
    assert fake_op.reasons()[0] == f"{whose} can be written by others (mode 720)"


def replace_by_file(path):
    shutil.rmtree(path)
    text_files.write(os.path.dirname(path), os.path.basename(path), "a file")


def replace_by_empty_folder(path):
    shutil.rmtree(path)
    os.mkdir(path)


def replace_by_dangling_link(path):
    os.rename(path, path + "-away")
    os.symlink("nowhere", path)


def remove_record(path):
    os.unlink(os.path.join(path, warm_library.RECORD))


def damage_record(path):
    text_files.write(path, warm_library.RECORD, "{")


@pytest.mark.parametrize(
    "damage",
    [replace_by_file, replace_by_empty_folder, replace_by_dangling_link, remove_record, damage_record],
    ids=lambda damage: damage.__name__,
)
def test_a_folder_that_is_no_entry_is_replaced(fake_op, damage):
    built = fake_op.build()
    damage(built.folder)
    assert fake_op.get() is None
    again = fake_op.build()
    assert again.origin == "built" and again.key == built.key
    assert fake_op.get() is not None
    assert fake_op.staging_folders() == []


def test_a_damaged_entry_that_cannot_be_set_aside_is_an_error_with_the_fix(fake_op, monkeypatch):
    """As an entry that `sudo`, or root in a container, has left in a shared folder."""
    built = fake_op.build()
    damage_record(built.folder)
    rename = os.rename

    def refuse(source, target):
        if source == built.folder:
            raise PermissionError(13, "Permission denied", source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(CacheDirError) as caught:
        fake_op.build()
    root = fake_op.store.layout.root
    problem = "its record.json cannot be used: it is not valid JSON"
    assert str(caught.value).startswith(
        f"The cache folder {root} cannot be used: {built.folder} cannot be changed ({problem}"
    )
    assert str(caught.value).endswith(
        ". Set OPFORGE_CACHE_DIR to a folder of your own: files of another user cannot be trusted"
    )
    assert fake_op.staging_folders() == []


def test_a_damaged_entry_that_another_process_sets_aside_first_is_replaced(fake_op, monkeypatch, warnings_of_the_cache):
    built = fake_op.build()
    damage_record(built.folder)
    rename = os.rename

    def rename_too_late(source, target):
        rename(source, target)
        if source == built.folder:
            raise FileNotFoundError(2, "No such file or directory", source)

    monkeypatch.setattr(os, "rename", rename_too_late)
    assert fake_op.build().origin == "built" and fake_op.get() is not None
    assert warnings_of_the_cache() == []


def test_a_damaged_entry_of_a_layer_is_not_used_and_stays_where_it_is(fake_op, tmp_path, warnings_of_the_cache):
    built = fake_op.build()
    os.chmod(built.library, 0o700)
    flip_bit(built.library)
    assert fake_op.match(fake_op.as_layer(tmp_path / "mine").layers) is None
    assert fake_op.rejected[0].reason == "the library's digest differs from its record's"
    assert os.path.exists(built.library)
    assert warnings_of_the_cache() == [], "only what an installed package carries is worth one"


def change_abi(record):
    record["abi"] = "torch"


def change_input(record):
    record["inputs"]["files"][0][2] = "0" * 64


@pytest.mark.parametrize("change", [change_abi, change_input], ids=["abi", "input"])
def test_an_entry_whose_record_describes_another_library_is_replaced(fake_op, change, warnings_of_the_cache):
    path = os.path.join(fake_op.build().folder, warm_library.RECORD)
    record = read_json(path)
    change(record)
    text_files.write(os.path.dirname(path), warm_library.RECORD, json.dumps(entries.with_record_key(record)))
    again = fake_op.build()
    assert (again.origin, again.record["abi"]) == ("built", "c")
    (warning,) = warnings_of_the_cache()
    assert "is damaged: its record differs in" in warning and "It was set aside in" in warning


def test_builders_with_another_description_share_an_entry(fake_op):
    built = fake_op.build()
    other = fake_op.build(description=key_of("other"))
    assert (other.key, other.origin) == (built.key, "cache")
    assert os.listdir(fake_op.store.layout.description(key_of("other"))) == [built.key]


@pytest.mark.parametrize("field", ["inputs_key", "floors", "abi", entries.RECORD_KEY])
def test_a_field_that_is_lost_is_a_damage(fake_op, field):
    path = os.path.join(fake_op.build().folder, warm_library.RECORD)
    record = read_json(path)
    del record[field]
    text_files.write(os.path.dirname(path), warm_library.RECORD, json.dumps(record))
    assert fake_op.build().origin == "built"
    assert entries.read_record(os.path.dirname(path)) is not None


def test_an_input_that_is_lost_from_a_record_is_a_damage(fake_op):
    path = os.path.join(fake_op.build().folder, warm_library.RECORD)
    record = read_json(path)
    assert record["inputs"]["files"].pop()
    text_files.write(os.path.dirname(path), warm_library.RECORD, json.dumps(record))
    assert entries.read_record(os.path.dirname(path)) is None
