"""Damaged entries: named, set aside and built again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest
from support import text_files
from support.store.fake_store import LIBRARY, ME, World

from opforge.cache.filesystem.disk import Disk
from opforge.cache.filesystem.files import read_json
from opforge.cache.records import entry as entries
from opforge.errors import CacheDirError


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def truncate(path):
    with open(path, "r+b") as file:
        file.truncate(7)


def zero(path):
    with open(path, "r+b") as file:
        file.write(bytes(len(LIBRARY)))


def flip(path):
    with open(path, "r+b") as file:
        file.seek(11)
        byte = file.read(1)[0]
        file.seek(11)
        file.write(bytes([byte ^ 1]))


def empty(path):
    truncate(path)
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


DAMAGES = {
    truncate: "the library has 7 bytes instead of 200",
    zero: "the library's digest differs from its manifest's",
    flip: "the library's digest differs from its manifest's",
    empty: "the library has 0 bytes instead of 200",
    folder: "the library is not a regular file",
    link: "the library cannot be opened (Too many levels of symbolic links)",
    pipe: "the library is not a regular file",
    missing: "the library cannot be opened (No such file or directory)",
    group_writable: "the library can be written by others (mode 570)",
    others_writable: "the library can be written by others (mode 507)",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("harm", DAMAGES, ids=lambda harm: harm.__name__)
def test_a_damaged_entry_is_named_set_aside_and_built_again(world, harm, warnings_of_the_cache):
    built = world.build()
    os.chmod(built.library, 0o700)
    harm(built.library)
    assert world.get() is None
    assert world.reasons()[0] == DAMAGES[harm]
    (warning,) = warnings_of_the_cache()
    assert f"The cache entry {built.folder} is damaged: {DAMAGES[harm]}. It was set aside in " in warning
    assert len(os.listdir(world.store.layout.path("quarantine"))) == 1
    assert world.build().origin == "built"
    assert world.get() is not None


def as_file(path):
    shutil.rmtree(path)
    text_files.write(os.path.dirname(path), os.path.basename(path), "a file")


def as_empty_folder(path):
    shutil.rmtree(path)
    os.mkdir(path)


def as_dangling_link(path):
    os.rename(path, path + "-away")
    os.symlink("nowhere", path)


def without_manifest(path):
    os.unlink(os.path.join(path, entries.MANIFEST))


def with_garbled_manifest(path):
    text_files.write(path, entries.MANIFEST, "{")


@pytest.mark.parametrize(
    "harm",
    [as_file, as_empty_folder, as_dangling_link, without_manifest, with_garbled_manifest],
    ids=lambda f: f.__name__,
)
def test_an_entry_that_is_no_entry_is_replaced(world, harm):
    built = world.build()
    harm(built.folder)
    assert world.get(paranoid=True) is None
    again = world.build()
    assert again.origin == "built" and again.key == built.key
    assert world.get() is not None
    assert world.staged() == []


def test_an_entry_that_another_user_has_left_in_the_way_is_named_with_the_way_out(world, monkeypatch):
    """As a `sudo`, or root in a container, that shared the folder."""
    built = world.build()
    with_garbled_manifest(built.folder)
    rename = os.rename

    def refuse(source, target):
        if source == built.folder:
            raise PermissionError(13, "Permission denied", source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(CacheDirError) as refused:
        world.build()
    root = world.store.layout.root
    assert str(refused.value) == (
        f"The cache folder {root} cannot be used: {built.folder} cannot be changed (its manifest cannot be read)."
        f" If another user has made it, take it over: sudo chown -R {os.geteuid()} {root}"
    )
    assert world.staged() == []


def test_a_damaged_entry_that_another_process_sets_aside_first_is_replaced(world, monkeypatch, warnings_of_the_cache):
    built = world.build()
    with_garbled_manifest(built.folder)
    rename = os.rename

    def too_late(source, target):
        rename(source, target)
        if source == built.folder:
            raise FileNotFoundError(2, "No such file or directory", source)

    monkeypatch.setattr(os, "rename", too_late)
    assert world.build().origin == "built" and world.get() is not None
    assert warnings_of_the_cache() == []


def test_another_ops_library_is_a_damage(world):
    built = world.build()
    os.chmod(built.library, 0o700)
    with open(built.library, "wb") as file:
        file.write(LIBRARY[::-1])
    assert world.get() is None
    assert world.reasons()[0] == "the library's digest differs from its manifest's"


def entry_of(folder, size, **binary):
    content = bytes(size)
    path = folder / "big.so"
    path.write_bytes(content)
    path.chmod(0o500)
    facts = {"file": "big.so", "size": size, "sha256": hashlib.sha256(content).hexdigest(), **binary}
    return entries.Entry("r", str(folder), facts, "cache")


def test_a_large_library_is_trusted_by_its_receipt_and_hashed_in_full_on_demand(tmp_path):
    size = entries.FULL_CHECK_BYTES + 1
    entry = entry_of(tmp_path, size, sha256="00")
    entry.binary["stamp"] = list(Disk().stamp(entry.library))
    assert entries.integrity_problem(entry, ME) is None
    assert entries.integrity_problem(entry, ME, full=True) == "the library's digest differs from its manifest's"
    entry.binary["stamp"][1] += 1
    assert entries.integrity_problem(entry, ME) == "the library's digest differs from its manifest's"


def test_a_small_library_is_hashed_whatever_its_receipt_says(tmp_path):
    entry = entry_of(tmp_path, entries.FULL_CHECK_BYTES, sha256="00")
    entry.binary["stamp"] = list(Disk().stamp(entry.library))
    assert entries.integrity_problem(entry, ME) is not None


def test_a_renewed_ticket_keeps_the_receipt_of_a_large_library(tmp_path):
    world = World(tmp_path, bytes(entries.FULL_CHECK_BYTES + 1))
    world.build()
    (before,) = map(read_json, world.tickets())
    os.utime(world.folder / "src" / "a.cpp")
    assert world.get() is not None
    (after,) = map(read_json, world.tickets())
    assert after["at"] > before["at"]
    assert after["binary"].get("stamp") == before["binary"]["stamp"]


def test_a_library_of_a_stranger_is_refused(tmp_path):
    entry = entry_of(tmp_path, 10)
    problem = entries.integrity_problem(entry, frozenset({os.geteuid() + 1}))
    assert problem == "its folder is a link, a file, or somebody else's"


def test_a_damaged_entry_of_a_layer_is_passed_over_and_left_where_it_is(world, tmp_path):
    built = world.build()
    os.chmod(built.library, 0o700)
    flip(built.library)
    trace = []
    assert world.as_layer(tmp_path / "mine").match("description", lambda _binary: None, world.roots, (), trace) is None
    assert trace[0].reason == "the library's digest differs from its manifest's"
    assert os.path.exists(built.library)


@pytest.mark.parametrize(
    "change",
    [lambda told: told["binary"].update(abi="torch"), lambda told: told["inputs"]["files"][0].__setitem__(2, "0" * 64)],
    ids=["abi", "input"],
)
def test_an_entry_whose_manifest_speaks_of_another_library_is_replaced(world, change, warnings_of_the_cache):
    manifest = os.path.join(world.build().folder, entries.MANIFEST)
    with open(manifest) as file:
        told = json.load(file)
    change(told)
    text_files.write(os.path.dirname(manifest), entries.MANIFEST, json.dumps(told))
    again = world.build()
    assert (again.origin, again.binary["abi"]) == ("built", "c")
    (warning,) = warnings_of_the_cache()
    assert "is damaged: its manifest speaks of another library. It was set aside in" in warning
