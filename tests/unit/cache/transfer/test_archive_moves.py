"""Export and import: the same entries give the same bytes, and an import is a hit for the same sources."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os

import pytest
from support import sample_ops
from support.compilers import fake_compiler
from support.store.fake_archives import intact_keys
from support.store.fake_store import ME
from support.store.published_op import publish_op

from opforge.builders.load_op import find
from opforge.cache import current
from opforge.cache.store import Store
from opforge.cache.transfer import archive


def test_the_same_entries_produce_the_same_bytes(fake_store, packed, tmp_path):
    path, keys = packed
    for folder, _folders, names in os.walk(fake_store.layout.path("entries")):
        for name in names:
            os.utime(os.path.join(folder, name), (1, 1))
    archive.export(fake_store.layout, reversed(keys), str(tmp_path / "again.tar"))
    with open(path, "rb") as first, open(tmp_path / "again.tar", "rb") as second:
        assert first.read() == second.read()
    assert sorted(os.listdir(tmp_path)) == ["again.tar", "ops.tar", "src", "store"], "no temporary file is left"


def test_an_entry_that_is_gone_or_incomplete_is_not_exported(fake_store, tmp_path):
    incomplete, intact = fake_store.add("relu"), fake_store.add("adam")
    os.unlink(os.path.join(fake_store.layout.entry(incomplete), "record.json"))
    exported = archive.export(fake_store.layout, [incomplete, intact, "0" * 32], str(tmp_path / "ops.tar"))
    assert [entry.key for entry in exported] == [intact]


@pytest.mark.parametrize("name", ["x" * 120, "größe", "大きさ" * 20])
def test_every_name_that_an_op_may_have_is_moved(fake_store, empty_store, tmp_path, name):
    key = fake_store.add(name)
    archive.export(fake_store.layout, [key], str(tmp_path / "ops.tar"))
    assert [entry.op for entry in archive.unpack(empty_store, str(tmp_path / "ops.tar"), ME)] == [name]


def test_an_imported_entry_is_a_hit_for_the_same_sources_only(tmp_path, own_store, monkeypatch):
    fake_compiler.create(tmp_path / "bin")
    monkeypatch.setenv("CXX", str(tmp_path / "bin" / "g++"))
    cls = sample_ops.plain_op(tmp_path / "op")
    store = Store(str(own_store), ME)
    key = publish_op(cls(), store)
    archive.export(store.layout, [key], str(tmp_path / "ops.tar"))
    other = Store(str(tmp_path / "other"), ME)
    current.prepare(str(other.layout), ME)
    (first,) = archive.unpack(other.layout, str(tmp_path / "ops.tar"), ME)
    assert (first.key, first.op, first.is_new) == (key, "plain", True)
    assert find(cls().spec(), other).entry.key == key
    (second,) = archive.unpack(other.layout, str(tmp_path / "ops.tar"), ME)
    assert not second.is_new
    sample_ops.set_value(tmp_path / "op", 2)
    assert find(cls().spec(), other).entry is None


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bz2", "lzma"])
def test_a_compressed_archive_is_imported(packed, empty_store, compress):
    path, keys = packed
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(compress(content))
    assert [entry.key for entry in archive.unpack(empty_store, path, ME)] == keys
    assert intact_keys(empty_store) == set(keys)


def test_an_imported_library_cannot_be_written(packed, empty_store):
    path, keys = packed
    archive.unpack(empty_store, path, ME)
    for key in keys:
        folder = empty_store.entry(key)
        modes = {name: os.stat(os.path.join(folder, name)).st_mode & 0o777 for name in os.listdir(folder)}
        assert {mode for name, mode in modes.items() if name.endswith(".so")} == {0o500}
        assert os.stat(folder).st_mode & 0o077 == 0 and modes["record.json"] == modes["build.json"] == 0o600


def test_an_empty_archive_imports_nothing(fake_store, empty_store, tmp_path):
    archive.export(fake_store.layout, [], str(tmp_path / "ops.tar"))
    assert archive.unpack(empty_store, str(tmp_path / "ops.tar"), ME) == []


@pytest.mark.compile
def test_an_imported_entry_is_found_whatever_compiler_is_here(tmp_path, monkeypatch):
    builder = sample_ops.plain_op(tmp_path / "op")()
    built = builder.build()
    archive.export(current.own_store().layout, [built.key], str(tmp_path / "ops.tar"))
    wrapper = tmp_path / "bin" / "g++"
    wrapper.parent.mkdir()
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/g++ -fno-plt "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "other"))
    current.reset()
    store = current.writable_store(current.own_store())
    archive.unpack(store.layout, str(tmp_path / "ops.tar"), store.owners)
    for _look_up in range(2):
        entry = find(builder.spec()).entry
        assert entry is not None and (entry.key, entry.origin) == (built.key, "cache")
