"""A damaged archive, or one with wrong manifests, is refused with the reason."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os

import pytest
from support.store.fake_archives import entry_keys, members, refusal_of, rewrite
from support.store.fake_store import ME

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.transfer import archive

CUT = "cannot be imported: Compressed file ended before the end-of-stream marker was reached. "
NO_ARCHIVE = "cannot be imported: it is not a tar archive, or its beginning is damaged. "


def test_an_archive_that_is_cut_short_is_refused_unless_only_padding_is_missing(packed, tmp_path):
    path, keys = packed
    with open(path, "rb") as file:
        content = file.read()
    needed = len(content.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(0, needed, 256), needed]:
        with open(path, "wb") as file:
            file.write(content[:length])
        layout = Layout(str(tmp_path / f"cut-{length}"))
        current.prepare(layout.root, ME)
        error = refusal_of(layout, path)
        assert entry_keys(layout) == set(keys[: error.kept])
    with open(path, "wb") as file:
        file.write(content[: needed + 512])
    layout = Layout(str(tmp_path / "enough"))
    current.prepare(layout.root, ME)
    assert len(archive.unpack(layout, path, ME)) == 2


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bz2", "lzma"])
def test_a_compressed_archive_that_is_damaged_is_refused(packed, empty_store, compress):
    path, _keys = packed
    with open(path, "rb") as file:
        content = compress(file.read())
    for damaged in (content[: len(content) // 2], content[:40] + b"\xff\x00\xff" * 9 + content[67:], content[:10]):
        with open(path, "wb") as file:
            file.write(damaged)
        error = refusal_of(empty_store, path)
        assert CUT in str(error) or NO_ARCHIVE in str(error)
        assert entry_keys(empty_store) == set()


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\0" * 511, os.urandom(2048), b"\x1f\x8b", b"BZh9"])
def test_a_file_that_is_no_archive_is_refused(tmp_path, empty_store, content):
    (tmp_path / "ops.tar").write_bytes(content)
    error = refusal_of(empty_store, tmp_path / "ops.tar")
    assert error.kept == 0 and (CUT if content[:1] == b"\x1f" else NO_ARCHIVE) in str(error)


def test_an_archive_that_does_not_exist_is_reported(tmp_path, empty_store):
    assert "it cannot be opened (No such file or directory)" in str(refusal_of(empty_store, tmp_path / "gone.tar"))


def change_manifest(path, change):
    """Changes the manifest of the archive's first entry."""
    parts = members(path)
    index = next(number for number, (member, _content) in enumerate(parts) if member.name.endswith("manifest.json"))
    manifest = json.loads(parts[index][1])
    change(manifest)
    parts[index] = (parts[index][0], json.dumps(manifest).encode())
    rewrite(path, parts)


MANIFESTS = {
    "another digest": (lambda m: m["binary"].update(sha256="0" * 64), "digest differs"),
    "another size": (lambda m: m["binary"].update(size=1), "bytes instead of"),
    "another plan": (lambda m: m.update(plan="0" * 32), "has the manifest of another"),
    "another input": (
        lambda m: m["inputs"]["files"][0].__setitem__(2, "0" * 64),
        "has the manifest of another",
    ),
    "no inputs": (lambda m: m.pop("inputs"), "inputs"),
    "no op": (lambda m: m["binary"].pop("op"), "op"),
    "no library": (
        lambda m: m["binary"].update(file="other.so"),
        "does not hold a manifest and its library",
    ),
    "a file elsewhere": (
        lambda m: m["binary"].update(file="../x.so"),
        "does not hold a manifest and its library",
    ),
    "a description elsewhere": (lambda m: m.update(description="../../x"), "has no valid keys"),
    "a list for a record": (lambda m: m.update(binary=[]), ""),
    "nothing": (lambda m: m.clear(), "binary"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_does_not_fit_its_entry_is_refused(packed, empty_store, name):
    path, _keys = packed
    change, text = MANIFESTS[name]
    change_manifest(path, change)
    assert text in str(refusal_of(empty_store, path))
    assert entry_keys(empty_store) == set()
    assert not os.path.exists(empty_store.path("plans", "0" * 32))


def test_a_manifest_of_another_entry_is_refused(packed, empty_store):
    path, _keys = packed
    parts = members(path)
    manifests = [content for member, content in parts if member.name.endswith("manifest.json")]
    swapped = [
        (member, manifests.pop() if member.name.endswith("manifest.json") else content) for member, content in parts
    ]
    rewrite(path, swapped)
    assert "does not hold a manifest and its library" in str(refusal_of(empty_store, path))


def test_deeply_nested_json_is_refused(packed, empty_store):
    path, _keys = packed
    parts = members(path)
    rewrite(path, [(member, b"[" * 200_000 if member.name.endswith(".json") else body) for member, body in parts])
    assert "maximum recursion depth exceeded" in str(refusal_of(empty_store, path))


def test_a_store_that_cannot_be_written_is_an_archive_error(packed, empty_store, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "write_file", full)
    assert "No space left on device" in str(refusal_of(empty_store, packed[0]))
