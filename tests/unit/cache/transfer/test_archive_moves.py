"""Out and in: the same entries give the same bytes, and an import is a hit for the sources that it was built from."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os

import pytest
from support import sample_ops
from support.compilers import fake_compiler
from support.store import fake_store
from support.store.fake_archives import is_whole
from support.store.fake_store import ME

from opforge.builders.lookup.finder import find
from opforge.cache import current
from opforge.cache.store import Store
from opforge.cache.transfer import archive


def test_the_same_entries_give_the_same_bytes(made, packed, tmp_path):
    path, results = packed
    for place, _folders, names in os.walk(made.layout.path("entries")):
        for name in names:
            os.utime(os.path.join(place, name), (1, 1))
    archive.export(made.layout, reversed(results), str(tmp_path / "again.tar"))
    with open(path, "rb") as one, open(tmp_path / "again.tar", "rb") as other:
        assert one.read() == other.read()
    assert sorted(os.listdir(tmp_path)) == ["again.tar", "ops.tar", "src", "store"], "no draft is left"


def test_an_entry_that_is_gone_or_not_whole_is_left_out(made, tmp_path):
    bad, good = made.add("relu"), made.add("adam")
    os.unlink(os.path.join(made.layout.entry(bad), "manifest.json"))
    moved = archive.export(made.layout, [bad, good, "0" * 32], str(tmp_path / "ops.tar"))
    assert [one.key for one in moved] == [good]


def test_a_name_of_any_length_is_exported(made, fresh, tmp_path):
    name = "x" * 120
    result = made.add(name)
    archive.export(made.layout, [result], str(tmp_path / "ops.tar"))
    assert [one.op for one in archive.unpack(fresh, str(tmp_path / "ops.tar"), ME)] == [name]


def test_an_import_is_a_hit_for_the_same_sources_and_not_for_others(tmp_path, own_store, monkeypatch):
    fake_compiler.create(tmp_path / "bin")
    monkeypatch.setenv("CXX", str(tmp_path / "bin" / "g++"))
    cls = sample_ops.plain_op(tmp_path / "op")
    store = Store(str(own_store), ME)
    result = fake_store.publish(cls(), store)
    archive.export(store.layout, [result], str(tmp_path / "ops.tar"))
    other = Store(str(tmp_path / "other"), ME)
    current.prepare(str(other.layout), ME)
    (moved,) = archive.unpack(other.layout, str(tmp_path / "ops.tar"), ME)
    assert (moved.key, moved.op, moved.is_new) == (result, "plain", True)
    assert find(cls().spec(), other).entry.key == result
    assert find(cls().spec(), other).entry.stat_record, "the second look-up is answered by stamps"
    (again,) = archive.unpack(other.layout, str(tmp_path / "ops.tar"), ME)
    assert not again.is_new
    sample_ops.set_value(tmp_path / "op", 2)
    assert find(cls().spec(), other).entry is None


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=lambda one: one.__module__)
def test_a_compressed_archive_is_taken(packed, fresh, compress):
    path, results = packed
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(compress(content))
    assert [one.key for one in archive.unpack(fresh, path, ME)] == results
    assert is_whole(fresh) == set(results)


def test_an_imported_library_cannot_be_written(packed, fresh):
    path, results = packed
    archive.unpack(fresh, path, ME)
    for result in results:
        folder = fresh.entry(result)
        modes = {name: os.stat(os.path.join(folder, name)).st_mode & 0o777 for name in os.listdir(folder)}
        assert {mode for name, mode in modes.items() if name.endswith(".so")} == {0o500}
        assert os.stat(folder).st_mode & 0o077 == 0 and modes["manifest.json"] == 0o600


def test_an_archive_of_nothing_is_nothing(made, fresh, tmp_path):
    archive.export(made.layout, [], str(tmp_path / "ops.tar"))
    assert archive.unpack(fresh, str(tmp_path / "ops.tar"), ME) == []
