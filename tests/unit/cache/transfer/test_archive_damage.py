"""An archive that is damaged, or whose manifests are not its entries', is refused with what is wrong."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os

import pytest
from support.store.fake_archives import held, members, refused, rewrite
from support.store.fake_store import ME

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.transfer import archive

CUT = "was refused: Compressed file ended before the end-of-stream marker was reached. "
NO_ARCHIVE = "was refused: it is no tar archive, or its beginning is damaged. "


def test_an_archive_that_is_cut_short_anywhere_is_refused_unless_only_padding_is_missing(packed, tmp_path):
    path, results = packed
    with open(path, "rb") as file:
        content = file.read()
    needed = len(content.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(0, needed, 256), needed]:
        with open(path, "wb") as file:
            file.write(content[:length])
        place = Layout(str(tmp_path / f"cut-{length}"))
        current.prepare(place.root, ME)
        error = refused(place, path)
        assert held(place) == set(results[: error.kept])
    with open(path, "wb") as file:
        file.write(content[: needed + 512])
    place = Layout(str(tmp_path / "enough"))
    current.prepare(place.root, ME)
    assert len(archive.unpack(place, path, ME)) == 2


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=lambda one: one.__module__)
def test_a_compressed_archive_that_is_damaged_is_refused(packed, fresh, compress):
    path, _results = packed
    with open(path, "rb") as file:
        content = compress(file.read())
    for damaged in (content[: len(content) // 2], content[:40] + b"\xff\x00\xff" * 9 + content[67:], content[:10]):
        with open(path, "wb") as file:
            file.write(damaged)
        error = refused(fresh, path)
        assert CUT in str(error) or NO_ARCHIVE in str(error)
        assert held(fresh) == set()


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\0" * 511, os.urandom(2048), b"\x1f\x8b", b"BZh9"])
def test_what_is_no_archive_is_refused(tmp_path, fresh, content):
    (tmp_path / "ops.tar").write_bytes(content)
    error = refused(fresh, tmp_path / "ops.tar")
    assert error.kept == 0 and (CUT if content[:1] == b"\x1f" else NO_ARCHIVE) in str(error)


def test_an_archive_that_is_not_there_is_called_so(tmp_path, fresh):
    assert "it cannot be opened (No such file or directory)" in str(refused(fresh, tmp_path / "gone.tar"))


def with_manifest(path, change):
    """Change the manifest of the archive's first entry."""
    parts = members(path)
    index = next(number for number, (one, _content) in enumerate(parts) if one.name.endswith("manifest.json"))
    manifest = json.loads(parts[index][1])
    change(manifest)
    parts[index] = (parts[index][0], json.dumps(manifest).encode())
    rewrite(path, parts)


MANIFESTS = {
    "another digest": (lambda one: one["binary"].update(sha256="0" * 64), "digest differs"),
    "another size": (lambda one: one["binary"].update(size=1), "bytes instead of"),
    "another plan": (lambda one: one.update(plan="0" * 32), "has the manifest of another"),
    "another input": (lambda one: one["inputs"]["files"][0].__setitem__(2, "0" * 64), "has the manifest of another"),
    "no inputs": (lambda one: one.pop("inputs"), "inputs"),
    "no op": (lambda one: one["binary"].pop("op"), "op"),
    "no library": (lambda one: one["binary"].update(file="other.so"), "does not hold a manifest and its library"),
    "a file elsewhere": (lambda one: one["binary"].update(file="../x.so"), "does not hold a manifest and its library"),
    "a description elsewhere": (lambda one: one.update(description="../../x"), "has no proper keys"),
    "a list for a record": (lambda one: one.update(binary=[]), ""),
    "nothing": (lambda one: one.clear(), "binary"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_not_the_entrys_is_refused(packed, fresh, name):
    path, _results = packed
    change, text = MANIFESTS[name]
    with_manifest(path, change)
    assert text in str(refused(fresh, path))
    assert held(fresh) == set()
    assert not os.path.exists(fresh.path("plans", "0" * 32))


def test_a_manifest_of_another_entry_is_refused(packed, fresh):
    path, _results = packed
    parts = members(path)
    manifests = [content for one, content in parts if one.name.endswith("manifest.json")][::-1]
    rewrite(path, [(one, manifests.pop(0) if one.name.endswith("manifest.json") else body) for one, body in parts])
    assert "does not hold a manifest and its library" in str(refused(fresh, path))


def test_nested_json_is_no_crash(packed, fresh):
    path, _results = packed
    parts = members(path)
    rewrite(path, [(one, b"[" * 200_000 if one.name.endswith(".json") else body) for one, body in parts])
    assert "maximum recursion depth exceeded" in str(refused(fresh, path))


def test_an_unwritable_store_is_an_error_not_a_traceback(packed, fresh, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "write_file", full)
    assert "No space left on device" in str(refused(fresh, packed[0]))
