"""No member of an archive is trusted: only what an export writes is imported, and only into the store."""

from __future__ import annotations

import os
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import text_files
from support.store.fake_archives import ENTRY, entry_keys, intact_keys, members, new_member, refusal_of, rewrite
from support.store.fake_store import ME

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.transfer import archive, tar_reader
from opforge.errors import ArchiveError


def pax_sparse_member():
    member = new_member(f"{ENTRY}/a.so")
    member.pax_headers = {"GNU.sparse.map": "0,0"}
    return member


HOSTILE = {
    "an absolute name": new_member("/etc/opforge-was-here"),
    "a path that leads up": new_member(f"{ENTRY}/../../../../outside"),
    "a name that leads up": new_member(f"{ENTRY}/.."),
    "a symlink": new_member(f"{ENTRY}/record.json", tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": new_member(f"{ENTRY}/record.json", tarfile.LNKTYPE, "../../outside"),
    "a device": new_member(f"{ENTRY}/null.so", tarfile.CHRTYPE),
    "a block device": new_member(f"{ENTRY}/disk.so", tarfile.BLKTYPE),
    "a pipe": new_member(f"{ENTRY}/pipe.so", tarfile.FIFOTYPE),
    "a folder": new_member(ENTRY, tarfile.DIRTYPE),
    "another name": new_member("plans/x"),
    "a hidden name": new_member(f"{ENTRY}/.hidden"),
    "a name with a folder": new_member(f"{ENTRY}/folder/a.so"),
    "a short key": new_member("entries/abc/a.so"),
    "a line break": new_member(f"{ENTRY}/a.so\n"),
    "a sparse file": new_member(f"{ENTRY}/a.so", tarfile.GNUTYPE_SPARSE),
    "a sparse file in pax form": pax_sparse_member(),
    "an unknown kind": new_member(f"{ENTRY}/a.so", b"Z"),
}


def files_outside(folder, store):
    """Returns every folder below `folder` with its files, except those of the folder `store`."""
    return {path: files for path, files in text_files.tree(folder).items() if not path.startswith(store)}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_member_that_no_export_writes_is_refused(packed, empty_store, name, first, tmp_path):
    path, keys = packed
    good = members(path)
    bad = [(HOSTILE[name], b"")]
    rewrite(path, [*bad, *good] if first else [*good[:3], *bad, *good[3:]])
    before = files_outside(tmp_path, "empty")
    error = refusal_of(empty_store, path)
    assert "is not a file of an entry" in str(error) or "is damaged" in str(error), error
    # The entry before the bad member is published once the next member has shown that it is complete.
    assert entry_keys(empty_store) <= set(keys[:1]) and (not first or not entry_keys(empty_store))
    assert files_outside(tmp_path, "empty") == before


def test_the_error_names_the_archive_the_reason_and_how_many_were_imported(packed, empty_store):
    path, keys = packed
    good = members(path)
    rewrite(path, [*good, (new_member(f"entries/{'f' * 32}-{'0' * 8}/x.so"), b""), (new_member("else/where"), b"")])
    error = refusal_of(empty_store, path)
    assert str(error) == (
        f"The archive {path} cannot be imported: 'else/where' is not a file of an entry."
        " 2 of its entries were imported before that. Export it again with `opforge cache export`."
    )
    assert error.kept == 2 and intact_keys(empty_store) == set(keys)


def test_a_member_that_is_there_twice_is_refused(packed, empty_store):
    path, _keys = packed
    good = members(path)
    rewrite(path, [good[0], good[0], *good[1:]])
    assert "is in it twice" in str(refusal_of(empty_store, path))


def test_an_entry_that_is_there_twice_is_refused(packed, empty_store):
    path, keys = packed
    good = members(path)
    rewrite(path, [*good, *good[:3]])
    error = refusal_of(empty_store, path)
    assert "is in it twice" in str(error)
    assert intact_keys(empty_store) == set(keys)


@pytest.mark.parametrize(
    ("module", "bound", "value", "text"),
    [
        (tar_reader, "MAX_FILES", 3, "it holds more than 3 files or"),
        (tar_reader, "MAX_BYTES", 2000, "files or 2000 bytes"),
        (archive, "MAX_JSON", 10, ".json' is larger than any record"),
        (archive, "MAX_LIBRARY", 10, ".so' is larger than any library"),
    ],
)
def test_too_many_or_too_large_members_are_refused(packed, empty_store, monkeypatch, module, bound, value, text):
    monkeypatch.setattr(module, bound, value)
    assert text in str(refusal_of(empty_store, packed[0]))


def test_a_member_that_claims_a_huge_or_a_negative_size_is_refused_at_once(packed, empty_store):
    path, _keys = packed
    for size in (-512, -1, 1 << 62):
        with open(path, "wb") as file:
            huge = new_member(f"{ENTRY}/a.so")
            huge.size = size
            file.write(huge.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
        assert "a.so' has no valid size" in str(refusal_of(empty_store, path))
    with open(path, "wb") as file:
        huge.size = (8 << 30) - 1
        file.write(huge.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
    assert "a.so' is larger than any library" in str(refusal_of(empty_store, path))


def test_a_long_name_of_any_size_is_not_read_into_memory(packed, empty_store):
    path, _keys = packed
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE):
        long = new_member("././@LongLink", kind)
        long.size = 1 << 40
        with open(path, "wb") as file:
            file.write(long.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
        assert "@LongLink" in str(refusal_of(empty_store, path))


NAMES = st.sampled_from(["record.json", "relu.so", "..", ".", "/", "a/../../../b", "", "a\0b", "x" * 300, "é.so"])
KINDS = st.sampled_from(
    [
        *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE),
        *(tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"9"),
    ]
)
MEMBERS = st.builds(
    lambda prefix, name, kind, link, content: (new_member((prefix + name).replace("\0", ""), kind, link), content),
    st.sampled_from(
        [
            f"{ENTRY}/",
            f"entries/{'b' * 32}-{'c' * 8}/",
            f"entries/{'b' * 32}/",
            "",
            "/tmp/",
            "../",
            "entries/",
            "plans/",
        ]
    ),
    NAMES,
    KINDS,
    st.sampled_from(["", "/etc/passwd", "../../../outside", "record.json"]),
    st.binary(max_size=40) | st.sampled_from([b"{}", b'{"inputs":{}}']),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_archive_writes_outside_the_store_or_leaves_a_part_of_an_entry(packed, tmp_path, data):
    path, keys = packed
    parts = members(path)
    hostile = data.draw(st.lists(MEMBERS, max_size=4))
    for member in hostile:
        parts.insert(data.draw(st.integers(0, len(parts))), member)
    parts = [part for part in parts if data.draw(st.integers(0, 5)) or part in hostile]
    layout = Layout(str(tmp_path / "hostile" / "store"))
    current.prepare(layout.root, ME)
    target = tmp_path / "hostile.tar"
    rewrite(target, parts)
    flips = data.draw(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 255)), max_size=3))
    content = bytearray(target.read_bytes())
    for position, change in flips:
        if position < len(content):
            content[position] ^= change
    target.write_bytes(content)
    before = text_files.tree(tmp_path)
    try:
        archive.unpack(layout, str(target), ME)
    except ArchiveError:
        pass
    assert intact_keys(layout) <= set(keys)
    after = text_files.tree(tmp_path)
    inside = os.path.join("hostile", "store")
    assert [folder for folder in after if folder not in before and not folder.startswith(inside)] == []
    for folder, files in before.items():
        if not folder.startswith(inside):
            assert after[folder] == files
    assert not os.path.lexists("/tmp/record.json") and not os.path.lexists("/tmp/relu.so")
